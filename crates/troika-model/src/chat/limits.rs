//! Limits on the cost of templates. A template comes with a model's files, so it is untrusted:
//! minijinja's fuel pays for every instruction and for the data that it makes. Fuel does not see
//! what a value holds, so values that outlive a statement and values that are printed are walked.

use std::time::Duration;

use minijinja::{Error, ErrorKind};
use serde_json::Value as Json;

/// The longest source; templates of published models have up to about 30 KB.
pub(super) const SOURCE: usize = 64 << 10;
/// The longest tag; published templates have some of 6 KB. The compiler recurses once per link of a
/// chain such as `a + b + c`, and takes time by the square of the links.
pub(super) const TAG: usize = 8 << 10;
/// Stack of the thread that parses and renders; all limits together need a fraction of it.
pub(super) const STACK: usize = 64 << 20;
/// How long a rendering may take; fuel ends nearly all templates within a second.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// Fuel of a rendering, before what the input's size adds. A unit pays for an instruction or for
/// 64 bytes of data. A thousand messages take the largest published templates less.
const FUEL: u64 = 2_000_000;
/// Fuel for each byte of input: a template reads a message a few dozen times.
const FUEL_PER_BYTE: u64 = 1;
/// The most fuel that the input's size adds. As it pays for data too, it bounds memory.
const FUEL_ADDED: u64 = 32 << 20;
/// The most bytes of a prompt, before what the input's size adds.
const OUTPUT: u64 = 16 << 20;
/// Bytes of a prompt for each byte of input.
const OUTPUT_PER_BYTE: u64 = 8;
/// Bytes of data for which a unit of fuel pays.
pub(super) const BYTES: u64 = 64;
/// Levels of lists and maps in one value, those of the messages included.
pub(super) const DEPTH: usize = 128;

/// The error for a template that exceeds a limit.
pub(super) fn refuse(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

/// The fuel for an input of `bytes`.
pub(super) fn fuel(bytes: u64) -> u64 {
    FUEL + bytes.saturating_mul(FUEL_PER_BYTE).min(FUEL_ADDED)
}

/// The longest prompt of an input of `bytes`.
pub(super) fn output(bytes: u64) -> u64 {
    OUTPUT.saturating_add(bytes.saturating_mul(OUTPUT_PER_BYTE))
}

/// Bytes of text in JSON plus a charge per item; `None` if it is nested too deeply.
pub(super) fn json_size<'a>(values: impl Iterator<Item = &'a Json>) -> Option<u64> {
    let mut open: Vec<(&Json, usize)> = values.map(|v| (v, 0)).collect();
    let mut sum = 0;
    while let Some((value, depth)) = open.pop() {
        sum += 16;
        match value {
            Json::String(s) => sum += s.len() as u64,
            Json::Array(list) => open.extend(list.iter().map(|v| (v, depth + 1))),
            Json::Object(map) => {
                sum += map.keys().map(|k| k.len() as u64).sum::<u64>();
                open.extend(map.values().map(|v| (v, depth + 1)));
            }
            _ => {}
        }
        // Leaves levels for the list of messages and for what the template wraps.
        if depth > DEPTH - 8 {
            return None;
        }
    }
    Some(sum)
}
