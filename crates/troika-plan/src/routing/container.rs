//! Files of numbers: a magic, a version, a header of JSON, little-endian numbers, and a digest of all
//! of it.

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;
use troika_model::spec::ModelSpec;

use crate::identity::ModelId;
use crate::json::fault;

/// Bytes of the digest at the end.
const DIGEST: usize = 16;
/// Bytes before the header: magic, version and the header's length.
const FIXED: usize = 16;

/// Why a routing trace or predictor cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct RoutingFileError(String);

/// A kind of file.
pub(super) struct FileKind {
    /// Its first bytes.
    pub magic: [u8; 8],
    /// Its version.
    pub version: u32,
    /// What it is, in errors.
    pub what: &'static str,
}

impl FileKind {
    /// The bytes of a file.
    pub fn bytes(&self, header: &impl Serialize, numbers: &[u8]) -> Vec<u8> {
        // Numbers and names only: nothing in it can fail.
        let header = serde_json::to_vec(header).unwrap_or_default();
        let length = u32::try_from(header.len()).unwrap_or(u32::MAX);
        let mut all = self.magic.to_vec();
        all.extend(self.version.to_le_bytes());
        all.extend(length.to_le_bytes());
        all.extend(header);
        all.extend(numbers);
        let digest = blake3::hash(&all);
        all.extend(&digest.as_bytes()[..DIGEST]);
        all
    }

    /// The header, and the bytes of the numbers: as many as `needed` says for this header.
    pub fn read<'a, H: DeserializeOwned>(
        &self,
        bytes: &'a [u8],
        needed: impl Fn(&H) -> Option<usize>,
    ) -> Result<(H, &'a [u8]), RoutingFileError> {
        let (what, size) = (self.what, bytes.len());
        let truncated = |needed: usize| {
            let why = format!("the {what} is cut short: it has {size} bytes of {needed}");
            RoutingFileError(format!("{why}; make it again"))
        };
        if !bytes.starts_with(&self.magic) {
            return Err(RoutingFileError(format!("it is no {what}")));
        }
        let word = |at: usize| {
            let word = bytes.get(at..at + 4).and_then(|word| word.first_chunk());
            word.map(|word| u32::from_le_bytes(*word)).ok_or_else(|| truncated(FIXED + DIGEST))
        };
        let (found, known) = (word(8)?, self.version);
        if found != known {
            let why = format!("it is a {what} of version {found}, and this build reads {known}");
            return Err(RoutingFileError(format!("{why}; make it again")));
        }
        let header_end = FIXED.saturating_add(word(12)? as usize);
        let header = bytes.get(FIXED..header_end);
        let header = header.ok_or_else(|| truncated(header_end.saturating_add(DIGEST)))?;
        let header: H = serde_json::from_slice(header).map_err(|e| self.damaged(fault(&e)))?;
        let needed = needed(&header).and_then(|n| n.checked_add(header_end + DIGEST));
        let needed = needed.ok_or_else(|| self.damaged("its sizes are beyond memory"))?;
        if size < needed {
            return Err(truncated(needed));
        }
        let (content, digest) = bytes.split_at(needed - DIGEST);
        if blake3::hash(content).as_bytes()[..DIGEST] != *digest {
            return Err(self.damaged("its digest is another"));
        }
        Ok((header, &content[header_end..]))
    }

    /// A file with a header or numbers that cannot be.
    pub fn damaged(&self, why: impl Display) -> RoutingFileError {
        RoutingFileError(format!("the {} is damaged: {why}; make it again", self.what))
    }

    /// A file that has something else than the model.
    pub fn foreign(&self, has: impl Display, needed: impl Display) -> RoutingFileError {
        let what = self.what;
        RoutingFileError(format!(
            "the {what} {has}, and the model {needed}; make one with this model"
        ))
    }

    /// Checks that a file is of a model.
    pub fn check_model(&self, found: &ModelId, spec: &ModelSpec) -> Result<(), RoutingFileError> {
        let needed = ModelId::of(spec);
        if *found == needed {
            return Ok(());
        }
        Err(self.foreign(format!("is of {found}"), format!("is {needed}")))
    }

    /// Checks that a model has a layer with this many experts, and that a token takes `top_k` of
    /// them.
    pub fn check_layer(
        &self,
        spec: &ModelSpec,
        layer: usize,
        experts: usize,
        top_k: usize,
    ) -> Result<(), RoutingFileError> {
        let words =
            |experts: usize, top_k: usize| format!("{top_k} of {experts} experts in layer {layer}");
        let needed = match spec.layers.get(layer).and_then(|l| l.moe()) {
            Some(moe) if (moe.experts, moe.top_k) == (experts, top_k) => return Ok(()),
            Some(moe) => words(moe.experts, moe.top_k),
            None => format!("has no experts in layer {layer}"),
        };
        Err(self.foreign(format!("has {}", words(experts, top_k)), needed))
    }
}
