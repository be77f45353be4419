//! The file format of packed weights: reading files and their index.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cache::hash;
use crate::format::file_map::{FileMap, map_file};

pub(crate) const MAGIC: &[u8; 8] = b"TROIKAPW";
pub(crate) const VERSION: u32 = 2;
/// Packed weights begin at multiples of a page, so that each can be mapped and advised.
pub(crate) const ALIGN: u64 = 4096;
/// Number of meaningful bytes before the first weight.
pub(crate) const HEAD: usize = 64;

/// A packed weight in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedEntry {
    /// The weight's name.
    pub name: String,
    /// The layout it was packed in.
    pub layout: String,
    /// The offset of its bytes.
    pub offset: u64,
    /// Number of its bytes.
    pub len: u64,
    /// Their hash in hexadecimal.
    pub hash: String,
}

/// The index of a file of packed weights.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedIndex {
    /// The model's (first) file, for people.
    #[serde(default)]
    pub model: String,
    /// The types of the weights, for people.
    #[serde(default)]
    pub types: String,
    /// The weights.
    pub entries: Vec<PackedEntry>,
    /// Tensors in which NaN or infinities were found during quantization.
    pub non_finite: BTreeSet<String>,
}

impl PackedEntry {
    /// Its bytes in the file; [`parse_packed`] checks that they are inside.
    pub fn range(&self) -> Option<Range<usize>> {
        let end = self.offset.checked_add(self.len)?;
        Some(usize::try_from(self.offset).ok()?..usize::try_from(end).ok()?)
    }
}

/// Reads a file's index. All entries are inside the file, between head and index.
///
/// # Errors
/// Why the file is unusable.
pub fn parse_packed(bytes: &[u8]) -> Result<PackedIndex, String> {
    let head = bytes.get(..HEAD).ok_or("it is cut short")?;
    let number = |at: usize| {
        let mut b = [0; 8];
        b.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(b)
    };
    if head[..8] != *MAGIC || head[8..12] != VERSION.to_le_bytes() {
        return Err("it is of another kind or version".into());
    }
    let (offset, len) = (number(16), number(24));
    if offset < HEAD as u64 || offset.checked_add(len) != Some(bytes.len() as u64) {
        return Err("its length is not what it says".into());
    }
    let text = bytes.get(offset as usize..).ok_or("its length is not what it says")?;
    if blake3::hash(text).as_bytes() != &head[32..64] {
        return Err("its index is not what was written".into());
    }
    let index: PackedIndex = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let inside = |e: &PackedEntry| {
        e.offset >= HEAD as u64 && e.offset.checked_add(e.len).is_some_and(|end| end <= offset)
    };
    if !index.entries.iter().all(inside) {
        return Err("a weight lies outside of it".into());
    }
    Ok(index)
}

/// The head of a file whose index is at `offset`.
pub(crate) fn head(offset: u64, index: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD);
    head.extend_from_slice(MAGIC);
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(&offset.to_le_bytes());
    head.extend_from_slice(&(index.len() as u64).to_le_bytes());
    head.extend_from_slice(blake3::hash(index).as_bytes());
    head
}

/// A mapped file of packed weights.
pub(crate) struct Found {
    pub map: Arc<FileMap>,
    pub index: PackedIndex,
    by_name: HashMap<(String, String), usize>,
}

impl Found {
    /// Maps a file and reads its index. The error is the reason why it is unusable.
    pub fn read(path: &Path) -> Result<Found, String> {
        let map = map_file(path).map_err(|e| e.to_string())?;
        let index = parse_packed(map.as_ref())?;
        let names = index.entries.iter().map(|e| (e.name.clone(), e.layout.clone()));
        let by_name = names.zip(0..).collect();
        Ok(Found { map: Arc::new(map), index, by_name })
    }

    pub fn entry(&self, name: &str, layout: &str) -> Option<&PackedEntry> {
        let at = self.by_name.get(&(name.to_string(), layout.to_string()))?;
        self.index.entries.get(*at)
    }

    pub fn bytes(&self, entry: &PackedEntry) -> Option<&[u8]> {
        self.map.as_ref().as_ref().get(entry.range()?)
    }

    /// Checks every weight. The error is the name of the first damaged one.
    pub fn verify(&self) -> Result<(), String> {
        for e in &self.index.entries {
            let bytes = self.bytes(e).unwrap_or_default();
            let same = hash::of_bytes(bytes).to_hex().as_str() == e.hash;
            self.map.release(bytes);
            if !same {
                return Err(format!("weight {} is not what was written", e.name));
            }
        }
        Ok(())
    }
}
