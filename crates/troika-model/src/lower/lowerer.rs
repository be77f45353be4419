//! State while a model is lowered: the segments so far, and the values between them.

use std::collections::BTreeMap;

use troika_graph::{DType, StateKind};

use super::{Edge, EdgeId, LowerOptions, Segment, StateDecl, StateId, WeightShapes};
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
    pub segments: Vec<Segment>,
    pub edges: Vec<Edge>,
    pub states: Vec<StateDecl>,
    pub page_groups: Vec<StateKind>,
    /// Keys and values of layers that attend.
    pub kv: BTreeMap<usize, KvEdges>,
}

impl<'a> Lowerer<'a> {
    /// Starts without segments.
    pub fn new(spec: &'a ModelSpec, weights: WeightShapes<'a>, options: LowerOptions) -> Self {
        Lowerer {
            spec,
            options,
            weights,
            segments: Vec::new(),
            edges: Vec::new(),
            states: Vec::new(),
            page_groups: Vec::new(),
            kv: BTreeMap::new(),
        }
    }

    pub fn edge(&mut self, name: String, cols: usize, dtype: DType) -> EdgeId {
        self.edges.push(Edge { name, cols, dtype });
        EdgeId(self.edges.len() - 1)
    }

    pub fn state(&mut self, name: String, width: usize, page_group: usize) -> StateId {
        let dtype = match self.page_groups[page_group] {
            StateKind::Paged(_) => self.options.kv_dtype,
            StateKind::Fixed => DType::F32,
        };
        self.states.push(StateDecl { name, width, dtype, page_group });
        StateId(self.states.len() - 1)
    }

    /// The page group of a kind of state, added if it is new.
    pub fn page_group(&mut self, kind: StateKind) -> usize {
        if let Some(i) = self.page_groups.iter().position(|&g| g == kind) {
            return i;
        }
        self.page_groups.push(kind);
        self.page_groups.len() - 1
    }
}
