//! The dispatches of units: one for several ops where there is a kernel, else some for each.

use troika_graph::{Op, Rescale, ValueId};

use crate::bound::MultiplyCount;
use crate::emit::{Emitted, Emitter, Operand, weight};
use crate::kernels::{self, Around, FewRows, Loc, Matrix, NormShape, RowNorm, unsupported};
use crate::units::{Chain, GateUp, Pattern};
use Operand::{Unused, Value};

/// A unit whose ops run together.
#[derive(Clone, Copy)]
pub(crate) struct Fusion {
    unit: usize,
    /// Whether it takes on the norm of what it reads.
    takes_norm: bool,
}

/// What products of one value bind besides their weights.
struct ProductInputs {
    /// The value: what the norm reads, if products take it on.
    x: usize,
    vectors: Operand,
    /// The norm that products take on.
    norm: Option<RowNorm>,
    /// Where its results are kept for others.
    kept: Option<usize>,
    /// Where biases begin among the vectors.
    bias: Option<u32>,
}

impl Emitter<'_> {
    /// The dispatches of a unit.
    pub fn unit(&mut self, at: usize) -> Emitted {
        let unit = &self.code.units[at];
        let takes_norm = unit.norm.is_some_and(|norm| self.is_taken(norm));
        let from = self.out.len();
        if self.fused(Fusion { unit: at, takes_norm }).is_ok() {
            self.finish(&unit.nodes, from);
            return Ok(());
        }
        self.out.truncate(from);
        for node in &unit.nodes {
            let from = self.out.len();
            self.node(*node)?;
            self.finish(&[*node], from);
        }
        Ok(())
    }

    /// Completes the dispatches of nodes: they share their multiplications, and some use matrix units.
    fn finish(&mut self, nodes: &[usize], from: usize) {
        let mut share = MultiplyCount::default();
        for work in nodes.iter().map(|node| self.code.work(*node, self.shape.rows)) {
            share.fixed = share.fixed.saturating_add(work.fixed);
            share.each = share.each.saturating_add(work.each);
        }
        let placed = &mut self.out[from..];
        let count = placed.len().max(1) as u64;
        (share.fixed, share.each) = (share.fixed / count, share.each / count);
        for placed in placed {
            placed.work = share;
            if self.code.matrix_units {
                kernels::with_matrix_units(&mut placed.dispatch);
            }
        }
    }

    /// Whether all readers of a norm take it on.
    fn is_taken(&self, norm: usize) -> bool {
        let units = self.code.units.iter().enumerate();
        let mut readers = units.filter(|(_, unit)| unit.norm == Some(norm));
        readers.all(|(unit, _)| {
            let mut tried = Emitter::new(self.code, self.shape, self.locs);
            tried.fused(Fusion { unit, takes_norm: true }).is_ok()
        })
    }

    /// The dispatches of a unit's pattern.
    fn fused(&mut self, of: Fusion) -> Emitted {
        let unit = &self.code.units[of.unit];
        let vectors = weight(self.code.graph.nodes.len() + of.unit, 0);
        match &unit.pattern {
            Pattern::Norm if self.is_taken(unit.nodes[0]) => Ok(()),
            Pattern::Norm | Pattern::Alone => unsupported("one of several ops"),
            Pattern::Product(chain) => self.product(chain, Some(of)),
            Pattern::Products(list) => self.products(list, of),
            Pattern::GateUp(nodes) => self.gate_up(*nodes, of),
            Pattern::Heads(heads) => {
                self.heads(heads, if heads.norms.is_some() { vectors } else { Unused })
            }
            Pattern::Attend { appends, attention } => self.attend(appends, *attention),
            Pattern::Sum { node, addend, result } => {
                let (addend, result) = (Some(addend.0 as usize), result.0 as usize);
                match self.code.graph.nodes[*node].op {
                    Op::Experts(_) => self.experts(*node, addend, result),
                    _ => self.norm(*node, addend, result),
                }
            }
        }
    }

    /// What the products of a node bind besides its weight.
    fn product_inputs(&self, linear: usize, of: Option<Fusion>) -> ProductInputs {
        let (code, nodes) = (self.code, &self.code.graph.nodes);
        let is_biased = matches!(nodes[linear].op, Op::Linear { bias: Some(_), .. });
        let own = if is_biased { weight(linear, 1) } else { Unused };
        let (x, bias) = (self.input(linear, 0), is_biased.then_some(0));
        let mut inputs = ProductInputs { x, vectors: own, norm: None, kept: None, bias };
        let Some(Fusion { unit, takes_norm }) = of else { return inputs };
        let has_vectors = !code.packs[nodes.len() + unit].is_empty();
        inputs.vectors = if has_vectors { weight(nodes.len() + unit, 0) } else { Unused };
        let Some(node) = code.units[unit].norm else { return inputs };
        let (norm, vectors) = match nodes[node].op {
            Op::RmsNorm { eps, offset, .. } => {
                (RowNorm { layer: false, bias: false, eps, offset }, 1)
            }
            Op::LayerNorm { bias, eps, .. } => {
                let bias = bias.is_some();
                (RowNorm { layer: true, bias, eps, offset: 0.0 }, 1 + u32::from(bias))
            }
            _ => return inputs,
        };
        inputs.bias = inputs.bias.map(|_| vectors * self.cols(self.input(node, 0)));
        if takes_norm {
            inputs.x = self.input(node, 0);
            inputs.norm = Some(norm);
            let result = nodes[node].outputs[0];
            let is_output = code.graph.outputs.contains(&result);
            inputs.kept = is_output.then_some(result.0 as usize);
        }
        inputs
    }

    /// A product, and what is around it.
    pub fn product(&mut self, chain: &Chain, of: Option<Fusion>) -> Emitted {
        let layout = self.linear(chain.linear)?;
        let ProductInputs { x, vectors, norm, kept, bias } = self.product_inputs(chain.linear, of);
        let (y, locs) = (chain.result.0 as usize, self.locs);
        let value = |id: &ValueId| id.0 as usize;
        let loc = |v: Option<usize>| v.map(|v| locs[v]);
        let gate = chain.gate.as_ref().map(value);
        let addends = [0, 1].map(|i| chain.addends.get(i).map(value));
        for (part, rows) in layout.parts().enumerate() {
            let around = Around {
                norm,
                // The first part keeps it for all.
                normed: loc(kept.filter(|_| part == 0)),
                bias,
                act: chain.act,
                gate: loc(gate),
                addends: addends.map(loc),
            };
            let made = kernels::linear(rows, self.rows(x), &around, locs[x], locs[y]);
            let weight = Operand::Weight { of: chain.linear, pack: 0, part };
            let [gate, a, b, kept] = [gate, addends[0], addends[1], kept].map(Operand::from);
            self.push(made, &[weight, vectors, Value(x), Value(y), gate, a, b, kept])?;
        }
        Ok(())
    }

    /// Two or three products of one value.
    fn products(&mut self, list: &[usize], of: Fusion) -> Emitted {
        let ProductInputs { x, vectors, norm, bias, .. } = self.product_inputs(list[0], Some(of));
        // The place of a third one that is missing is taken by the second one, without rows.
        let node = |i: usize| *list.get(i).unwrap_or(&list[1]);
        let [a, b, mut c] =
            [0, 1, 2].map(|i| self.linear(node(i)).and_then(|layout| layout.whole()));
        if list.len() < 3 {
            c = c.map(|matrix| Matrix { rows: 0, ..matrix });
        }
        let results = [0, 1, 2].map(|i| self.output(node(i), 0));
        let few = FewRows { rows: self.rows(x), norm, bias };
        let [p, q, r] = results;
        let at = [x, p, q, r].map(|v| self.locs[v]);
        let made = kernels::linear_three([a?, b?, c?], few, at);
        let [a, b, c] = [0, 1, 2].map(|i| weight(node(i), 0));
        self.push(made, &[a, b, c, vectors, Value(x), Value(p), Value(q), Value(r)])
    }

    /// An activated gate times up.
    fn gate_up(&mut self, GateUp { gate, up, product }: GateUp, of: Fusion) -> Emitted {
        let Op::Gate(act) = self.code.graph.nodes[product].op else {
            return unsupported("a gate of another op");
        };
        let layout = self.linear(gate)?;
        let ProductInputs { x, vectors, norm, bias, .. } = self.product_inputs(gate, Some(of));
        let (y, all) = (self.output(product, 0), layout.matrix.rows);
        let few = FewRows { rows: self.rows(x), norm, bias };
        for (part, rows) in layout.parts().enumerate() {
            let made = kernels::gate_up(rows, all, act, few, [self.locs[x], self.locs[y]]);
            let [g, u] = [gate, up].map(|of| Operand::Weight { of, pack: 0, part });
            self.push(made, &[g, u, vectors, Value(x), Value(y)])?;
        }
        Ok(())
    }

    /// A norm, whose results may be added to a value.
    pub fn norm(&mut self, at: usize, addend: Option<usize>, y: usize) -> Emitted {
        let x = self.input(at, 0);
        let (rows, cols) = (self.rows(x), self.cols(x));
        let shape = |group: usize, own_weights: bool, eps: f32| {
            let group = group as u32;
            NormShape { rows, groups: cols / group, group, own_weights, eps }
        };
        let to: [Loc; 2] = [x, y].map(|v| self.locs[v]);
        let other = addend.map(|a| self.locs[a]);
        let own = |has: bool, pack: usize| if has { weight(at, pack) } else { Unused };
        let (made, [w, b]) = match self.code.graph.nodes[at].op {
            Op::RmsNorm { weight, eps, offset, group } => {
                let own_weights = weight.is_some_and(|w| self.code.graph.weight(w).cols != group);
                let shape = shape(group, own_weights, eps);
                let made = kernels::rms_norm(shape, weight.map(|_| offset), other, to);
                (made, [own(weight.is_some(), 0), Unused])
            }
            Op::LayerNorm { bias, eps, group, .. } => {
                let made = kernels::layer_norm(shape(group, false, eps), bias.is_some(), other, to);
                (made, [own(true, 0), own(bias.is_some(), 1)])
            }
            Op::Rescale(r) => {
                let weighted = matches!(r, Rescale::Columns(_));
                (kernels::rescale(r, rows, cols, other, to), [own(weighted, 0), Unused])
            }
            _ => return unsupported("a norm of another op"),
        };
        self.push(made, &[w, b, Value(x), addend.into(), Value(y)])
    }
}
