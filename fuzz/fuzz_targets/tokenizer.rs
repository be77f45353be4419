//! Any bytes as a `tokenizer.json` are refused, or used for texts and ids without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../body/tokenizer.rs"]
mod body;

fuzz_target!(|data: &[u8]| body::run(data));
