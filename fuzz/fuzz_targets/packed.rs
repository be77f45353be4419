//! Any bytes as a file of packed weights are read or refused, and every weight is inside. Tries
//! them unchanged, and as the index of a file with a matching head.
#![no_main]

use libfuzzer_sys::fuzz_target;
use troika_weights::parse_packed;

fn check(file: &[u8]) {
    if let Ok(index) = parse_packed(file) {
        for entry in &index.entries {
            assert!(entry.range().is_some_and(|r| file.get(r).is_some()));
        }
    }
}

fuzz_target!(|data: &[u8]| {
    check(data);
    let Some((&weights, index)) = data.split_first() else { return };
    let offset = 64 + u64::from(weights);
    let mut file = b"TROIKAPW".to_vec();
    file.extend(2u32.to_le_bytes());
    file.extend([0; 4]);
    file.extend(offset.to_le_bytes());
    file.extend((index.len() as u64).to_le_bytes());
    file.extend(blake3::hash(index).as_bytes());
    file.resize(offset as usize, 0);
    file.extend(index);
    check(&file);
});
