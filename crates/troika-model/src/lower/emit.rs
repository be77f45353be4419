//! Builds a segment: a subgraph builder that knows the model's weights and edges.

use troika_graph::{
    ActivationFormat, DType, Dim, Op, Shape, Subgraph, SubgraphBuilder, ValueId, WeightDecl,
    WeightRef,
};

use super::lowerer::Lowerer;
use super::{EdgeId, LowerError, Result, Segment, SegmentKind, StateId};
use crate::spec::{Key, Norm, WeightRole};

pub(super) struct Emit<'l, 'a> {
    pub lowerer: &'l mut Lowerer<'a>,
    pub graph: SubgraphBuilder,
    /// What it becomes, without its graph.
    segment: Segment,
}

/// The name of what belongs to a layer, if it does.
fn in_layer(layer: Option<usize>, name: &str) -> String {
    layer.map_or_else(|| name.to_string(), |l| format!("layer {l} {name}"))
}

impl<'l, 'a> Emit<'l, 'a> {
    pub fn new(lowerer: &'l mut Lowerer<'a>, kind: SegmentKind, layer: Option<usize>) -> Self {
        let graph = SubgraphBuilder::new(in_layer(layer, kind.name()), lowerer.options.max_rows);
        let (inputs, states, outputs) = (Vec::new(), Vec::new(), Vec::new());
        let segment = Segment { kind, layer, graph: Subgraph::default(), inputs, states, outputs };
        Emit { lowerer, graph, segment }
    }

    pub fn input(&mut self, edge: EdgeId) -> ValueId {
        self.segment.inputs.push(edge);
        let e = &self.lowerer.lowered.edges[edge.0];
        self.graph.input(&e.name, e.cols, e.dtype)
    }

    pub fn state(&mut self, state: StateId) -> ValueId {
        self.segment.states.push(state);
        let s = &self.lowerer.lowered.states[state.0];
        let shape = Shape(vec![Dim::KvLen(self.lowerer.options.max_kv), Dim::Fixed(s.width)]);
        self.graph.state(&s.name, shape, s.dtype)
    }

    /// Passes a value to later segments.
    pub fn output(&mut self, name: &str, value: ValueId, dtype: DType) -> EdgeId {
        let (name, cols) = (in_layer(self.segment.layer, name), self.graph.cols(value));
        let edge = self.lowerer.edge(name, cols, dtype);
        self.graph.output(value);
        self.segment.outputs.push(edge);
        edge
    }

    /// Ends the segment with a value for later ones.
    pub fn pass_on(mut self, name: &str, value: ValueId) -> Result<EdgeId> {
        let edge = self.output(name, value, DType::F32);
        self.finish()?;
        Ok(edge)
    }

    fn key(&self, role: WeightRole, index: Option<usize>) -> Key {
        Key { role, layer: self.segment.layer, index }
    }

    pub fn weight_key(&mut self, key: Key) -> Result<WeightRef> {
        let shape = (self.lowerer.weights)(key).ok_or_else(|| {
            let fault = "this is a fault in the family's tensor names";
            LowerError::Spec(format!("weight {key} was not bound; {fault}"))
        })?;
        let decl = WeightDecl::whole(key.to_string().into(), shape.rows, shape.cols, shape.dtype);
        Ok(self.graph.weight(decl))
    }

    pub fn weight(&mut self, role: WeightRole) -> Result<WeightRef> {
        self.weight_key(self.key(role, None))
    }

    pub fn weight_if(&mut self, on: bool, role: WeightRole) -> Result<Option<WeightRef>> {
        on.then(|| self.weight(role)).transpose()
    }

    /// The weights with indices `0..n`, or none if `on` is false.
    pub fn weights(&mut self, on: bool, n: usize, role: WeightRole) -> Result<Vec<WeightRef>> {
        let n = if on { n } else { 0 };
        (0..n).map(|i| self.weight_key(self.key(role, Some(i)))).collect()
    }

    pub fn linear(&mut self, x: ValueId, role: WeightRole, bias: bool) -> Result<ValueId> {
        let weight = self.weight(role)?;
        self.product(x, weight, bias.then_some(role.bias()), self.activations(&[weight]))
    }

    pub fn product(
        &mut self,
        x: ValueId,
        weight: WeightRef,
        bias: Option<WeightRole>,
        activations: ActivationFormat,
    ) -> Result<ValueId> {
        let bias = bias.map(|b| self.weight(b)).transpose()?;
        let rows = self.graph.weight_decl(weight).rows;
        let op = Op::Linear { weight, bias, activations, form: None };
        Ok(self.graph.op("linear", op, &[x], rows))
    }

    /// A product in f32, whatever the weight's type.
    pub fn float_linear(&mut self, x: ValueId, role: WeightRole, bias: bool) -> Result<ValueId> {
        let weight = self.weight(role)?;
        self.product(x, weight, bias.then_some(role.bias()), ActivationFormat::F32)
    }

    /// The most compact activation format for products with these weights, if they have one type. A
    /// placement may restrict it later.
    pub fn activations(&self, weights: &[WeightRef]) -> ActivationFormat {
        let dtype = |w: &WeightRef| self.graph.weight_decl(*w).dtype;
        let one_type = weights.windows(2).all(|w| dtype(&w[0]) == dtype(&w[1]));
        match weights.first().map(dtype) {
            Some(d) if one_type && d.is_quantized() => ActivationFormat::INT8,
            Some(DType::BF16) if one_type => ActivationFormat::Bf16,
            _ => ActivationFormat::F32,
        }
    }

    /// Normalises groups of `group` columns (the whole width when 0).
    pub fn norm(
        &mut self,
        x: ValueId,
        norm: Norm,
        role: WeightRole,
        group: usize,
    ) -> Result<ValueId> {
        let cols = self.graph.cols(x);
        let group = if group == 0 { cols } else { group };
        let weight = self.weight(role)?;
        let op = match norm {
            Norm::Rms { eps, offset } => Op::RmsNorm { weight: Some(weight), eps, offset, group },
            Norm::Layer { eps, bias } => {
                Op::LayerNorm { weight, bias: self.weight_if(bias, role.bias())?, eps, group }
            }
        };
        Ok(self.graph.op("norm", op, &[x], cols))
    }

    pub fn norm_if(&mut self, x: ValueId, norm: Option<Norm>, role: WeightRole) -> Result<ValueId> {
        norm.map_or(Ok(x), |n| self.norm(x, n, role, 0))
    }

    /// `a + scale * b`.
    pub fn add(&mut self, a: ValueId, b: ValueId, scale: f32) -> ValueId {
        let b = self.scaled(b, scale);
        let cols = self.graph.cols(a);
        self.graph.op("sum", Op::Add, &[a, b], cols)
    }

    /// `factor * x`.
    pub fn scaled(&mut self, x: ValueId, factor: f32) -> ValueId {
        let cols = self.graph.cols(x);
        if factor == 1.0 { x } else { self.graph.op("scaled", Op::Scale { factor }, &[x], cols) }
    }

    pub fn finish(self) -> Result<()> {
        let graph = self.graph.finish()?;
        self.lowerer.lowered.segments.push(Segment { graph, ..self.segment });
        Ok(())
    }
}
