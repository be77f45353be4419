//! Subgraphs: values, weights and ops.

use serde::{Deserialize, Serialize};

use crate::dtype::DType;
use crate::op::{Experts, Op};
use crate::shape::Shape;
use crate::weight::{WeightDecl, WeightRef};

/// Index of a value in [`Subgraph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ValueId(pub u32);

/// A value that flows between ops.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// The name in errors and traces.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// F32 or I32; caches and the operands of [`Op::Convert`] also F16 or BF16.
    pub dtype: DType,
}

impl Value {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_size(self.shape.row_len())
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

/// A static subgraph, the input of compiling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subgraph {
    /// The name in traces and reports.
    pub name: String,
    /// All values.
    pub values: Vec<Value>,
    /// Values bound by the caller, in binding order.
    pub inputs: Vec<ValueId>,
    /// Values bound by the caller that persist between runs and may be written (KV caches).
    pub states: Vec<ValueId>,
    /// Values returned to the caller, in binding order.
    pub outputs: Vec<ValueId>,
    /// Weights.
    pub weights: Vec<WeightDecl>,
    /// Ops in execution order.
    pub nodes: Vec<Node>,
}

impl Subgraph {
    /// Its op of all experts of a layer, if there is one.
    pub fn experts(&self) -> Option<&Experts> {
        self.nodes.iter().find_map(|node| match &node.op {
            Op::Experts(experts) => Some(experts),
            _ => None,
        })
    }

    /// The value behind an id.
    ///
    /// # Panics
    /// If the id is not from this subgraph; verified subgraphs contain no such id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// The weight behind a reference.
    ///
    /// # Panics
    /// If the reference is not from this subgraph; verified subgraphs contain no such reference.
    pub fn weight(&self, w: WeightRef) -> &WeightDecl {
        &self.weights[w.0 as usize]
    }

    /// Whether both can share code: they have the same ops on values and weights of the same
    /// shapes. Names may differ, and so may the rows or columns of stored weights that they read,
    /// and which slice of experts they compute.
    pub fn same_code(&self, other: &Subgraph) -> bool {
        let weight = |w: &WeightDecl| (w.rows, w.cols, w.dtype);
        let alike = |(a, b): (&Value, &Value)| (&a.shape, a.dtype) == (&b.shape, b.dtype);
        self.values.len() == other.values.len()
            && self.values.iter().zip(&other.values).all(alike)
            && self.weights.iter().map(weight).eq(other.weights.iter().map(weight))
            && (&self.inputs, &self.states, &self.outputs)
                == (&other.inputs, &other.states, &other.outputs)
            && self.nodes == other.nodes
    }

    /// The most rows any input can have.
    pub fn max_rows(&self) -> usize {
        self.inputs.iter().map(|&i| self.value(i).shape.max_rows()).max().unwrap_or(0)
    }
}
