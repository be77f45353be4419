//! Builds subgraphs.

use crate::dtype::DType;
use crate::op::{Attention, Op, Router};
use crate::shape::Shape;
use crate::subgraph::{Node, Subgraph, Value, ValueId};
use crate::verify::{GraphError, verify};
use crate::weight::{WeightDecl, WeightRef};

/// Builds a subgraph op by op and verifies it at the end.
#[derive(Debug)]
pub struct SubgraphBuilder {
    graph: Subgraph,
    max_rows: usize,
}

impl SubgraphBuilder {
    /// An empty subgraph whose values have at most `max_rows` rows.
    pub fn new(name: impl Into<String>, max_rows: usize) -> Self {
        let graph = Subgraph { name: name.into(), ..Subgraph::default() };
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

    /// The declaration of a weight in this builder.
    pub fn weight_decl(&self, w: WeightRef) -> &WeightDecl {
        self.graph.weight(w)
    }

    /// Number of columns of a value.
    pub fn cols(&self, v: ValueId) -> usize {
        self.graph.value(v).shape.row_len()
    }

    /// Adds an op with one f32 output of `cols` columns.
    pub fn op(&mut self, name: &str, op: Op, inputs: &[ValueId], cols: usize) -> ValueId {
        let out = self.push_value(name, Shape::rows(self.max_rows, cols), DType::F32);
        self.node(op, inputs, &[], &[out]);
        out
    }

    /// Adds a conversion to another type.
    pub fn convert(&mut self, name: &str, x: ValueId, to: DType) -> ValueId {
        let out = self.push_value(name, self.graph.value(x).shape.clone(), to);
        self.node(Op::Convert, &[x], &[], &[out]);
        out
    }

    /// Adds a router: ids (i32) and weights (f32).
    pub fn router(&mut self, op: Router, logits: ValueId) -> (ValueId, ValueId) {
        let ids = self.push_value("expert_ids", Shape::rows(self.max_rows, op.top_k), DType::I32);
        let w = self.push_value("expert_weights", Shape::rows(self.max_rows, op.top_k), DType::F32);
        self.node(Op::Router(op), &[logits], &[], &[ids, w]);
        (ids, w)
    }

    /// Adds an attention over the given cache states.
    pub fn attention(&mut self, op: Attention, q: ValueId, states: &[ValueId]) -> ValueId {
        let cols = op.heads * op.v_dim;
        let out = self.push_value("attn", Shape::rows(self.max_rows, cols), DType::F32);
        self.node(Op::Attention(op), &[q], states, &[out]);
        out
    }

    /// Adds an op with one state and one f32 output of `cols` columns.
    pub fn stateful(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[ValueId],
        state: ValueId,
        cols: usize,
    ) -> ValueId {
        let out = self.push_value(name, Shape::rows(self.max_rows, cols), DType::F32);
        self.node(op, inputs, &[state], &[out]);
        out
    }

    /// Adds a node whose outputs, if any, exist already.
    pub fn node(&mut self, op: Op, inputs: &[ValueId], states: &[ValueId], outputs: &[ValueId]) {
        let [inputs, states, outputs] = [inputs, states, outputs].map(<[ValueId]>::to_vec);
        self.graph.nodes.push(Node { op, inputs, states, outputs });
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
        verify(&self.graph)?;
        Ok(self.graph)
    }
}
