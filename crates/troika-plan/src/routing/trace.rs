//! Recorded routing: the chosen experts of each token.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use troika_model::spec::ModelSpec;

use super::container::{FileKind, RoutingFileError};
use super::expert_use::ExpertUse;
use crate::identity::ModelId;

const FILE: FileKind = FileKind { magic: *b"TROIKART", version: 1, what: "routing trace" };

/// The routing of some texts. A file's header is this as JSON, without the chosen experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoutingTrace {
    /// The model.
    pub model: ModelId,
    /// Tokens of each sequence: a text is read in windows that do not see each other.
    pub sequences: Vec<usize>,
    /// The layers that have experts, in order.
    pub layers: Vec<LayerRouting>,
}

/// The routing of a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRouting {
    /// The layer's number in the model.
    pub layer: usize,
    /// Experts.
    pub experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// The chosen experts. The experts of a token lie side by side.
    #[serde(skip)]
    pub ids: Vec<u16>,
}

impl LayerRouting {
    /// The experts of a token, in the router's order.
    pub fn of_token(&self, token: usize) -> &[u16] {
        self.ids.get(token * self.top_k..(token + 1) * self.top_k).unwrap_or_default()
    }

    /// How often each expert was chosen by some of the tokens.
    pub fn counts(&self, tokens: Range<usize>) -> ExpertUse {
        let mut counts = vec![0.0; self.experts];
        let ids = self.ids.get(tokens.start * self.top_k..tokens.end * self.top_k);
        for id in ids.unwrap_or_default() {
            if let Some(count) = counts.get_mut(usize::from(*id)) {
                *count += 1.0;
            }
        }
        ExpertUse { layer: self.layer, counts }
    }
}

impl RoutingTrace {
    /// An empty trace of a model: its layers that have experts.
    pub fn new(spec: &ModelSpec) -> RoutingTrace {
        let layers = spec.layers.iter().enumerate().filter_map(|(layer, l)| {
            let moe = l.moe()?;
            Some(LayerRouting { layer, experts: moe.experts, top_k: moe.top_k, ids: Vec::new() })
        });
        RoutingTrace { model: ModelId::of(spec), sequences: Vec::new(), layers: layers.collect() }
    }

    /// Tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.sequences.iter().sum()
    }

    /// The range of each sequence's tokens.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.sequences.iter().scan(0, |at, tokens| {
            let start = *at;
            *at += tokens;
            Some(start..*at)
        })
    }

    /// How often the experts of each layer were chosen by some of the tokens.
    pub fn counts(&self, tokens: Range<usize>) -> Vec<ExpertUse> {
        self.layers.iter().map(|layer| layer.counts(tokens.clone())).collect()
    }

    /// Whether a file's bytes begin as a routing trace does.
    pub fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(&FILE.magic)
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// The bytes are not a routing trace or only a part of one, or have experts that the layer
    /// lacks.
    pub fn from_bytes(bytes: &[u8]) -> Result<RoutingTrace, RoutingFileError> {
        let (mut trace, mut numbers) = FILE.read(bytes, RoutingTrace::id_bytes)?;
        let tokens = trace.tokens();
        for layer in &mut trace.layers {
            let (own, rest) = numbers.split_at(2 * tokens * layer.top_k);
            layer.ids = own.as_chunks().0.iter().map(|id| u16::from_le_bytes(*id)).collect();
            numbers = rest;
            if let Some(id) = layer.ids.iter().find(|id| usize::from(**id) >= layer.experts) {
                let LayerRouting { layer, experts, .. } = layer;
                let why = format!("it has expert {id} in layer {layer} of {experts} experts");
                return Err(FILE.damaged(why));
            }
        }
        Ok(trace)
    }

    /// Bytes of the chosen experts by the header; `None` if no memory could hold them.
    fn id_bytes(&self) -> Option<usize> {
        let tokens = self.sequences.iter().try_fold(0_usize, |sum, n| sum.checked_add(*n))?;
        self.layers.iter().try_fold(0_usize, |sum, layer| {
            sum.checked_add(tokens.checked_mul(layer.top_k)?.checked_mul(2)?)
        })
    }

    /// A file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let ids = self.layers.iter().flat_map(|layer| &layer.ids);
        let numbers: Vec<u8> = ids.flat_map(|id| id.to_le_bytes()).collect();
        FILE.bytes(self, &numbers)
    }

    /// Checks that it is of a model.
    ///
    /// # Errors
    /// It is of another one.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), RoutingFileError> {
        FILE.check_model(&self.model, spec)?;
        self.layers.iter().try_for_each(|l| FILE.check_layer(spec, l.layer, l.experts, l.top_k))
    }
}
