//! Checks shapes and wiring. A subgraph that passes can be executed without further checks of its
//! own consistency.
//!
//! A [`Subgraph`] is plain data that any code can write. So devices verify what they compile, since
//! kernels rely on it, and [`crate::SubgraphBuilder`] verifies what it built.

use crate::DType;
use crate::activation_format::{ActivationFormat, IntFormat};
use crate::op::{
    Activation, Attention, Decay, DeltaRule, ExpertGroup, Experts, Mamba2, Op, Rescale, Router,
    Score, ShortConv,
};
use crate::rope::Rope;
use crate::shape::Dim;
use crate::subgraph::{Node, Subgraph, Value, ValueId};
use crate::weight::{WeightDecl, WeightRef, WeightSlice};

/// Why a subgraph is malformed.
#[derive(Debug, Clone, thiserror::Error, PartialEq)]
#[error("subgraph {graph}, {place}: {what}")]
pub struct GraphError {
    /// Name of the subgraph.
    pub graph: String,
    /// The op, by index and name, or another part of the subgraph.
    pub place: String,
    /// What is wrong.
    pub what: String,
}

/// The largest dimension, since rows, ids and positions have 32 bits.
const MAX_DIM: usize = i32::MAX as usize;

struct Check<'a> {
    g: &'a Subgraph,
    node: &'a Node,
}

/// What is wrong, if anything.
type Checked = Result<(), String>;

/// Columns that do not overflow.
fn counted(columns: Option<usize>) -> Result<usize, String> {
    columns.ok_or_else(|| "too many columns".to_string())
}

fn want(ok: bool, what: impl FnOnce() -> String) -> Checked {
    if ok { Ok(()) } else { Err(what()) }
}

/// Checks a whole subgraph: ids are in range; every operand is computed exactly once, before its
/// use; the number, types, rows and columns of operands fit; so do the shapes of weights and
/// states; all sizes are addressable.
///
/// # Errors
/// [`GraphError`] naming the first fault.
pub fn verify(g: &Subgraph) -> Result<(), GraphError> {
    let at = |place: &str, result: Checked| {
        let (graph, place) = (g.name.clone(), place.to_string());
        result.map_err(|what| GraphError { graph, place, what })
    };
    at("its values", bound_values(g))?;
    at("its values", g.values.iter().enumerate().try_for_each(|(i, v)| value(g, i, v)))?;
    at("its weights", g.weights.iter().try_for_each(weight))?;
    let mut defined = vec![false; g.values.len()];
    for id in g.inputs.iter().chain(&g.states) {
        defined[id.0 as usize] = true;
    }
    for (index, node) in g.nodes.iter().enumerate() {
        let place = || format!("op {index} ({})", node.op.name());
        check_node(g, node, &mut defined).or_else(|what| at(&place(), Err(what)))?;
    }
    at("its outputs", g.outputs.iter().try_for_each(|id| output(g, *id, &defined)))
}

/// Checks that inputs and states are values and that none is bound twice.
fn bound_values(g: &Subgraph) -> Checked {
    let mut seen = vec![false; g.values.len()];
    for id in g.inputs.iter().chain(&g.states) {
        let seen = seen.get_mut(id.0 as usize).ok_or_else(|| format!("there is no {}", id.0))?;
        want(!*seen, || format!("{} is bound twice", g.value(*id).name))?;
        *seen = true;
    }
    Ok(())
}

/// Checks that a value is `[rows, cols]` of a computable type, and the rows of a state.
fn value(g: &Subgraph, index: usize, v: &Value) -> Checked {
    let state = g.states.iter().any(|s| s.0 as usize == index);
    let typed = v.dtype.is_float() || v.dtype == DType::I32 && !state;
    want(typed, || format!("{} has type {}", v.name, v.dtype))?;
    let shaped = match v.shape.0[..] {
        [Dim::Rows(_), Dim::Fixed(_)] => !state,
        [Dim::KvLen(_), Dim::Fixed(_)] => state,
        [Dim::Fixed(_), Dim::Fixed(_)] => true,
        _ => false,
    };
    want(shaped, || format!("{} has shape {:?}", v.name, v.shape.0))?;
    let (rows, cols) = (v.shape.max_rows(), v.shape.row_len());
    sizes(&v.name, rows, cols, v.dtype.row_bytes(cols))
}

