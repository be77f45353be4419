//! State while a model is lowered: the segments so far, and the values between them.

use std::collections::BTreeMap;

use troika_graph::{DType, StateKind};

use super::{Edge, EdgeId, LowerOptions, Lowered, StateDecl, StateId, WeightShapes};
use crate::spec::{Layer, ModelSpec};

/// A layer and its index.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub index: usize,
    pub layer: &'a Layer,
}

impl At<'_> {
    /// The name of what belongs to it.
    pub fn name(&self, what: &str) -> String {
        format!("layer {} {what}", self.index)
    }
}

/// Keys and values, unless these are a part of the keys.
pub(super) type KvEdges = (EdgeId, Option<EdgeId>);

pub(super) struct Lowerer<'a> {
    pub spec: &'a ModelSpec,
    pub options: LowerOptions,
    pub weights: WeightShapes<'a>,
    /// What is made so far.
    pub lowered: Lowered,
    /// Keys and values of layers that attend.
    pub kv: BTreeMap<usize, KvEdges>,
}

impl Lowerer<'_> {
    pub fn edge(&mut self, name: String, cols: usize, dtype: DType) -> EdgeId {
        self.lowered.edges.push(Edge { name, cols, dtype });
        EdgeId(self.lowered.edges.len() - 1)
    }

    pub fn state(&mut self, name: String, width: usize, page_group: usize) -> StateId {
        let dtype = match self.lowered.page_groups[page_group] {
            StateKind::Paged(_) => self.options.kv_dtype,
            StateKind::Fixed => DType::F32,
        };
        self.lowered.states.push(StateDecl { name, width, dtype, page_group });
        StateId(self.lowered.states.len() - 1)
    }

    /// The page group of a kind of state, added if it is new.
    pub fn page_group(&mut self, kind: StateKind) -> usize {
        let groups = &mut self.lowered.page_groups;
        groups.iter().position(|&g| g == kind).unwrap_or_else(|| {
            groups.push(kind);
            groups.len() - 1
        })
    }
}
