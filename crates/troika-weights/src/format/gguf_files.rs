//! Memory-mapped GGUF files, including split models.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use troika_model::spec::{GgufMeta, GgufValue};

use crate::error::WeightError;
use crate::format::file_map::{FileMap, damaged, map_file, not_a_model};
use crate::format::gguf::{foreign, parse};
use crate::format::mapped::MappedFiles;

/// Opens a mapped file that is not split.
pub(crate) fn of(map: FileMap) -> Result<(MappedFiles, GgufMeta), WeightError> {
    let mut all = MappedFiles::new(map.path().display().to_string());
    let meta = add(&mut all, map)?;
    Ok((all, meta))
}

/// Opens a file and, if it is the first of several parts, the others.
pub(crate) fn open(path: &Path) -> Result<(MappedFiles, GgufMeta), WeightError> {
    let (mut all, meta) = of(map_file(path)?)?;
    let number = |meta: &GgufMeta, key: &str| meta.get(key).and_then(GgufValue::as_u64);
    let parts = number(&meta, "split.count").unwrap_or(1);
    if parts <= 1 {
        return Ok((all, meta));
    }
    if let Some(this @ 1..) = number(&meta, "split.no") {
        let why = format!("it is part {} of {parts}, give the first part", this.saturating_add(1));
        return Err(not_a_model(path, why));
    }
    for part in 2..=parts {
        let next = part_path(path, part, parts).ok_or_else(|| {
            let why = format!("it is the first of {parts} parts, but not named");
            damaged(path, format!("{why} NAME-00001-of-{parts:05}.gguf"))
        })?;
        let head = add(&mut all, map_file(&next)?)?;
        let says = (number(&head, "split.no"), number(&head, "split.count"));
        if says != (Some(part - 1), Some(parts)) {
            return Err(damaged(&next, format!("it is not part {part} of {parts}")));
        }
    }
    let found = all.count();
    match number(&meta, "split.tensors.count").filter(|&n| n != found as u64) {
        Some(n) => Err(damaged(path, format!("its parts have {found} tensors, not {n}"))),
        None => Ok((all, meta)),
    }
}

fn add(all: &mut MappedFiles, map: FileMap) -> Result<GgufMeta, WeightError> {
    if let Some(why) = foreign(map.as_ref()) {
        let file = map.path().display().to_string();
        return Err(WeightError::Unsupported { file, why });
    }
    let header = parse(map.as_ref()).map_err(|why| damaged(map.path(), why))?;
    // The header was copied, and weights are read when needed.
    map.release(map.as_ref());
    all.add_file(Arc::new(map));
    for t in header.tensors {
        all.add(t.name, t.dtype, t.shape, t.range)?;
    }
    Ok(header.meta)
}

/// The path of another part of a split file.
fn part_path(first: &Path, part: u64, parts: u64) -> Option<PathBuf> {
    let name = first.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("-00001-of-{parts:05}.gguf"))?;
    Some(first.with_file_name(format!("{stem}-{part:05}-of-{parts:05}.gguf")))
}