/// Checks both dimensions and the bytes of all rows.
fn sizes(name: &str, rows: usize, cols: usize, row_bytes: Option<usize>) -> Checked {
    let counted = (1..=MAX_DIM).contains(&rows) && (1..=MAX_DIM).contains(&cols);
    want(counted, || format!("{name} is {rows}x{cols}; dimensions are 1 to {MAX_DIM}"))?;
    let bytes = row_bytes.and_then(|b| b.checked_mul(rows));
    want(bytes.is_some_and(|b| b <= isize::MAX as usize), || {
        format!("{name} of {rows}x{cols} has more bytes than memory has addresses")
    })
}

/// Checks that a weight has a weight's type and whole blocks per row.
fn weight(w: &WeightDecl) -> Checked {
    want(w.dtype != DType::I32, || format!("weight {} has type {}", w.name, w.dtype))?;
    want(w.cols.is_multiple_of(w.dtype.block_len()), || {
        format!("weight {} has {} columns, which are no whole {} blocks", w.name, w.cols, w.dtype)
    })?;
    sizes(&format!("weight {}", w.name), w.rows, w.cols, w.dtype.row_bytes(w.cols))?;
    let Some(slice) = w.slice else { return Ok(()) };
    let (first, len, of, what) = match slice {
        WeightSlice::Rows { first, of } => (first, w.rows, of, "rows"),
        WeightSlice::Cols { first, of } => (first, w.cols, of, "columns"),
    };
    want(first.checked_add(len).is_some_and(|end| end <= of), || {
        format!("weight {} has {of} {what}, {len} from {first} on do not lie inside", w.name)
    })?;
    let vector = w.rows == 1 && first.is_multiple_of(w.dtype.block_len());
    want(vector || matches!(slice, WeightSlice::Rows { .. }), || {
        format!("weight {}: only vectors are sliced by columns, at whole blocks", w.name)
    })?;
    let (rows, cols) = w.stored();
    let row_bytes = w.dtype.row_bytes(cols);
    want(row_bytes.is_some(), || {
        format!("weight {} of {cols} columns is no whole blocks", w.name)
    })?;
    sizes(&format!("weight {}", w.name), rows, cols, row_bytes)
}

/// Checks that an output is computed or an input, and not a state, which is bound already.
fn output(g: &Subgraph, id: ValueId, defined: &[bool]) -> Checked {
    let is = defined.get(id.0 as usize).copied().unwrap_or(false);
    want(is, || format!("value {} is never computed", id.0))?;
    want(!g.states.contains(&id), || format!("{} is a state", g.value(id).name))
}

fn check_node(g: &Subgraph, node: &Node, defined: &mut [bool]) -> Checked {
    for id in node.inputs.iter().chain(&node.states) {
        let ok = defined.get(id.0 as usize).copied().unwrap_or(false);
        want(ok, || format!("operand {} is used before it is computed", id.0))?;
    }
    for id in &node.inputs {
        want(!g.states.contains(id), || format!("input {} is a state", g.value(*id).name))?;
    }
    for id in &node.states {
        want(g.states.contains(id), || format!("value {} is not a state", id.0))?;
    }
    for id in &node.outputs {
        let d = defined.get_mut(id.0 as usize).ok_or("output id out of range")?;
        want(!*d, || format!("value {} is computed twice", id.0))?;
        *d = true;
    }
    let c = Check { g, node };
    c.rows()?;
    c.weights_in_range()?;
    c.op()
}

const F: DType = DType::F32;
const I: DType = DType::I32;

