//! Any JSON as a config: described or refused; what is described can be listed without overflow.
#![no_main]

use libfuzzer_sys::fuzz_target;
use troika_model::families::from_config;
use troika_model::spec::weight_needs;

fuzz_target!(|data: &[u8]| {
    let Ok(json) = serde_json::from_slice(data) else { return };
    let Ok(model) = from_config(&json) else { return };
    // Lists of experts of all layers can be long; the format allows it, the fuzzer has no time.
    if model.spec.layers.len() > 64 {
        return;
    }
    for need in weight_needs(&model.spec).iter().take(2000) {
        let _ = model.names.candidates(&model.spec, need.key);
    }
});
