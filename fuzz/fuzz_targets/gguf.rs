//! Any bytes as a GGUF file are parsed or refused. Every range is inside the file. Tokenizer
//! metadata is used or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use troika_model::families::from_gguf;
use troika_model::spec::{weight_requirements, Checkpoint, StoredTensor};
use troika_model::tokenizer::Tokenizer;
use troika_weights::parse_gguf;

struct NoTensors;

impl Checkpoint for NoTensors {
    fn tensor(&self, _: &str) -> Option<&StoredTensor> {
        None
    }
    fn names(&self) -> Vec<&str> {
        Vec::new()
    }
    fn origin(&self, _: &str) -> String {
        String::new()
    }
    fn unusable(&self, _: &str) -> Option<&str> {
        None
    }
}

fuzz_target!(|data: &[u8]| {
    if let Ok(header) = parse_gguf(data) {
        for t in &header.tensors {
            assert!(data.get(t.range.clone()).is_some());
        }
        if let Ok(model) = from_gguf(&header.meta, &NoTensors) {
            for need in weight_requirements(&model.spec).take(2000) {
                let _ = model.names.candidates(&model.spec, need.key);
            }
        }
        let _ = Tokenizer::from_gguf(&header.meta);
    }
});
