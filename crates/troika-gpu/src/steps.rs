//! The steps of units: one dispatch for several ops where there is a kernel, else one for each.

use troika_graph::{Op, ValueId};

use crate::bound::MultiplyCount;
use crate::compile::{Code, Dispatches, Emitted, Operand, PackPart, PlacedDispatch, Shape, part};
use crate::kernels::{
    self, Around, FewRows, KernelError, Loc, Matrix, NormShape, RowNorm, is_eight_bits, unsupported,
};
use crate::units::{Chain, GateUp, Pattern};

/// The vectors that products bind, and what lies in them.
struct Vectors {
    at: Option<PackPart>,
    /// The norm of x, if products take it on.
    norm: Option<RowNorm>,
    /// Where biases begin.
    bias: Option<u32>,
}

/// A unit by its number, and whether it takes on the norm of what it reads.
type Of = (usize, bool);

impl Code {
    /// The steps of a unit.
    ///
    /// # Errors
    /// An op that has no kernel for this shape.
    pub(crate) fn unit_steps(&self, at: usize, s: &Shape<'_>, out: &mut Dispatches) -> Emitted {
        let unit = &self.units[at];
        let takes = unit.norm.is_some_and(|norm| self.is_taken(norm, s));
        let from = out.len();
        if self.fused((at, takes), s, out).is_ok() {
            self.finish(&unit.nodes, s.rows, &mut out[from..]);
            return Ok(());
        }
        out.truncate(from);
        for node in &unit.nodes {
            let from = out.len();
            self.emit(*node, s, out)?;
            self.finish(&[*node], s.rows, &mut out[from..]);
        }
        Ok(())
    }

    /// Completes the steps of nodes.
    fn finish(&self, nodes: &[usize], rows: usize, steps: &mut [PlacedDispatch]) {
        self.share_work(nodes, rows, steps);
        if self.matrix_units {
            steps.iter_mut().for_each(|step| kernels::with_matrix_units(&mut step.dispatch));
        }
    }

    /// Shares out the multiplications of nodes to their steps.
    fn share_work(&self, nodes: &[usize], rows: usize, steps: &mut [PlacedDispatch]) {
        let works = nodes.iter().map(|n| self.work(*n, rows));
        let sum = works.fold(MultiplyCount::default(), |a, w| MultiplyCount {
            fixed: a.fixed.saturating_add(w.fixed),
            each: a.each.saturating_add(w.each),
        });
        let count = steps.len().max(1) as u64;
        let share = MultiplyCount { fixed: sum.fixed / count, each: sum.each / count };
        steps.iter_mut().for_each(|step| step.work = share);
    }

    /// Whether all readers of a norm take it on.
    fn is_taken(&self, norm: usize, s: &Shape<'_>) -> bool {
        let mut readers = (0..self.units.len()).filter(|u| self.units[*u].norm == Some(norm));
        readers.all(|u| self.fused((u, true), s, &mut Vec::new()).is_ok())
    }

    /// The steps of a unit's pattern.
    fn fused(&self, (at, takes): Of, s: &Shape<'_>, out: &mut Dispatches) -> Emitted {
        let unit = &self.units[at];
        let vectors = PackPart { of: self.graph.nodes.len() + at, pack: 0, part: 0 };
        match &unit.pattern {
            Pattern::Norm if self.is_taken(unit.nodes[0], s) => Ok(()),
            Pattern::Norm | Pattern::Alone => unsupported("one of several ops"),
            Pattern::Product(chain) => self.product(chain, Some((at, takes)), s, out),
            Pattern::Products(list) => self.products(list, (at, takes), s, out),
            Pattern::GateUp(of) => self.gate_up(*of, (at, takes), s, out),
            Pattern::NormAdd { norm, addend, result } => {
                self.norm(*norm, Some(addend.0 as usize), result.0 as usize, s, out)
            }
            Pattern::Rotate { ropes: [q, k], norms } => {
                self.rotate(*q, *k, norms.map(|norms| (norms, vectors)), s, out)
            }
            Pattern::HeadNorms([q, k]) => self.head_norms(*q, *k, vectors, s, out),
            Pattern::Attend { appends, attention } => self.attend(appends, *attention, s, out),
            Pattern::ExpertsAdd { experts, addend, result } => {
                self.experts(*experts, Some(addend.0 as usize), result.0 as usize, s, out)
            }
        }
    }

