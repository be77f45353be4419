//! Shape and wiring checks: a subgraph that passes can be executed without further checks of its
//! own consistency.

use crate::DType;
use crate::op::{Acts, Attention, Experts, Op};
use crate::subgraph::{Node, Subgraph, ValueId, WeightRef};

/// Why a subgraph is not well formed.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("subgraph {graph}, op {index} ({op}): {what}")]
pub struct GraphError {
    /// Name of the subgraph.
    pub graph: String,
    /// Index of the node.
    pub index: usize,
    /// Name of its op.
    pub op: &'static str,
    /// What does not fit.
    pub what: String,
}

struct Check<'a> {
    g: &'a Subgraph,
    node: &'a Node,
}

type Res = Result<(), String>;

fn want(ok: bool, what: impl FnOnce() -> String) -> Res {
    if ok { Ok(()) } else { Err(what()) }
}

/// Checks a whole subgraph: ids in range, every operand defined before its use, arity and widths.
pub(crate) fn verify(g: &Subgraph) -> Result<(), GraphError> {
    let mut defined = vec![false; g.values.len()];
    for id in g.inputs.iter().chain(&g.states) {
        if let Some(d) = defined.get_mut(id.0 as usize) {
            *d = true;
        }
    }
    for (index, node) in g.nodes.iter().enumerate() {
        check_node(g, node, &mut defined).map_err(|what| GraphError {
            graph: g.name.clone(),
            index,
            op: node.op.name(),
            what,
        })?;
    }
    let missing = g.outputs.iter().find(|o| !defined.get(o.0 as usize).copied().unwrap_or(false));
    match missing {
        None => Ok(()),
        Some(o) => Err(GraphError {
            graph: g.name.clone(),
            index: g.nodes.len(),
            op: "output",
            what: format!("output value {} is never computed", o.0),
        }),
    }
}

fn check_node(g: &Subgraph, node: &Node, defined: &mut [bool]) -> Res {
    for id in node.inputs.iter().chain(&node.states) {
        let ok = defined.get(id.0 as usize).copied().unwrap_or(false);
        want(ok, || format!("operand {} is used before it is computed", id.0))?;
    }
    for id in &node.states {
        want(g.states.contains(id), || format!("value {} is not a state", id.0))?;
    }
    let c = Check { g, node };
    c.weights_in_range()?;
    c.op()?;
    for id in &node.outputs {
        let d = defined.get_mut(id.0 as usize).ok_or("output id out of range")?;
        want(!*d, || format!("value {} is computed twice", id.0))?;
        *d = true;
    }
    Ok(())
}

