//! The file of a package's weights: a header, then blobs, each behind a record of its type and place
//! (coremltools, `MILBlob/Blob/StorageFormat.hpp`, version 2).

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

use super::proto::DataType;

/// The size of the header and of records, and what both are aligned to.
const RECORD: usize = 64;
const SENTINEL: u32 = 0xDEAD_BEEF;
const VERSION: u32 = 2;

/// The file on its way. Each blob is written once, however many functions read it.
pub(crate) struct Blobs {
    file: BufWriter<File>,
    at: u64,
    count: u32,
    /// Where the record of each begins.
    known: HashMap<String, u64>,
    /// Of all that was written.
    pub hasher: blake3::Hasher,
    /// The first error.
    failed: std::io::Result<()>,
}

impl Blobs {
    pub fn create(path: &Path) -> std::io::Result<Blobs> {
        let mut file = BufWriter::new(File::create_new(path)?);
        file.write_all(&[0; RECORD])?;
        let (at, known, hasher) = (RECORD as u64, HashMap::new(), blake3::Hasher::new());
        Ok(Blobs { file, at, count: 0, known, hasher, failed: Ok(()) })
    }

    /// Where a blob's record begins, if it is there.
    pub fn known(&self, key: &str) -> Option<u64> {
        self.known.get(key).copied()
    }

    /// Adds a blob of so many elements. Returns where its record begins.
    pub fn add(&mut self, key: String, element: DataType, count: usize, bytes: &[u8]) -> u64 {
        let record = self.at;
        let mut head = [0; RECORD];
        head[..4].copy_from_slice(&SENTINEL.to_le_bytes());
        head[4..8].copy_from_slice(&blob_type(element).to_le_bytes());
        head[8..16].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        head[16..24].copy_from_slice(&(record + RECORD as u64).to_le_bytes());
        // Bits of the last byte that hold nothing.
        let is_half = matches!(element, DataType::I4 | DataType::U4) && !count.is_multiple_of(2);
        head[24] = if is_half { 4 } else { 0 };
        let behind = bytes.len().next_multiple_of(RECORD) - bytes.len();
        self.hasher.update(&head).update(bytes);
        if self.failed.is_ok() {
            let all = [&head[..], bytes, &[0; RECORD][..behind]];
            self.failed = all.iter().try_for_each(|part| self.file.write_all(part));
        }
        self.at += (RECORD + bytes.len() + behind) as u64;
        self.count += 1;
        self.known.insert(key, record);
        record
    }

    /// Ends the file. Returns its bytes.
    pub fn finish(mut self) -> std::io::Result<u64> {
        self.failed?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&self.count.to_le_bytes())?;
        self.file.write_all(&VERSION.to_le_bytes())?;
        self.file.into_inner().map_err(|e| e.into_error())?.sync_all()?;
        Ok(self.at)
    }
}

/// The number of a type of elements in records.
fn blob_type(element: DataType) -> u32 {
    match element {
        DataType::F16 => 1,
        DataType::I8 => 4,
        DataType::I4 => 8,
        DataType::U4 => 11,
        // Not written: texts and truths are small.
        DataType::F32 | DataType::Bool | DataType::String | DataType::I32 => 2,
    }
}