    /// What the product of a node binds besides its weight.
    fn vectors(&self, linear: usize, of: Option<Of>) -> Vectors {
        let nodes = &self.graph.nodes;
        let bias = matches!(nodes[linear].op, Op::Linear { bias: Some(_), .. });
        let Some((unit, takes)) = of else {
            let own = PackPart { of: linear, pack: 1, part: 0 };
            return Vectors { at: bias.then_some(own), norm: None, bias: bias.then_some(0) };
        };
        let (mut norm, mut floats) = (None, 0);
        if let Some(node) = self.units[unit].norm.map(|n| &nodes[n]) {
            let cols = node.inputs.first().map_or(0, |x| self.slots[x.0 as usize].cols as u32);
            norm = match node.op {
                Op::RmsNorm { eps, offset, .. } => {
                    floats = cols;
                    Some(RowNorm { layer: false, bias: false, eps, offset })
                }
                Op::LayerNorm { bias, eps, .. } => {
                    let bias = bias.is_some();
                    floats = cols * (1 + u32::from(bias));
                    Some(RowNorm { layer: true, bias, eps, offset: 0.0 })
                }
                _ => None,
            };
        }
        let has = !self.packs[nodes.len() + unit].is_empty();
        let at = has.then_some(PackPart { of: nodes.len() + unit, pack: 0, part: 0 });
        Vectors { at, norm: norm.filter(|_| takes), bias: bias.then_some(floats) }
    }

    /// What products of a node multiply: what its norm reads, if they take that on.
    fn multiplied(&self, linear: usize, of: Option<Of>) -> usize {
        let taken = of.filter(|(_, takes)| *takes).and_then(|(unit, _)| self.units[unit].norm);
        let inputs = &self.graph.nodes[taken.unwrap_or(linear)].inputs;
        inputs.first().map_or(0, |x| x.0 as usize)
    }

    /// Where a norm's results are kept, which products take on and others read.
    fn kept(&self, of: Option<Of>, s: &Shape<'_>) -> Option<(usize, Loc)> {
        let (unit, _) = of.filter(|(_, takes)| *takes)?;
        let n = *self.graph.nodes[self.units[unit].norm?].outputs.first()?;
        let is_output = self.graph.outputs.contains(&n);
        is_output.then(|| (n.0 as usize, s.locs[n.0 as usize]))
    }

    /// A product, and what is around it.
    pub(crate) fn product(
        &self,
        chain: &Chain,
        of: Option<Of>,
        s: &Shape<'_>,
        out: &mut Dispatches,
    ) -> Emitted {
        let at = chain.linear;
        let Op::Linear { weight, activations, .. } = self.graph.nodes[at].op else {
            return unsupported("a product of another op");
        };
        let eight_bits = is_eight_bits(activations)?;
        let (format, split, cols) = self.matrix(weight)?;
        let vectors = self.vectors(at, of);
        let (x, y) = (self.multiplied(at, of), chain.result.0 as usize);
        let rows = self.slots[x].rows_of(s.rows) as u32;
        let value = |id: Option<&ValueId>| id.map(|id| id.0 as usize);
        let loc = |v: Option<usize>| v.map(|v| s.locs[v]);
        let (gate, kept) = (value(chain.gate.as_ref()), self.kept(of, s));
        let addends = [0, 1].map(|i| value(chain.addends.get(i)));
        for (i, (first, count)) in split.parts().enumerate() {
            let weight = Operand::Weight(PackPart { of: at, pack: 0, part: i });
            let around = Around {
                norm: vectors.norm,
                // The first part keeps it for all.
                normed: kept.filter(|_| i == 0).map(|(_, loc)| loc),
                bias: vectors.bias,
                act: chain.act,
                gate: loc(gate),
                addends: addends.map(loc),
            };
            let part = part(format, first, count, cols, eight_bits);
            let made = kernels::linear(part, rows, &around, s.locs[x], s.locs[y])?;
            let or_x = |v: Option<usize>| Operand::Value(v.unwrap_or(x));
            let [a, b] = addends.map(or_x);
            let operands = vec![
                weight,
                vectors.at.map_or(weight, Operand::Weight),
                Operand::Value(x),
                Operand::Value(y),
                or_x(gate),
                a,
                b,
                or_x(kept.map(|(n, _)| n)),
            ];
            out.push(PlacedDispatch::new(made, operands));
        }
        Ok(())
    }

    /// The weight of a product that is not split.
    fn whole(&self, linear: usize) -> Result<(Matrix, Operand), KernelError> {
        let Op::Linear { weight, activations, .. } = self.graph.nodes[linear].op else {
            return unsupported("a product of another op");
        };
        let eight_bits = is_eight_bits(activations)?;
        let (format, split, cols) = self.matrix(weight)?;
        if split.each < split.all {
            return unsupported("a part of a weight");
        }
        let of = PackPart { of: linear, pack: 0, part: 0 };
        Ok((part(format, 0, split.all, cols, eight_bits), Operand::Weight(of)))
    }

