//! Any bytes as a safetensors file are parsed or refused, and every range is inside the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use troika_weights::parse_safetensors;

fuzz_target!(|data: &[u8]| {
    if let Ok(entries) = parse_safetensors(data, data.len()) {
        for e in entries.values() {
            assert!(data.get(e.range.clone()).is_some());
        }
    }
});
