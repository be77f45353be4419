//! Names and seeds that nobody can guess.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};

pub fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without a source of randomness the time has to do: it names an answer, it keeps no secret.
    if SystemRandom::new().fill(&mut bytes).is_err() {
        return since_1970().as_nanos() as u64;
    }
    u64::from_le_bytes(bytes)
}

/// A new name, as `chatcmpl-1f0c...`.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}{:016x}{:08x}", random(), random() as u32)
}

pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
