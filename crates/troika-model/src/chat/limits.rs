//! Limits on the cost of templates. A template comes with a model's files, so it is untrusted:
//! every instruction counts (minijinja's fuel), and so does every byte that it reads or makes.

use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::value::{ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::mask::Mask;

/// The longest source; templates of published models have up to about 30 KB.
pub(super) const SOURCE: usize = 256 << 10;
/// The most tokens in one tag. The compiler recurses once per link of a chain such as `a + b + c`.
pub(super) const TAG_TOKENS: usize = 4096;
/// The most tags: each `elif` is a level deeper for the compiler.
pub(super) const TAGS: usize = 16_384;
/// The most bytes that products of literals may produce during compiling.
pub(super) const FOLDED: u64 = 4 << 20;
/// Stack of the thread that parses and renders; all limits together need a fraction of it.
pub(super) const STACK: usize = 64 << 20;
/// Instructions of a rendering, before what the input's size adds.
const FUEL: u64 = 2_000_000;
/// Instructions for each byte of input. A thousand messages take the largest published templates
/// fewer than [`FUEL`].
const FUEL_PER_BYTE: u64 = 4;
/// Levels of lists and maps in one value, those of the messages included.
const DEPTH: usize = 128;
/// Bytes that a rendering may read or make, before the addition for the input's size.
const WORK: u64 = 256 << 20;
/// Bytes of work per byte of input: a template reads a message a few dozen times.
const WORK_PER_BYTE: u64 = 256;
/// The largest addition for the input's size. As kept data is charged too, it also bounds memory.
const WORK_ADDED: u64 = 2 << 30;
/// The most bytes of a value or of the prompt, before the addition for the input's size.
const SIZE: u64 = 16 << 20;
const SIZE_PER_BYTE: u64 = 8;
/// The size charged for an item of a list or map, in bytes.
pub(super) const ITEM: u64 = 16;
/// The cost of an item that is looked at, in bytes: it takes as long as this many bytes of a text.
const COUNT: u64 = 32;

/// The account of one rendering.
pub(super) struct Budget {
    left: AtomicU64,
    size: u64,
    output: AtomicU64,
    pub(super) fuel: u64,
    pub(super) mask: Mask,
}

/// The error for a template that exceeds a limit.
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

    /// Charges for work.
    pub(super) fn spend(&self, work: u64) -> Result<(), Error> {
        // Only one thread renders: nothing happens between load and store.
        let left = self.left.load(Ordering::Relaxed).checked_sub(work);
        self.left.store(left.unwrap_or(0), Ordering::Relaxed);
        left.map(|_| ()).ok_or_else(|| refuse("it does more work than any conversation needs"))
    }

    /// Checks that a value may have this size.
    pub(super) fn allows(&self, bytes: u64) -> Result<(), Error> {
        if bytes > self.size {
            return Err(refuse("it makes a value that is too large"));
        }
        Ok(())
    }

    /// Checks that a text of this size may be made, and charges for it.
    pub(super) fn fits(&self, bytes: u64) -> Result<(), Error> {
        self.allows(bytes)?;
        self.spend(bytes)
    }

    /// Charges for text that is added to the prompt (or to a captured block).
    pub(super) fn emit(&self, bytes: u64) -> Result<(), Error> {
        let sum = self.output.load(Ordering::Relaxed).saturating_add(bytes);
        self.output.store(sum, Ordering::Relaxed);
        // A block may be captured and then printed a few times.
        if sum > self.size.saturating_mul(4) {
            return Err(refuse("its text is too long"));
        }
        self.spend(bytes)
    }

    /// The size of a value with its contents. Charges only for counting. Refuses deep nesting.
    pub(super) fn measure(&self, value: &Value) -> Result<u64, Error> {
        let mut sum = 0;
        self.add_up(value, DEPTH, &mut sum)?;
        Ok(sum)
    }

    /// Charges for reading all of a value, including texts, as a comparison does.
    pub(super) fn whole(&self, value: &Value) -> Result<u64, Error> {
        let size = self.measure(value)?;
        self.spend(size)?;
        Ok(size)
    }

    /// Charges for reading a text or the items of a list.
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

    /// The value in a form that a template may keep. Lazily computed values become lists, so that
    /// they cannot hide depth or cost.
    pub(super) fn settle(&self, value: Value) -> Result<Value, Error> {
        if value.kind() != ValueKind::Iterable {
            self.measure(&value)?;
            return Ok(value);
        }
        let mut items = Vec::new();
        for item in value.try_iter()?.checked() {
            self.spend(COUNT)?;
            items.push(item?);
        }
        let list = Value::from(items);
        self.measure(&list)?;
        Ok(list)
    }
}

/// Namespaces may change after they were stored; they could even contain themselves.
pub(super) fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|o| o.type_name().ends_with("Namespace"))
}

fn is_loop(type_name: &str) -> bool {
    type_name.ends_with("::Loop")
}

/// Bytes of text in JSON plus a charge per item; `None` if it is nested too deeply.
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
        // Leaves levels for the list of messages and for what the template wraps.
        if depth > DEPTH - 8 {
            return None;
        }
    }
    Some(sum)
}
