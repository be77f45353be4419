//! What a template may cost. A template comes with a model's files, so it is a stranger's program:
//! every instruction counts (minijinja's fuel), and so does every byte that one looks at or makes.

use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::{ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::mask::Mask;

/// Longest source; the longest templates of published models have about 30 KB.
pub(super) const SOURCE: usize = 256 << 10;
/// Tokens within one tag. The compiler recurses once per link of a chain such as `a + b + c`.
pub(super) const TAG_TOKENS: usize = 4096;
/// Tags: every `elif` is one level deeper for the compiler.
pub(super) const TAGS: usize = 16_384;
/// Bytes that products of literals may make while the template is compiled.
pub(super) const FOLDED: u64 = 4 << 20;
/// Stack of the thread that parses and renders; the limits above and below need a fraction of it.
pub(super) const STACK: usize = 64 << 20;
/// Instructions of a rendering, before what the input's size adds.
const FUEL: u64 = 2_000_000;
/// Instructions for each byte of input. A thousand messages take the largest published templates
/// fewer than [`FUEL`].
const FUEL_PER_BYTE: u64 = 4;
/// Levels of lists and maps in one value, those of the messages included.
const DEPTH: usize = 128;
/// Bytes looked at or made by a rendering, before what the input's size adds.
const WORK: u64 = 256 << 20;
/// Bytes of work for each byte of input: a template looks at a message a few dozen times.
const WORK_PER_BYTE: u64 = 256;
/// Most that the input's size adds: what is made and kept is paid for, so memory is bounded too.
const WORK_ADDED: u64 = 2 << 30;
/// Bytes of one value or of the prompt, before what the input's size adds.
const SIZE: u64 = 16 << 20;
const SIZE_PER_BYTE: u64 = 8;
/// What an item of a list or map counts for, in bytes.
pub(super) const ITEM: u64 = 16;
/// What counting an item costs.
const COUNT: u64 = 4;

/// The account of one rendering.
pub(super) struct Budget {
    left: AtomicU64,
    size: u64,
    output: AtomicU64,
    pub(super) fuel: u64,
    pub(super) mask: Mask,
}

/// An error of a template that goes too far.
pub(super) fn refuse(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

impl Budget {
    /// The account for an input of `bytes`.
    pub(super) fn new(bytes: u64, mask: Mask) -> Budget {
        Budget {
            left: AtomicU64::new(WORK + bytes.saturating_mul(WORK_PER_BYTE).min(WORK_ADDED)),
            size: SIZE.saturating_add(bytes.saturating_mul(SIZE_PER_BYTE)),
            output: AtomicU64::new(0),
            fuel: FUEL.saturating_add(bytes.saturating_mul(FUEL_PER_BYTE)),
            mask,
        }
    }

    /// Pays for work.
    pub(super) fn spend(&self, work: u64) -> Result<(), Error> {
        // One thread renders: nothing comes between the two.
        let left = self.left.load(Ordering::Relaxed).checked_sub(work);
        self.left.store(left.unwrap_or(0), Ordering::Relaxed);
        left.map(|_| ()).ok_or_else(|| refuse("it does more work than any conversation needs"))
    }

    /// Whether a value may have this size.
    pub(super) fn allows(&self, bytes: u64) -> Result<(), Error> {
        if bytes > self.size {
            return Err(refuse("it makes a value that is too large"));
        }
        Ok(())
    }

    /// Whether a text of this size may be made, which is paid for.
    pub(super) fn fits(&self, bytes: u64) -> Result<(), Error> {
        self.allows(bytes)?;
        self.spend(bytes)
    }

    /// Pays for text that becomes part of the prompt (or of a captured block).
    pub(super) fn emit(&self, bytes: u64) -> Result<(), Error> {
        let sum = self.output.load(Ordering::Relaxed).saturating_add(bytes);
        self.output.store(sum, Ordering::Relaxed);
        // A block may be captured and then printed, a few times over.
        if sum > self.size.saturating_mul(4) {
            return Err(refuse("its text is too long"));
        }
        self.spend(bytes)
    }

    /// Size of a value with all that is in it. Only counting is paid for. Refuses what is nested
    /// too deeply.
    pub(super) fn measure(&self, value: &Value) -> Result<u64, Error> {
        let mut sum = 0;
        self.add_up(value, DEPTH, &mut sum)?;
        Ok(sum)
    }

    /// Pays for going through all of a value, text by text, as whoever compares it does.
    pub(super) fn whole(&self, value: &Value) -> Result<u64, Error> {
        let size = self.measure(value)?;
        self.spend(size)?;
        Ok(size)
    }

    /// Pays for going through a text, or through the items of a list.
    pub(super) fn flat(&self, value: &Value) -> Result<u64, Error> {
        let items = || value.as_object().and_then(|o| o.enumerator_len()).unwrap_or(0);
        let size = value.as_str().map_or_else(|| items() as u64 * COUNT, |s| s.len() as u64);
        self.spend(size)?;
        Ok(size)
    }

    fn add_up(&self, value: &Value, depth: usize, sum: &mut u64) -> Result<(), Error> {
        let own = value.as_str().map(str::len).or(value.as_bytes().map(<[u8]>::len));
        *sum += ITEM + own.unwrap_or(0) as u64;
        self.spend(COUNT)?;
        self.allows(*sum)?;
        let Some(object) = value.as_object().filter(|o| !is_loop(o.type_name())) else {
            return Ok(());
        };
        if object.repr() == ObjectRepr::Plain {
            return Ok(());
        }
        if depth == 0 {
            return Err(refuse(format!("it nests lists and maps deeper than {DEPTH} levels")));
        }
        if object.repr() == ObjectRepr::Map {
            for (key, item) in object.try_iter_pairs().into_iter().flatten() {
                self.add_up(&key, depth - 1, sum)?;
                self.add_up(&item, depth - 1, sum)?;
            }
        } else {
            for item in object.try_iter().into_iter().flatten() {
                self.add_up(&item, depth - 1, sum)?;
            }
        }
        Ok(())
    }

    /// A value as the template may keep it: what is computed when it is looked at becomes a list,
    /// so that neither depth nor cost can hide in it.
    pub(super) fn settle(&self, value: Value) -> Result<Value, Error> {
        if value.kind() != ValueKind::Iterable {
            self.measure(&value)?;
            return Ok(value);
        }
        let mut items = Vec::new();
        for item in value.try_iter()?.checked() {
            self.spend(ITEM)?;
            items.push(item?);
        }
        let list = Value::from(items);
        self.measure(&list)?;
        Ok(list)
    }
}

/// Namespaces can change after they were put somewhere; they could even hold themselves.
pub(super) fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|o| o.type_name().ends_with("Namespace"))
}

fn is_loop(type_name: &str) -> bool {
    type_name.ends_with("::Loop")
}

/// Bytes of text in JSON, with something for every item; `None` when it is nested too deeply.
pub(super) fn json_size<'a>(values: impl Iterator<Item = &'a Json>) -> Option<u64> {
    let mut open: Vec<(&Json, usize)> = values.map(|v| (v, 0)).collect();
    let mut sum = 0;
    while let Some((value, depth)) = open.pop() {
        sum += ITEM;
        match value {
            Json::String(s) => sum += s.len() as u64,
            Json::Array(list) => open.extend(list.iter().map(|v| (v, depth + 1))),
            Json::Object(map) => {
                sum += map.keys().map(|k| k.len() as u64).sum::<u64>();
                open.extend(map.values().map(|v| (v, depth + 1)));
            }
            _ => {}
        }
        // Some levels are left for the list of messages and for what the template wraps.
        if depth > DEPTH - 8 {
            return None;
        }
    }
    Some(sum)
}
