//! Any JSON as a config is described or refused; descriptions can be listed without overflow.
#![no_main]

use libfuzzer_sys::fuzz_target;
use troika_model::families::from_config;
use troika_model::spec::weight_requirements;

fuzz_target!(|data: &[u8]| {
    let Ok(json) = serde_json::from_slice(data) else { return };
    let Ok(model) = from_config(&json) else { return };
    // Lists every weight, but makes names of a limited number to save time.
    for (i, need) in weight_requirements(&model.spec).enumerate() {
        assert!(need.rows.checked_mul(need.cols).is_some());
        if i < 2000 {
            let _ = model.names.candidates(&model.spec, need.key);
        }
    }
});