impl Check<'_> {
    /// Checks the number and types of operands.
    fn operands(&self, inputs: &[DType], states: usize, outputs: &[DType]) -> Checked {
        let n = self.node;
        let got = (n.inputs.len(), n.states.len(), n.outputs.len());
        let need = (inputs.len(), states, outputs.len());
        want(got == need, || format!("has {got:?} inputs, states and outputs; needs {need:?}"))?;
        let typed = n.inputs.iter().zip(inputs).chain(n.outputs.iter().zip(outputs));
        typed.into_iter().try_for_each(|(id, dtype)| {
            let v = self.g.value(*id);
            want(v.dtype == *dtype, || format!("{} must be {dtype}, is {}", v.name, v.dtype))
        })
    }

    /// Checks that inputs and outputs have the forward batch's rows.
    fn rows(&self) -> Checked {
        let rows = |id: &ValueId| self.g.value(*id).shape.0.first().copied();
        let mut all = self.node.inputs.iter().chain(&self.node.outputs);
        let Some(first) = all.next() else { return Ok(()) };
        all.try_for_each(|id| {
            let name = |id: &ValueId| &self.g.value(*id).name;
            want(rows(id) == rows(first), || {
                let (a, b) = (rows(first), rows(id));
                format!("rows of {} and {} differ: {a:?}, {b:?}", name(first), name(id))
            })
        })
    }

    fn cols(&self, id: ValueId) -> usize {
        self.g.value(id).shape.row_len()
    }

    fn input(&self, i: usize) -> usize {
        self.cols(self.node.inputs[i])
    }

    fn state(&self, i: usize) -> usize {
        self.cols(self.node.states[i])
    }

    fn output(&self, i: usize) -> usize {
        self.cols(self.node.outputs[i])
    }

    fn same(&self, what: &str, got: usize, need: usize) -> Checked {
        want(got == need, || format!("{what} has {got} columns, needs {need}"))
    }

    /// Checks for `heads` heads of `dim` columns.
    fn heads(&self, what: &str, got: usize, heads: usize, dim: usize) -> Checked {
        want(dim > 0 && heads.checked_mul(dim) == Some(got), || {
            format!("{what} has {got} columns, needs {heads} heads of {dim}")
        })
    }

    fn dims(&self, w: WeightRef, rows: usize, cols: usize) -> Checked {
        let d = self.g.weight(w);
        want((d.rows, d.cols) == (rows, cols), || {
            format!("weight {} is {}x{}, needs {rows}x{cols}", d.name, d.rows, d.cols)
        })
    }

    fn activations(&self, activations: ActivationFormat, w: WeightRef) -> Checked {
        let d = self.g.weight(w);
        let fits = match activations {
            ActivationFormat::F32 | ActivationFormat::F16 | ActivationFormat::F16Int4 => true,
            ActivationFormat::Int(_) => d.dtype.is_quantized() || activations.converts_weights(),
            ActivationFormat::Bf16 => d.dtype == DType::BF16,
        };
        want(fits, || {
            format!("weight {} is {}, which has no path with {activations}", d.name, d.dtype)
        })
    }

    fn one_type(&self, list: &[WeightRef]) -> bool {
        list.windows(2).all(|w| self.g.weight(w[0]).dtype == self.g.weight(w[1]).dtype)
    }

    fn weights_in_range(&self) -> Checked {
        let n = self.g.weights.len();
        let all = self.node.op.weights();
        all.into_iter()
            .try_for_each(|w| want((w.0 as usize) < n, || format!("weight {} out of range", w.0)))
    }

    /// Checks for one input and one output with the same columns.
    fn unary_same(&self) -> Checked {
        self.operands(&[F], 0, &[F])?;
        self.same("output", self.output(0), self.input(0))
    }

    fn norm(&self, group: usize, weights: &[Option<WeightRef>]) -> Checked {
        self.unary_same()?;
        let n = self.input(0);
        want(group > 0 && n.is_multiple_of(group), || {
            format!("group {group} does not divide {n} columns")
        })?;
        weights.iter().flatten().try_for_each(|&w| self.dims(w, 1, group))
    }

    fn op(&self) -> Checked {
        match &self.node.op {
            Op::Embed { table, .. } => {
                self.operands(&[I], 0, &[F])?;
                self.same("ids", self.input(0), 1)?;
                self.same("table", self.g.weight(*table).cols, self.output(0))
            }
            Op::RmsNorm { weight: Some(weight), group, .. }
                if self.g.weight(*weight).cols != *group =>
            {
                self.norm(*group, &[])?;
                self.dims(*weight, 1, self.input(0))
            }
            Op::RmsNorm { weight, group, .. } => self.norm(*group, &[*weight]),
            Op::LayerNorm { weight, bias, group, .. } => self.norm(*group, &[Some(*weight), *bias]),
            Op::Linear { weight, bias, activations, .. } => {
                self.operands(&[F], 0, &[F])?;
                self.activations(*activations, *weight)?;
                self.dims(*weight, self.output(0), self.input(0))?;
                bias.map_or(Ok(()), |b| self.dims(b, 1, self.output(0)))
            }
            Op::Outliers { weight, activations } => {
                self.operands(&[F], 0, &[F])?;
                self.dims(*weight, self.output(0), self.input(0))?;
                let clips = |f: IntFormat| f.scales.clipped() == Some(f.scales);
                want(activations.converted_numbers().is_some_and(clips), || {
                    format!("{activations} clips nothing")
                })
            }
            Op::HeadLinear(h) => {
                self.operands(&[F], 0, &[F])?;
                let (n, i, o) = (h.weights.len(), self.input(0), self.output(0));
                want(n > 0 && i % n == 0 && o % n == 0, || {
                    format!("{n} heads do not divide {i} and {o}")
                })?;
                h.weights.iter().try_for_each(|&w| self.dims(w, o / n, i / n))
            }
            Op::Rope(r) => self.rope(r),
            Op::KvAppend(k) => {
                self.operands(&[F], 1, &[])?;
                self.same("input", self.input(0), k.width)?;
                self.same("cache", self.state(0), k.width)
            }
            Op::Attention(a) => self.attention(a),
            Op::DecayingSum(s) => {
                self.operands(&[F], 1, &[F])?;
                self.same("input", self.input(0), s.width)?;
                self.same("output", self.output(0), s.width)?;
                self.fixed_state(s.width)?;
                want(s.decay.is_finite(), || format!("decay {}", s.decay))
            }
            Op::ShortConv(s) => self.short_conv(s),
            Op::Mamba2(m) => self.mamba2(m),
            Op::DeltaRule(d) => self.delta_rule(d),
            Op::Router(r) => self.router(r),
            Op::Experts(e) => self.experts(e),
            Op::ExpertGroup(g) => self.expert_group(g),
            _ => self.elements(),
        }
    }

    /// Checks element-wise ops and ops that move columns.
    fn elements(&self) -> Checked {
        match &self.node.op {
            Op::Activate(Activation::ClampedSwiglu { .. }) => {
                Err("this activation is defined with a gate only".to_string())
            }
            Op::Convert => {
                let of = |ids: &[ValueId]| ids.first().map_or(I, |v| self.g.value(*v).dtype);
                let (from, to) = (of(&self.node.inputs), of(&self.node.outputs));
                self.operands(&[from], 0, &[to])?;
                want(from != I && to != I, || format!("converts {from} to {to}"))?;
                self.same("output", self.output(0), self.input(0))
            }
            Op::Gate(_) | Op::Add | Op::Rescale(Rescale::Match { .. }) => {
                self.operands(&[F, F], 0, &[F])?;
                self.same("second operand", self.input(1), self.input(0))?;
                self.same("output", self.output(0), self.input(0))
            }
            Op::SigmoidGate => {
                self.operands(&[F, F], 0, &[F])?;
                self.same("gate", self.input(1), 1)?;
                self.same("output", self.output(0), self.input(0))
            }
            Op::Rescale(Rescale::Columns(weight)) => {
                self.unary_same()?;
                self.dims(*weight, 1, self.input(0))
            }
            Op::Mix { streams } => {
                self.operands(&[F, F], 0, &[F])?;
                let (n, x, y) = (*streams, self.input(0), self.output(0));
                want(n > 0 && x >= n && x.is_multiple_of(n) && y.is_multiple_of(x / n), || {
                    format!("{n} streams of {x} columns do not become {y}")
                })?;
                self.same("coefficients", self.input(1), counted((y / (x / n)).checked_mul(n))?)
            }
            Op::SliceCols { group, start, len } => {
                self.operands(&[F], 0, &[F])?;
                let n = self.input(0);
                let inside = start.checked_add(*len).is_some_and(|end| end <= *group);
                want(*group > 0 && n.is_multiple_of(*group) && inside, || {
                    format!("columns {start}+{len} of groups of {group} do not fit {n}")
                })?;
                self.same("output", self.output(0), n / group * len)
            }
            Op::ConcatCols { groups } => {
                self.operands(&[F, F], 0, &[F])?;
                let (a, b) = (self.input(0), self.input(1));
                want(*groups > 0 && a % groups == 0 && b % groups == 0, || {
                    format!("{groups} groups do not divide {a} and {b}")
                })?;
                self.same("output", self.output(0), a + b)
            }
            _ => self.unary_same(),
        }
    }

    fn rope(&self, r: &Rope) -> Checked {
        self.operands(&[F, I], 0, &[F])?;
        self.same("positions", self.input(1), 1)?;
        self.same("output", self.output(0), self.input(0))?;
        want(r.head_dim > 0 && self.input(0).is_multiple_of(r.head_dim), || {
            format!("head_dim {} does not divide {}", r.head_dim, self.input(0))
        })?;
        let end = r.offset.checked_add(r.rotary_dim);
        let lens = [Some(&r.freqs), r.long.as_ref().map(|l| &l.0)];
        let originals = lens.iter().flatten().filter_map(|f| f.growth).map(|g| g.original);
        want(originals.clone().all(|n| n > 0), || "growth from no context".to_string())?;
        want(
            end.is_some_and(|end| end <= r.head_dim)
                && r.rotary_dim.is_multiple_of(2)
                && lens.iter().flatten().all(|f| f.inv_freq.len() == r.rotary_dim / 2),
            || format!("rotary_dim {} does not fit head_dim {}", r.rotary_dim, r.head_dim),
        )
    }

    fn attention(&self, a: &Attention) -> Checked {
        self.operands(&[F], if a.value_in_key { 1 } else { 2 }, &[F])?;
        want(a.kv_heads > 0 && a.heads.is_multiple_of(a.kv_heads), || {
            format!("{} query heads over {} kv heads", a.heads, a.kv_heads)
        })?;
        self.heads("query", self.input(0), a.heads, a.k_dim)?;
        self.heads("output", self.output(0), a.heads, a.v_dim)?;
        self.heads("key cache", self.state(0), a.kv_heads, a.k_dim)?;
        if !a.value_in_key {
            self.heads("value cache", self.state(1), a.kv_heads, a.v_dim)?;
        }
        want(!a.value_in_key || a.v_dim <= a.k_dim, || "value wider than its key".to_string())?;
        want(a.window != Some(0), || "a window of no positions".to_string())?;
        let types = || self.node.states.iter().map(|s| self.g.value(*s).dtype);
        let first = self.g.value(self.node.states[0]).dtype;
        want(types().all(|t| t == first), || {
            format!("caches have several types: {:?}", types().collect::<Vec<_>>())
        })?;
        let fits = a.activations == ActivationFormat::F32
            || a.activations == ActivationFormat::Bf16 && first == DType::BF16;
        want(fits, || format!("{} activations with caches of {first}", a.activations))?;
        a.sinks.map_or(Ok(()), |s| self.dims(s, 1, a.heads))
    }

    fn short_conv(&self, s: &ShortConv) -> Checked {
        self.operands(&[F], 1, &[F])?;
        want(s.taps > 1, || format!("a convolution of {} taps; it needs two", s.taps))?;
        self.same("input", self.input(0), counted(s.input())?)?;
        self.same("output", self.output(0), s.width)?;
        self.fixed_state(counted(s.state())?)?;
        self.dims(s.weight, s.width, s.taps)?;
        s.bias.map_or(Ok(()), |b| self.dims(b, 1, s.width))
    }

    fn mamba2(&self, m: &Mamba2) -> Checked {
        self.operands(&[F, F], 1, &[F])?;
        want(m.groups > 0 && m.heads > 0 && m.heads.is_multiple_of(m.groups), || {
            format!("{} heads in {} groups", m.heads, m.groups)
        })?;
        self.same("input", self.input(0), counted(m.input())?)?;
        self.same("steps", self.input(1), m.heads)?;
        self.same("output", self.output(0), counted(m.inner())?)?;
        self.fixed_state(counted(m.state())?)?;
        want(m.dt_min <= m.dt_max, || format!("steps from {} to {}", m.dt_min, m.dt_max))?;
        [m.a, m.d, m.dt_bias].into_iter().try_for_each(|w| self.dims(w, 1, m.heads))
    }

    /// Checks a state of one row.
    fn fixed_state(&self, width: usize) -> Checked {
        self.same("state", self.state(0), width)?;
        let dtype = self.g.value(self.node.states[0]).dtype;
        want(dtype == F, || format!("a state of {dtype}; sums are f32"))
    }

    fn delta_rule(&self, d: &DeltaRule) -> Checked {
        self.operands(&[F; 5], 1, &[F])?;
        want(d.key_heads > 0 && d.value_heads.is_multiple_of(d.key_heads), || {
            format!("{} value heads over {} key heads", d.value_heads, d.key_heads)
        })?;
        self.heads("values", self.input(0), d.value_heads, d.value_dim)?;
        self.heads("queries", self.input(1), d.key_heads, d.key_dim)?;
        self.heads("keys", self.input(2), d.key_heads, d.key_dim)?;
        let channels = if d.by_channel { d.key_dim } else { 1 };
        self.heads("decays", self.input(3), d.value_heads, channels)?;
        self.same("shares", self.input(4), d.value_heads)?;
        self.same("output", self.output(0), self.input(0))?;
        self.fixed_state(counted(d.state())?)?;
        let least = if let Decay::Bounded { least } = d.decay { least } else { -1.0 };
        want(least.is_finite() && least < 0.0, || format!("a bound of {least} for decays"))?;
        want(d.beta_scale.is_finite(), || format!("shares up to {}", d.beta_scale))?;
        self.dims(d.rates, 1, d.value_heads)
    }

    fn router(&self, r: &Router) -> Checked {
        self.operands(&[F], 0, &[I, F])?;
        self.same("logits", self.input(0), r.experts)?;
        want(r.top_k >= 1 && r.top_k <= r.experts, || {
            format!("top_k {} of {} experts", r.top_k, r.experts)
        })?;
        self.same("ids", self.output(0), r.top_k)?;
        self.same("weights", self.output(1), r.top_k)?;
        let mixer = matches!(r.score, Score::SparseMixer { .. });
        want(!mixer || r.top_k == 2 && r.bias.is_none(), || {
            "sparsemixer chooses two experts, without a bias".to_string()
        })?;
        let numbers = r.bias.into_iter().chain(r.expert_scales);
        numbers.into_iter().try_for_each(|w| self.dims(w, 1, r.experts))?;
        let Some((n, keep)) = r.groups else { return Ok(()) };
        let fits = n > 0 && r.experts.is_multiple_of(n) && keep >= 1 && keep <= n;
        let fits = fits && (r.bias.is_none() || r.experts / n > 1);
        want(fits && r.experts / n * keep >= r.top_k, || {
            format!("{keep} of {n} groups of {} experts do not fit", r.experts)
        })
    }

    fn experts(&self, e: &Experts) -> Checked {
        self.operands(&[F, I, F], 0, &[F])?;
        self.same("weights", self.input(2), self.input(1))?;
        self.feed_forwards(e)?;
        let n = e.gate.len();
        want(self.input(1) <= n, || format!("{} of {n} experts are chosen", self.input(1)))
    }

    fn expert_group(&self, g: &ExpertGroup) -> Checked {
        self.operands(&[F], 0, &[F])?;
        self.feed_forwards(&g.experts)?;
        let (n, rows) = (g.experts.gate.len(), self.g.value(self.node.inputs[0]).shape.max_rows());
        want(n.checked_mul(g.capacity) == Some(rows), || {
            format!("input has {rows} rows, needs {} for each of {n} experts", g.capacity)
        })
    }

    /// Checks experts' weights: of one shape, and such that results are as wide as inputs.
    fn feed_forwards(&self, e: &Experts) -> Checked {
        let (k, n) = (self.input(0), e.gate.len());
        self.same("output", self.output(0), k)?;
        want(n > 0 && e.up.len() == n && e.down.len() == n, || "uneven expert lists".to_string())?;
        let inter = self.g.weight(e.gate[0]).rows;
        e.gate.iter().chain(&e.up).try_for_each(|&w| self.dims(w, inter, k))?;
        let all = e.gate.iter().chain(&e.up).chain(&e.down);
        all.into_iter().try_for_each(|&w| self.activations(e.activations, w))?;
        let one_type = [&e.gate, &e.up, &e.down].into_iter().all(|list| self.one_type(list));
        let any = e.activations == ActivationFormat::F32 || e.activations.converts_weights();
        want(any || one_type, || "experts of several weight types".to_string())?;
        e.down.iter().try_for_each(|&w| self.dims(w, k, inter))?;
        for (list, cols) in [(&e.gate_bias, inter), (&e.up_bias, inter), (&e.down_bias, k)] {
            want(list.is_empty() || list.len() == n, || "uneven expert biases".to_string())?;
            list.iter().try_for_each(|&w| self.dims(w, 1, cols))?;
        }
        Ok(())
    }
}