impl Check<'_> {
    fn arity(&self, inputs: usize, states: usize, outputs: usize) -> Res {
        let n = self.node;
        let got = (n.inputs.len(), n.states.len(), n.outputs.len());
        want(got == (inputs, states, outputs), || {
            format!("has {got:?} inputs, states and outputs; needs {:?}", (inputs, states, outputs))
        })
    }

    fn cols(&self, id: ValueId) -> usize {
        self.g.value(id).shape.row_len()
    }

    fn input(&self, i: usize) -> usize {
        self.cols(self.node.inputs[i])
    }

    fn output(&self, i: usize) -> usize {
        self.cols(self.node.outputs[i])
    }

    fn same(&self, what: &str, got: usize, need: usize) -> Res {
        want(got == need, || format!("{what} has {got} columns, needs {need}"))
    }

    fn dims(&self, w: WeightRef, rows: usize, cols: usize) -> Res {
        let d = self.g.weight(w);
        want((d.rows, d.cols) == (rows, cols), || {
            format!("weight {} is {}x{}, needs {rows}x{cols}", d.name, d.rows, d.cols)
        })
    }

    fn acts(&self, acts: Acts, w: WeightRef) -> Res {
        let d = self.g.weight(w);
        let fits = match acts {
            Acts::F32 => true,
            Acts::Int8 => d.dtype.has_integer_path(),
            Acts::Bf16 => d.dtype == DType::BF16,
        };
        want(fits, || format!("weight {} is {}, which has no path with {acts:?}", d.name, d.dtype))
    }

    fn one_type(&self, list: &[WeightRef]) -> bool {
        list.windows(2).all(|w| self.g.weight(w[0]).dtype == self.g.weight(w[1]).dtype)
    }

    fn int_input(&self, i: usize) -> Res {
        let v = self.g.value(self.node.inputs[i]);
        want(v.dtype == DType::I32, || format!("{} must be I32, is {}", v.name, v.dtype))
    }

    fn weights_in_range(&self) -> Res {
        let n = self.g.weights.len();
        weight_refs(&self.node.op)
            .into_iter()
            .try_for_each(|w| want((w.0 as usize) < n, || format!("weight {} out of range", w.0)))
    }

    fn unary_same(&self) -> Res {
        self.arity(1, 0, 1)?;
        self.same("output", self.output(0), self.input(0))
    }

    fn norm(&self, group: usize, weights: &[Option<WeightRef>]) -> Res {
        self.unary_same()?;
        let n = self.input(0);
        want(group > 0 && n.is_multiple_of(group), || {
            format!("group {group} does not divide {n} columns")
        })?;
        weights.iter().flatten().try_for_each(|&w| self.dims(w, 1, group))
    }

    fn op(&self) -> Res {
        match &self.node.op {
            Op::Embed { table, .. } => {
                self.arity(1, 0, 1)?;
                self.int_input(0)?;
                self.same("table", self.g.weight(*table).cols, self.output(0))
            }
            Op::RmsNorm { weight, group, .. } => self.norm(*group, &[*weight]),
            Op::LayerNorm { weight, bias, group, .. } => self.norm(*group, &[Some(*weight), *bias]),
            Op::Linear { weight, bias, acts } => {
                self.arity(1, 0, 1)?;
                self.acts(*acts, *weight)?;
                self.dims(*weight, self.output(0), self.input(0))?;
                bias.map_or(Ok(()), |b| self.dims(b, 1, self.output(0)))
            }
            Op::HeadLinear(h) => {
                self.arity(1, 0, 1)?;
                let n = h.weights.len().max(1);
                let (i, o) = (self.input(0), self.output(0));
                want(i % n == 0 && o % n == 0, || format!("{n} heads do not divide {i} and {o}"))?;
                h.weights.iter().try_for_each(|&w| self.dims(w, o / n, i / n))
            }
            Op::Rope(r) => {
                self.arity(2, 0, 1)?;
                self.int_input(1)?;
                self.same("output", self.output(0), self.input(0))?;
                want(r.head_dim > 0 && self.input(0).is_multiple_of(r.head_dim), || {
                    format!("head_dim {} does not divide {}", r.head_dim, self.input(0))
                })?;
                let half = r.rotary_dim / 2;
                let lens = [Some(&r.freqs), r.long.as_ref().map(|l| &l.0)];
                want(
                    r.offset + r.rotary_dim <= r.head_dim
                        && r.rotary_dim.is_multiple_of(2)
                        && lens.iter().flatten().all(|f| f.inv_freq.len() == half),
                    || format!("rotary_dim {} does not fit head_dim {}", r.rotary_dim, r.head_dim),
                )
            }
            Op::KvAppend(k) => {
                self.arity(1, 1, 0)?;
                self.same("input", self.input(0), k.width)
            }
            Op::Attention(a) => self.attention(a),
            Op::Activate(_) | Op::Scale { .. } | Op::SoftCap { .. } | Op::Clamp { .. } => {
                self.unary_same()
            }
            Op::Gate(_) | Op::Add => {
                self.arity(2, 0, 1)?;
                self.same("second operand", self.input(1), self.input(0))?;
                self.same("output", self.output(0), self.input(0))
            }
            Op::SigmoidGate => {
                self.arity(2, 0, 1)?;
                self.same("gate", self.input(1), 1)?;
                self.same("output", self.output(0), self.input(0))
            }
            Op::SliceCols { group, start, len } => {
                self.arity(1, 0, 1)?;
                let n = self.input(0);
                want(*group > 0 && n.is_multiple_of(*group) && start + len <= *group, || {
                    format!("columns {start}+{len} of groups of {group} do not fit {n}")
                })?;
                self.same("output", self.output(0), n / group * len)
            }
            Op::ConcatCols { groups } => {
                self.arity(2, 0, 1)?;
                let (a, b) = (self.input(0), self.input(1));
                want(*groups > 0 && a % groups == 0 && b % groups == 0, || {
                    format!("{groups} groups do not divide {a} and {b}")
                })?;
                self.same("output", self.output(0), a + b)
            }
            Op::Router(r) => {
                self.arity(1, 0, 2)?;
                self.same("logits", self.input(0), r.experts)?;
                want(r.top_k >= 1 && r.top_k <= r.experts, || {
                    format!("top_k {} of {} experts", r.top_k, r.experts)
                })?;
                self.same("ids", self.output(0), r.top_k)?;
                self.same("weights", self.output(1), r.top_k)
            }
            Op::Experts(e) => self.experts(e),
        }
    }

    fn attention(&self, a: &Attention) -> Res {
        self.arity(1, if a.value_in_key { 1 } else { 2 }, 1)?;
        self.same("query", self.input(0), a.heads * a.k_dim)?;
        self.same("output", self.output(0), a.heads * a.v_dim)?;
        want(a.kv_heads > 0 && a.heads.is_multiple_of(a.kv_heads), || {
            format!("{} query heads over {} kv heads", a.heads, a.kv_heads)
        })?;
        want(!a.value_in_key || a.v_dim <= a.k_dim, || "value wider than its key".to_string())?;
        let cached = |d| self.node.states.iter().all(|s| self.g.value(*s).dtype == d);
        let fits = a.acts == Acts::F32 || a.acts == Acts::Bf16 && cached(DType::BF16);
        want(fits, || format!("{:?} activations with such a cache", a.acts))?;
        a.sinks.map_or(Ok(()), |s| self.dims(s, 1, a.heads))
    }

    fn experts(&self, e: &Experts) -> Res {
        self.arity(3, 0, 1)?;
        self.int_input(1)?;
        self.same("weights", self.input(2), self.input(1))?;
        let (k, n) = (self.input(0), e.gate.len());
        self.same("output", self.output(0), k)?;
        want(n > 0 && e.up.len() == n && e.down.len() == n, || "uneven expert lists".to_string())?;
        let inter = self.g.weight(e.gate[0]).rows;
        e.gate.iter().chain(&e.up).try_for_each(|&w| self.dims(w, inter, k))?;
        let all = e.gate.iter().chain(&e.up).chain(&e.down);
        all.into_iter().try_for_each(|&w| self.acts(e.acts, w))?;
        let inner: Vec<WeightRef> = e.gate.iter().chain(&e.up).copied().collect();
        let one_type = self.one_type(&inner) && self.one_type(&e.down);
        want(e.acts == Acts::F32 || one_type, || "experts of several weight types".to_string())?;
        e.down.iter().try_for_each(|&w| self.dims(w, k, inter))?;
        for (list, cols) in [(&e.gate_bias, inter), (&e.up_bias, inter), (&e.down_bias, k)] {
            want(list.is_empty() || list.len() == n, || "uneven expert biases".to_string())?;
            list.iter().try_for_each(|&w| self.dims(w, 1, cols))?;
        }
        Ok(())
    }
}

fn weight_refs(op: &Op) -> Vec<WeightRef> {
    match op {
        Op::Embed { table, .. } => vec![*table],
        Op::RmsNorm { weight, .. } => weight.iter().copied().collect(),
        Op::LayerNorm { weight, bias, .. } | Op::Linear { weight, bias, .. } => {
            std::iter::once(*weight).chain(*bias).collect()
        }
        Op::HeadLinear(h) => h.weights.clone(),
        Op::Attention(a) => a.sinks.iter().copied().collect(),
        Op::Experts(e) => [&e.gate, &e.up, &e.down, &e.gate_bias, &e.up_bias, &e.down_bias]
            .into_iter()
            .flatten()
            .copied()
            .collect(),
        _ => Vec::new(),
    }
}
