//! Each op as verbs.

use troika_graph::{Activation, DType, Node, Op, Rope, RopeStyle, ValueId, WeightRef};

use super::verb::{Result, Verb};
use super::{Emitter, GraphWriter};
use crate::rewrites::Rewrite;
use crate::rotation::Rotation;

impl<W: GraphWriter> Emitter<'_, W> {
    /// Adds an op.
    pub fn op(&mut self, node: &Node) -> Result<()> {
        let (&[out], [first, ..]) = (&node.outputs[..], &node.inputs[..]) else {
            return Err(self.wrong(format!("op {} has no input or output", node.op.name())));
        };
        let x = match &node.op {
            Op::Add | Op::RmsNorm { .. } | Op::LayerNorm { .. } => self.tensor(*first)?,
            _ => self.undivided(*first)?,
        };
        let cols = self.cols(*first);
        let second = |e: &mut Self| match node.inputs.get(1) {
            Some(id) => e.undivided(*id),
            None => Err(e.wrong(format!("op {} has one input", node.op.name()))),
        };
        let y = match &node.op {
            Op::Embed { table, scale } => self.embed(&x, *table, *scale)?,
            Op::RmsNorm { weight, eps, offset, group } => {
                let weight = weight.map(|w| self.vector(w, *offset)).transpose()?;
                let divided = self.model.is_divided(&x);
                let norm = |e: &mut Self, x: &str| e.rms(x, *eps, weight.as_deref(), divided);
                self.by_groups(&x, cols, *group, norm)
            }
            Op::LayerNorm { weight, bias, eps, group } => {
                let weight = self.vector(*weight, 0.0)?;
                let bias = bias.map(|b| self.vector(b, 0.0)).transpose()?;
                let divided = self.model.is_divided(&x);
                let norm = |e: &mut Self, x: &str| {
                    e.layer_norm(x, *eps, &weight, bias.as_deref(), divided)
                };
                self.by_groups(&x, cols, *group, norm)
            }
            Op::Linear { weight, bias, activations, .. } => {
                self.projection(&x, *weight, *bias, *activations)?
            }
            Op::HeadLinear(heads) => self.head_linear(&x, cols, heads)?,
            Op::Rope(rope) => self.rope(&x, *node.inputs.get(1).unwrap_or(first), cols, rope)?,
            Op::Activate(act) => self.activate(&x, *act),
            Op::Gate(act) => {
                let up = second(self)?;
                self.gate(&x, &up, *act)
            }
            Op::Add => self.sum(&x, *node.inputs.get(1).unwrap_or(first))?,
            Op::Scale { factor } => self.times(&x, *factor),
            Op::Clamp { limit } => self.clamp(&x, -limit, *limit),
            Op::SoftCap { cap } => self.soft_cap(&x, *cap),
            Op::Convert => {
                let to = self.value(out).dtype;
                self.one(Verb::Cast(to), &x)
            }
            Op::SigmoidGate => {
                let gate = second(self)?;
                self.sigmoid_gate(&x, &gate)
            }
            Op::SliceCols { group, start, len } => {
                let slice = |e: &mut Self, x: &str| e.slice(x, *start, start + len, 1);
                self.by_groups(&x, cols, *group, slice)
            }
            Op::ConcatCols { groups } => {
                let sides = [(x, cols), (second(self)?, self.cols(node.inputs[1]))];
                let parts = sides
                    .each_ref()
                    .map(|(x, cols)| self.reshape(x, &[self.rows, *groups, cols / groups]));
                let both = self.concat(&parts);
                self.reshape(&both, &[self.rows, sides[0].1 + sides[1].1])
            }
            Op::Attention(attention) => self.attention(&x, attention, node)?,
            Op::ExpertGroup(group) => self.expert_group(&x, group)?,
            Op::KvAppend(_)
            | Op::DecayingSum(_)
            | Op::DeltaRule(_)
            | Op::ShortConv(_)
            | Op::Mamba2(_)
            | Op::Rescale(_)
            | Op::Mix { .. }
            | Op::Router(_)
            | Op::Experts(_)
            | Op::Outliers { .. } => {
                return Err(self.wrong(format!("op {} is none of a static graph", node.op.name())));
            }
        };
        self.tensors.insert(out, y);
        Ok(())
    }

    pub(crate) fn one(&mut self, verb: Verb<'_>, x: &str) -> String {
        self.model.verb(verb, &[x])
    }

    pub(crate) fn two(&mut self, verb: Verb<'_>, a: &str, b: &str) -> String {
        self.model.verb(verb, &[a, b])
    }

    pub(super) fn times(&mut self, x: &str, factor: f32) -> String {
        let factor = self.model.floats(&[1], &[factor]);
        self.two(Verb::Mul, x, &factor)
    }

    pub(super) fn plus(&mut self, x: &str, term: f32) -> String {
        let term = self.model.floats(&[1], &[term]);
        self.two(Verb::Add, x, &term)
    }

    pub(super) fn clamp(&mut self, x: &str, low: f32, high: f32) -> String {
        self.one(Verb::Clamp { low, high }, x)
    }

    pub(crate) fn reshape(&mut self, x: &str, dims: &[usize]) -> String {
        let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
        self.viewed(x, &dims)
    }

    /// The same with other dimensions; -1: whatever is left for one.
    pub(super) fn viewed(&mut self, x: &str, dims: &[i64]) -> String {
        self.one(Verb::Reshape(dims), x)
    }

    pub(super) fn concat(&mut self, parts: &[impl AsRef<str>]) -> String {
        self.concat_along(parts, -1)
    }

    pub(super) fn concat_along(&mut self, parts: &[impl AsRef<str>], axis: i64) -> String {
        let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
        self.model.verb(Verb::Concat(axis), &parts)
    }

    pub(super) fn transposed(&mut self, x: &str, perm: &'static [i64]) -> String {
        self.one(Verb::Transpose(perm), x)
    }

    /// Some of the last dimension.
    pub(super) fn slice(&mut self, x: &str, from: usize, to: usize, step: usize) -> String {
        self.one(Verb::Slice { axis: -1, from, to, step }, x)
    }

    /// Some of the first dimension.
    pub(super) fn slice_rows(&mut self, x: &str, from: usize, to: usize) -> String {
        self.one(Verb::Slice { axis: 0, from, to, step: 1 }, x)
    }

    /// Works on each group of columns by itself.
    fn by_groups(
        &mut self,
        x: &str,
        cols: usize,
        group: usize,
        work: impl FnOnce(&mut Self, &str) -> String,
    ) -> String {
        if group == cols {
            return work(self, x);
        }
        let groups = self.reshape(x, &[self.rows, cols / group, group]);
        let done = work(self, &groups);
        self.viewed(&done, &[self.rows as i64, -1])
    }

    fn embed(&mut self, ids: &str, table: WeightRef, scale: f32) -> Result<String> {
        let rows = W::rows_of_table(self, table, ids)?;
        // Here the residual stream begins.
        let factor = scale / self.model.divisor().unwrap_or(1.0);
        let rows = if factor == 1.0 { rows } else { self.times(&rows, factor) };
        self.model.divided(&rows);
        Ok(rows)
    }

    /// A value as it is, where the residual stream is divided.
    fn undivided(&mut self, id: ValueId) -> Result<String> {
        let x = self.tensor(id)?;
        let by = self.model.divisor().filter(|_| self.model.is_divided(&x));
        Ok(by.map_or(x.clone(), |by| self.times(&x, by)))
    }

    /// A sum, which is divided if a side is.
    fn sum(&mut self, x: &str, other: ValueId) -> Result<String> {
        let mut sides = [x.to_string(), self.tensor(other)?];
        let by = self.model.divisor().unwrap_or(1.0);
        let divided = sides.each_ref().map(|side| self.model.is_divided(side));
        for (side, _) in
            sides.iter_mut().zip(divided).filter(|(_, is)| !is && divided.contains(&true))
        {
            *side = self.times(side, 1.0 / by);
        }
        let sum = self.two(Verb::Add, &sides[0], &sides[1]);
        if divided.contains(&true) {
            self.model.divided(&sum);
        }
        Ok(sum)
    }

    /// `x / sqrt(mean(x^2) + eps) * weight`.
    fn rms(&mut self, x: &str, eps: f32, weight: Option<&str>, divided: bool) -> String {
        let rewrites = self.options.rewrites;
        let (folds, scales) =
            (rewrites.has(Rewrite::FoldEpsilon), rewrites.has(Rewrite::ScaleNorms));
        // A scaled row has an epsilon of its own, which is no constant.
        let folds = folds && !scales;
        if let Some(weight) = weight.filter(|_| folds)
            && let Some(normed) = self.model.whole_norm(x, eps, weight)
        {
            return normed;
        }
        let by = self.model.divisor().filter(|_| divided).unwrap_or(1.0);
        let eps = if scales { eps } else { eps / (by * by) };
        let mut epsilon = self.model.floats(&[1], &[eps]);
        let mut x = x.to_string();
        if scales {
            let (sizes, one) = (self.one(Verb::Abs, &x), self.model.floats(&[1], &[1.0 / by]));
            let most = self.one(Verb::ReduceMax, &sizes);
            let mut most = self.two(Verb::Maximum, &most, &one);
            x = self.two(Verb::Div, &x, &most);
            if by != 1.0 {
                most = self.times(&most, by);
            }
            epsilon = self.two(Verb::Div, &epsilon, &most);
            epsilon = self.two(Verb::Div, &epsilon, &most);
        }
        let squares = match rewrites.has(Rewrite::PowToMul) {
            true => self.two(Verb::Mul, &x, &x),
            false => {
                let two = self.model.floats(&[], &[2.0]);
                self.two(Verb::Pow, &x, &two)
            }
        };
        let mean = self.one(Verb::ReduceMean, &squares);
        let normed = if folds {
            let inverse = self.one(Verb::Rsqrt(eps), &mean);
            self.two(Verb::Mul, &x, &inverse)
        } else {
            let above = self.two(Verb::Add, &mean, &epsilon);
            let root = self.one(Verb::Sqrt, &above);
            self.two(Verb::Div, &x, &root)
        };
        weight.map_or(normed.clone(), |w| self.two(Verb::Mul, &normed, w))
    }

    fn layer_norm(
        &mut self,
        x: &str,
        eps: f32,
        weight: &str,
        bias: Option<&str>,
        divided: bool,
    ) -> String {
        // The runtime's own operator is one that some providers lack.
        let mean = self.one(Verb::ReduceMean, x);
        let centered = self.two(Verb::Sub, x, &mean);
        let scaled = self.rms(&centered, eps, Some(weight), divided);
        bias.map_or(scaled.clone(), |bias| self.two(Verb::Add, &scaled, bias))
    }

    pub(super) fn soft_cap(&mut self, x: &str, cap: f32) -> String {
        let small = self.times(x, 1.0 / cap);
        let soft = self.one(Verb::Tanh, &small);
        self.times(&soft, cap)
    }

    fn sigmoid_gate(&mut self, x: &str, gate: &str) -> String {
        let open = self.one(Verb::Sigmoid, gate);
        self.two(Verb::Mul, x, &open)
    }

    fn activate(&mut self, x: &str, act: Activation) -> String {
        match act {
            Activation::Silu => self.sigmoid_gate(x, x),
            Activation::Gelu => self.one(Verb::Gelu, x),
            Activation::GeluTanh => self.one(Verb::GeluTanh, x),
            Activation::Relu => self.one(Verb::Relu, x),
            Activation::ReluSquared => {
                let positive = self.one(Verb::Relu, x);
                self.two(Verb::Mul, &positive, &positive)
            }
            Activation::Sigmoid => self.one(Verb::Sigmoid, x),
            Activation::Softplus => self.one(Verb::Softplus, x),
            Activation::Xielu { alpha_p, alpha_n } => self.xielu(x, alpha_p, alpha_n),
            // Gated only: `verify` refuses it elsewhere.
            Activation::ClampedSwiglu { alpha, limit } => self.clamped(x, alpha, limit),
        }
    }

    pub(super) fn gate(&mut self, gate: &str, up: &str, act: Activation) -> String {
        let open = self.activate(gate, act);
        match act {
            Activation::ClampedSwiglu { limit, .. } => {
                let up = self.clamp(up, -limit, limit);
                let up = self.plus(&up, 1.0);
                self.two(Verb::Mul, &open, &up)
            }
            _ => self.two(Verb::Mul, &open, up),
        }
    }

    /// Both sides of an xIELU; each is 0 where the other counts, or nearly.
    fn xielu(&mut self, x: &str, alpha_p: f32, alpha_n: f32) -> String {
        let square = self.activate(x, Activation::ReluSquared);
        let square = self.times(&square, alpha_p);
        let negative = self.clamp(x, f32::MIN, 0.0);
        let bounded = self.clamp(x, f32::MIN, -1e-6);
        let power = self.one(Verb::Exp, &bounded);
        let power = self.plus(&power, -1.0);
        let curve = self.two(Verb::Sub, &power, &negative);
        let curve = self.times(&curve, alpha_n);
        let line = self.times(x, 0.5);
        let sides = self.two(Verb::Add, &square, &curve);
        self.two(Verb::Add, &sides, &line)
    }

    /// `min(x, limit) * sigmoid(alpha * min(x, limit))`.
    fn clamped(&mut self, x: &str, alpha: f32, limit: f32) -> String {
        let x = self.clamp(x, f32::MIN, limit);
        let steep = self.times(&x, alpha);
        self.sigmoid_gate(&x, &steep)
    }

    /// Tensors with cosines and sines of positions: inputs, unless the file has them, one pair for all
    /// that rotate alike.
    fn rotation(&mut self, rope: &Rope, positions: ValueId) -> Result<[String; 2]> {
        if let Some(known) = self.model.rotation(rope, self.rows) {
            return Ok(known);
        }
        let input = self.graph.inputs.iter().position(|id| *id == positions);
        let Some(positions) = input else {
            return Err(self.wrong("its positions are none of its inputs".into()));
        };
        let alike = |r: &Rotation| {
            r.positions == positions
                && r.rope.rotary_dim == rope.rotary_dim
                && (&r.rope.freqs, &r.rope.long) == (&rope.freqs, &rope.long)
        };
        let known = self.rotations.iter().position(alike);
        let number = known.unwrap_or(self.rotations.len());
        let names = ["cos", "sin"].map(|name| format!("{name}{number}"));
        if known.is_none() {
            self.rotations.push(Rotation { positions, rope: rope.clone() });
            let (rows, cols) = (self.rows, rope.rotary_dim / 2);
            names.iter().for_each(|name| drop(self.extra(name, DType::F32, rows, cols)));
        }
        Ok(names)
    }

    fn rope(&mut self, x: &str, positions: ValueId, cols: usize, rope: &Rope) -> Result<String> {
        let Rope { head_dim, offset, rotary_dim, style, .. } = *rope;
        let (heads, half) = (cols / head_dim, rotary_dim / 2);
        let [cos, sin] = self.rotation(rope, positions)?;
        let [cos, sin] = [cos, sin].map(|f| self.reshape(&f, &[self.rows, 1, half]));
        let x = self.reshape(x, &[self.rows, heads, head_dim]);
        let (from, to) = (offset, offset + rotary_dim);
        let [a, b] = match style {
            RopeStyle::Half => [(from, from + half, 1), (from + half, to, 1)],
            RopeStyle::Interleaved => [(from, to, 2), (from + 1, to, 2)],
        }
        .map(|(from, to, step)| self.slice(&x, from, to, step));
        let [a_cos, b_sin] = [(&a, &cos), (&b, &sin)].map(|(x, f)| self.two(Verb::Mul, x, f));
        let [a_sin, b_cos] = [(&a, &sin), (&b, &cos)].map(|(x, f)| self.two(Verb::Mul, x, f));
        let (first, second) =
            (self.two(Verb::Sub, &a_cos, &b_sin), self.two(Verb::Add, &b_cos, &a_sin));
        let turned = match style {
            RopeStyle::Half => self.concat(&[&first, &second]),
            RopeStyle::Interleaved => {
                let [first, second] =
                    [&first, &second].map(|part| self.reshape(part, &[self.rows, heads, half, 1]));
                let pairs = self.concat(&[&first, &second]);
                self.reshape(&pairs, &[self.rows, heads, rotary_dim])
            }
        };
        let before = (from > 0).then(|| self.slice(&x, 0, from, 1));
        let behind = (to < head_dim).then(|| self.slice(&x, to, head_dim, 1));
        let parts: Vec<&str> =
            before.as_deref().into_iter().chain([&*turned]).chain(behind.as_deref()).collect();
        let whole = if parts.len() > 1 { self.concat(&parts) } else { turned.clone() };
        Ok(self.reshape(&whole, &[self.rows, cols]))
    }
}
