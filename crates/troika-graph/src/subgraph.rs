//! Subgraphs and their builder.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::DType;
use crate::op::Op;
use crate::shape::Shape;
use crate::verify::{self, GraphError};

/// Index of a value in [`Subgraph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// Index of a weight in [`Subgraph::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WeightRef(pub u32);

/// A value that flows between ops.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// For errors and traces.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// F32 or I32; caches also F16.
    pub dtype: DType,
}

/// The part of a stored weight that a subgraph reads. `first` and `of` count the stored weight's
/// rows or columns; how many are read, the declaration's own rows and columns say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WeightSlice {
    /// Some rows of a matrix, all its columns.
    Rows {
        /// The first row that is read.
        first: usize,
        /// Rows of the stored weight.
        of: usize,
    },
    /// Some columns of a vector, which is stored as one row.
    Cols {
        /// The first column that is read.
        first: usize,
        /// Columns of the stored weight.
        of: usize,
    },
}

/// A weight the subgraph needs, by its logical name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightDecl {
    /// Logical name in the weight store, such as `layers.3.attn_q`.
    pub name: Arc<str>,
    /// Output rows (1 for vectors).
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Type in the store.
    pub dtype: DType,
    /// Which part of the stored weight these rows and columns are; `None`: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<WeightSlice>,
}

impl WeightDecl {
    /// A whole weight.
    pub fn whole(name: Arc<str>, rows: usize, cols: usize, dtype: DType) -> WeightDecl {
        WeightDecl { name, rows, cols, dtype, slice: None }
    }

    /// Rows and columns of the weight in the store.
    pub fn stored(&self) -> (usize, usize) {
        match self.slice {
            None => (self.rows, self.cols),
            Some(WeightSlice::Rows { of, .. }) => (of, self.cols),
            Some(WeightSlice::Cols { of, .. }) => (self.rows, of),
        }
    }

    /// The rows that are read, of those in the store.
    pub fn stored_rows(&self) -> Range<usize> {
        match self.slice {
            Some(WeightSlice::Rows { first, .. }) => first..first.saturating_add(self.rows),
            _ => 0..self.rows,
        }
    }

    /// The columns that are read, of those in the store.
    pub fn stored_cols(&self) -> Range<usize> {
        match self.slice {
            Some(WeightSlice::Cols { first, .. }) => first..first.saturating_add(self.cols),
            _ => 0..self.cols,
        }
    }
}

/// One op with its operands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// Operands, in the op's order.
    pub inputs: Vec<ValueId>,
    /// States it reads or writes (caches).
    pub states: Vec<ValueId>,
    /// Results.
    pub outputs: Vec<ValueId>,
}

/// A static subgraph: what one executable is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subgraph {
    /// For traces and reports.
    pub name: String,
    /// All values.
    pub values: Vec<Value>,
    /// Values bound by the caller, in binding order.
    pub inputs: Vec<ValueId>,
    /// Values bound by the caller that persist between runs and may be written (KV caches).
    pub states: Vec<ValueId>,
    /// Values handed back, in binding order.
    pub outputs: Vec<ValueId>,
    /// Weights.
    pub weights: Vec<WeightDecl>,
    /// Ops in execution order.
    pub nodes: Vec<Node>,
}

impl Subgraph {
    /// The value behind an id.
    ///
    /// # Panics
    /// If the id is not of this subgraph; verified subgraphs hold none.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The weight behind a reference.
    ///
    /// # Panics
    /// If the reference is not of this subgraph; verified subgraphs hold none.
    pub fn weight(&self, w: WeightRef) -> &WeightDecl {
        &self.weights[w.0 as usize]
    }

    /// The most rows any input can have.
    pub fn max_rows(&self) -> usize {
        self.inputs.iter().map(|&i| self.value(i).shape.max_rows()).max().unwrap_or(0)
    }
}

/// Builds a subgraph op by op and verifies it at the end.
#[derive(Debug)]
pub struct SubgraphBuilder {
    graph: Subgraph,
    max_rows: usize,
}

impl SubgraphBuilder {
    /// An empty subgraph whose values have at most `max_rows` rows.
    pub fn new(name: impl Into<String>, max_rows: usize) -> Self {
        let graph = Subgraph {
            name: name.into(),
            values: Vec::new(),
            inputs: Vec::new(),
            states: Vec::new(),
            outputs: Vec::new(),
            weights: Vec::new(),
            nodes: Vec::new(),
        };
        SubgraphBuilder { graph, max_rows }
    }

    fn push_value(&mut self, name: &str, shape: Shape, dtype: DType) -> ValueId {
        self.graph.values.push(Value { name: name.to_string(), shape, dtype });
        ValueId(self.graph.values.len() as u32 - 1)
    }

    /// Adds an input of `cols` columns.
    pub fn input(&mut self, name: &str, cols: usize, dtype: DType) -> ValueId {
        let id = self.push_value(name, Shape::rows(self.max_rows, cols), dtype);
        self.graph.inputs.push(id);
        id
    }

    /// Adds a state of the given shape.
    pub fn state(&mut self, name: &str, shape: Shape, dtype: DType) -> ValueId {
        let id = self.push_value(name, shape, dtype);
        self.graph.states.push(id);
        id
    }

    /// Adds a weight.
    pub fn weight(&mut self, decl: WeightDecl) -> WeightRef {
        self.graph.weights.push(decl);
        WeightRef(self.graph.weights.len() as u32 - 1)
    }

    /// The declaration of a weight of this builder.
    pub fn weight_decl(&self, w: WeightRef) -> &WeightDecl {
        self.graph.weight(w)
    }

    /// Columns of a value.
    pub fn cols(&self, v: ValueId) -> usize {
        self.graph.value(v).shape.row_len()
    }

    /// Adds an op with one f32 output of `cols` columns.
    pub fn op(&mut self, name: &str, op: Op, inputs: &[ValueId], cols: usize) -> ValueId {
        let out = self.push_value(name, Shape::rows(self.max_rows, cols), DType::F32);
        self.node(op, inputs, &[], &[out]);
        out
    }

    /// Adds a router: ids (i32) and weights (f32).
    pub fn router(&mut self, op: crate::Router, logits: ValueId) -> (ValueId, ValueId) {
        let ids = self.push_value("expert_ids", Shape::rows(self.max_rows, op.top_k), DType::I32);
        let w = self.push_value("expert_weights", Shape::rows(self.max_rows, op.top_k), DType::F32);
        self.node(Op::Router(op), &[logits], &[], &[ids, w]);
        (ids, w)
    }

    /// Adds an attention over the given cache states.
    pub fn attention(&mut self, op: crate::Attention, q: ValueId, states: &[ValueId]) -> ValueId {
        let cols = op.heads * op.v_dim;
        let out = self.push_value("attn", Shape::rows(self.max_rows, cols), DType::F32);
        self.node(Op::Attention(op), &[q], states, &[out]);
        out
    }

    /// Adds a node whose outputs, if any, exist already.
    pub fn node(&mut self, op: Op, inputs: &[ValueId], states: &[ValueId], outputs: &[ValueId]) {
        self.graph.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            states: states.to_vec(),
            outputs: outputs.to_vec(),
        });
    }

    /// Marks a value as output.
    pub fn output(&mut self, v: ValueId) {
        self.graph.outputs.push(v);
    }

    /// Verifies and returns the subgraph.
    ///
    /// # Errors
    /// [`GraphError`] naming the op and value that do not fit.
    pub fn finish(self) -> Result<Subgraph, GraphError> {
        verify::verify(&self.graph)?;
        Ok(self.graph)
    }
}