    /// Two or three products of one value.
    fn products(&self, list: &[usize], of: Of, s: &Shape<'_>, out: &mut Dispatches) -> Emitted {
        let [first, second, ref rest @ ..] = *list else {
            return unsupported("fewer than two products");
        };
        let vectors = self.vectors(first, Some(of));
        let x = self.multiplied(first, Some(of));
        // The place of a third one that is missing is taken by the second one, without rows.
        let third = rest.first().copied();
        let mut weights = Vec::new();
        let mut results = Vec::new();
        let mut operands = Vec::new();
        for node in [first, second, third.unwrap_or(second)] {
            let (matrix, operand) = self.whole(node)?;
            let y = self.graph.nodes[node].outputs.first().map_or(x, |y| y.0 as usize);
            weights.push(matrix);
            results.push(y);
            operands.push(operand);
        }
        let [a, b, mut c] = weights[..] else { return unsupported("other than three products") };
        if third.is_none() {
            c.rows = 0;
        }
        let rows = self.slots[x].rows_of(s.rows) as u32;
        let few = FewRows { rows, norm: vectors.norm, bias: vectors.bias };
        let at = [x, results[0], results[1], results[2]].map(|v| s.locs[v]);
        let made = kernels::linear_three([a, b, c], few, at)?;
        operands.push(vectors.at.map_or(operands[0], Operand::Weight));
        operands.push(Operand::Value(x));
        operands.extend(results.into_iter().map(Operand::Value));
        out.push(PlacedDispatch::new(made, operands));
        Ok(())
    }

    /// An activated gate times up.
    fn gate_up(
        &self,
        GateUp { gate, up, product }: GateUp,
        of: Of,
        s: &Shape<'_>,
        out: &mut Dispatches,
    ) -> Emitted {
        let nodes = &self.graph.nodes;
        let (Op::Linear { weight, activations, .. }, Op::Gate(act)) =
            (&nodes[gate].op, &nodes[product].op)
        else {
            return unsupported("a gate of another op");
        };
        let eight_bits = is_eight_bits(*activations)?;
        let (format, split, cols) = self.matrix(*weight)?;
        let vectors = self.vectors(gate, Some(of));
        let x = self.multiplied(gate, Some(of));
        let y = self.graph.nodes[product].outputs.first().map_or(x, |y| y.0 as usize);
        let rows = self.slots[x].rows_of(s.rows) as u32;
        let few = FewRows { rows, norm: vectors.norm, bias: vectors.bias };
        for (i, (first, count)) in split.parts().enumerate() {
            let matrix = part(format, first, count, cols, eight_bits);
            let at = [s.locs[x], s.locs[y]];
            let made = kernels::gate_up(matrix, split.all as u32, *act, few, at)?;
            let [g, u] = [gate, up].map(|of| PackPart { of, pack: 0, part: i });
            let vectors = vectors.at.unwrap_or(g);
            let mut operands = [g, u, vectors].map(Operand::Weight).to_vec();
            operands.extend([x, y].map(Operand::Value));
            out.push(PlacedDispatch::new(made, operands));
        }
        Ok(())
    }

    /// A norm, whose results may be added to a value.
    pub(crate) fn norm(
        &self,
        at: usize,
        addend: Option<usize>,
        y: usize,
        s: &Shape<'_>,
        out: &mut Dispatches,
    ) -> Emitted {
        let node = &self.graph.nodes[at];
        let x = node.inputs.first().map_or(0, |x| x.0 as usize);
        let slot = &self.slots[x];
        let (rows, cols) = (slot.rows_of(s.rows) as u32, slot.cols as u32);
        let (to, other) = ([s.locs[x], s.locs[y]], addend.map(|a| s.locs[a]));
        let pack = |pack: usize| Operand::Weight(PackPart { of: at, pack, part: 0 });
        let (made, weights) = match node.op {
            Op::RmsNorm { weight, eps, offset, group } => {
                let shape = norm_shape(rows, cols, group, eps)?;
                let made = kernels::rms_norm(shape, weight.map(|_| offset), other, to)?;
                (made, [weight.map_or(Operand::Spare, |_| pack(0)), Operand::Spare])
            }
            Op::LayerNorm { bias, eps, group, .. } => {
                let shape = norm_shape(rows, cols, group, eps)?;
                let made = kernels::layer_norm(shape, bias.is_some(), other, to)?;
                (made, [pack(0), pack(usize::from(bias.is_some()))])
            }
            _ => return unsupported("a norm of another op"),
        };
        let values = [x, addend.unwrap_or(x), y].map(Operand::Value);
        out.push(PlacedDispatch::new(made, [&weights[..], &values[..]].concat()));
        Ok(())
    }
}

fn norm_shape(rows: u32, cols: u32, group: usize, eps: f32) -> Result<NormShape, KernelError> {
    let group = group as u32;
    if group == 0 || !cols.is_multiple_of(group) {
        return unsupported(format!("groups of {group} of {cols} columns"));
    }
    Ok(NormShape { rows, groups: cols / group, group, eps })
}
