//! Which ops are served by one dispatch together: patterns of a graph whose values in between
//! nothing else reads. Where a shape has no kernel for a pattern, its ops run one by one.

use troika_graph::{Activation, ActivationFormat, Node, Op, Subgraph, ValueId};

use crate::kernels::is_eight_bits;

/// Ops that run together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Unit {
    /// All of them, in the graph's order.
    pub nodes: Vec<usize>,
    pub pattern: Pattern,
    /// The norm of what products read, if they can take it on. It is a unit of its own, which is
    /// left out where all its readers take it on.
    pub norm: Option<usize>,
}

/// Nodes by the part that they play.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// Any op.
    Alone,
    /// A norm that its readers may take on.
    Norm,
    /// A product and what becomes of its results.
    Product(Chain),
    /// Two or three products of one value.
    Products(Vec<usize>),
    /// Two products that a gate follows.
    GateUp(GateUp),
    /// Norms and rotations of heads.
    Heads(Heads),
    /// Attention over what is appended before: keys, and values that are not parts of keys.
    Attend { appends: Vec<usize>, attention: usize },
    /// A norm or experts whose results are added to a value.
    Sum { node: usize, addend: ValueId, result: ValueId },
}

/// An activated gate times up: the two products, and the gate that follows them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GateUp {
    pub gate: usize,
    pub up: usize,
    pub product: usize,
}

/// Norms and rotations of the heads of queries and of keys, one of them at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Heads {
    pub norms: Option<[usize; 2]>,
    pub ropes: Option<[usize; 2]>,
}

/// A product whose results are activated, multiplied by gates of rows, and added to values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chain {
    pub linear: usize,
    pub act: Option<Activation>,
    pub gate: Option<ValueId>,
    pub addends: Vec<ValueId>,
    /// What is computed in the end.
    pub result: ValueId,
}

impl Chain {
    /// A product with nothing behind it.
    pub fn of(linear: usize, result: ValueId) -> Chain {
        Chain { linear, act: None, gate: None, addends: Vec::new(), result }
    }
}

/// The most products of one value at once.
const MOST_PRODUCTS: usize = 3;
/// The most values that are added to a product.
const MOST_ADDENDS: usize = 2;

/// The units of a graph, in an order in which they can run.
pub(crate) fn units(graph: &Subgraph) -> Vec<Unit> {
    let mut matcher = Matcher::new(graph);
    for at in 0..graph.nodes.len() {
        matcher.gate_up(at);
    }
    for at in 0..graph.nodes.len() {
        matcher.rotate(at);
        matcher.attend(at);
    }
    for at in 0..graph.nodes.len() {
        matcher.head_norms(at);
    }
    // The later of two products whose results are added takes the sum.
    for at in (0..graph.nodes.len()).rev() {
        matcher.chain(at);
    }
    for at in 0..graph.nodes.len() {
        matcher.products(at);
        matcher.sum(at);
    }
    matcher.rest();
    matcher.norms();
    let alone = || (0..graph.nodes.len()).map(Unit::alone).collect();
    ordered(graph, matcher.units).unwrap_or_else(alone)
}

impl Unit {
    fn new(mut nodes: Vec<usize>, pattern: Pattern) -> Unit {
        nodes.sort_unstable();
        Unit { nodes, pattern, norm: None }
    }

    /// An op by itself.
    pub fn alone(node: usize) -> Unit {
        Unit::new(vec![node], Pattern::Alone)
    }

    /// The values that it reads: those of its ops, and those of the norm that it may take on.
    pub fn reads<'g>(&self, graph: &'g Subgraph) -> impl Iterator<Item = ValueId> + use<'g, '_> {
        let nodes = self.nodes.iter().chain(&self.norm);
        nodes.flat_map(|n| graph.nodes[*n].inputs.iter().copied())
    }

    /// The weights of a norm and biases that it binds as one vector.
    pub fn vectors(&self, graph: &Subgraph) -> Vec<troika_graph::WeightRef> {
        let mut all = Vec::new();
        match self.norm.map(|n| &graph.nodes[n].op) {
            Some(Op::RmsNorm { weight, .. }) => all.extend(weight),
            Some(Op::LayerNorm { weight, bias, .. }) => all.extend([*weight].iter().chain(bias)),
            _ => {}
        }
        let linears: &[usize] = match &self.pattern {
            Pattern::Product(chain) => &[chain.linear],
            Pattern::Products(list) => list,
            Pattern::GateUp(GateUp { gate, up, .. }) => &[*gate, *up],
            Pattern::Heads(Heads { norms: Some(norms), .. }) => norms,
            _ => &[],
        };
        for node in linears {
            match &graph.nodes[*node].op {
                Op::Linear { bias, .. } => all.extend(bias),
                Op::RmsNorm { weight, .. } => all.extend(weight),
                _ => {}
            }
        }
        all
    }
}

struct Matcher<'g> {
    graph: &'g Subgraph,
    /// The node that computes each value.
    made_by: Vec<Option<usize>>,
    /// The nodes that read each value.
    read_by: Vec<Vec<usize>>,
    taken: Vec<bool>,
    units: Vec<Unit>,
}

impl<'g> Matcher<'g> {
    fn new(graph: &'g Subgraph) -> Matcher<'g> {
        let mut made_by = vec![None; graph.values.len()];
        let mut read_by = vec![Vec::new(); graph.values.len()];
        for (at, node) in graph.nodes.iter().enumerate() {
            node.outputs.iter().for_each(|v| made_by[v.0 as usize] = Some(at));
            node.inputs.iter().for_each(|v| read_by[v.0 as usize].push(at));
        }
        let taken = vec![false; graph.nodes.len()];
        Matcher { graph, made_by, read_by, taken, units: Vec::new() }
    }

    fn node(&self, at: usize) -> &'g Node {
        &self.graph.nodes[at]
    }

    fn take(&mut self, nodes: &[usize], pattern: Pattern) {
        nodes.iter().for_each(|n| self.taken[*n] = true);
        self.units.push(Unit::new(nodes.to_vec(), pattern));
    }

    /// The only reader of a value, if it is no output and the reader is free.
    fn only_reader(&self, value: ValueId) -> Option<usize> {
        let [reader] = self.read_by[value.0 as usize][..] else { return None };
        let is_inner = !self.graph.outputs.contains(&value) && !self.taken[reader];
        (is_inner && self.made_by[value.0 as usize].is_some()).then_some(reader)
    }

    /// The free node that makes a value which only `reader` reads.
    fn maker(&self, value: ValueId, reader: usize) -> Option<usize> {
        let made = self.made_by[value.0 as usize].filter(|n| !self.taken[*n])?;
        (self.only_reader(value) == Some(reader)).then_some(made)
    }

    fn is_product(&self, at: usize) -> bool {
        let fits = |a: &ActivationFormat| is_eight_bits(*a).is_ok();
        matches!(&self.node(at).op, Op::Linear { activations, .. } if fits(activations))
    }

    /// Whether two products have weights of one type and shape, activations in one format, and both a
    /// bias or none.
    fn alike(&self, a: usize, b: usize, rows_too: bool) -> bool {
        let of = |at: usize| match &self.node(at).op {
            Op::Linear { weight, bias, activations, .. } => {
                let w = self.graph.weight(*weight);
                let rows = rows_too.then_some(w.rows);
                Some((w.dtype, w.cols, *activations, bias.is_some(), rows))
            }
            _ => None,
        };
        of(a).is_some() && of(a) == of(b)
    }

    fn gate_up(&mut self, product: usize) {
        let (Op::Gate(_), [g, u]) = (&self.node(product).op, &self.node(product).inputs[..]) else {
            return;
        };
        let Some((gate, up)) = self.maker(*g, product).zip(self.maker(*u, product)) else { return };
        let fits = gate != up && self.is_product(gate) && self.is_product(up);
        if fits && self.alike(gate, up, true) && self.node(gate).inputs == self.node(up).inputs {
            self.take(&[gate, up, product], Pattern::GateUp(GateUp { gate, up, product }));
        }
    }

    /// The norm of heads that only a rotation reads.
    fn head_norm(&self, rope: usize) -> Option<usize> {
        let norm = self.maker(*self.node(rope).inputs.first()?, rope)?;
        self.common_norm(norm).map(|_| norm)
    }

    /// Numbers of a norm whose groups have the same weights.
    fn common_norm(&self, at: usize) -> Option<(u32, u32, usize)> {
        match self.node(at).op {
            Op::RmsNorm { weight: Some(w), eps, offset, group }
                if self.graph.weight(w).cols == group =>
            {
                Some((eps.to_bits(), offset.to_bits(), group))
            }
            _ => None,
        }
    }

    fn rotate(&mut self, q: usize) {
        let Op::Rope(of_q) = &self.node(q).op else { return };
        let same = |k: &usize| match &self.node(*k).op {
            Op::Rope(of_k) => {
                of_k == of_q && self.node(*k).inputs.get(1) == self.node(q).inputs.get(1)
            }
            _ => false,
        };
        let Some(k) = (q + 1..self.graph.nodes.len()).find(|k| !self.taken[*k] && same(k)) else {
            return;
        };
        if self.taken[q] {
            return;
        }
        let numbers = |norm: usize| self.common_norm(norm).map(|(eps, offset, _)| (eps, offset));
        let norms = self.head_norm(q).zip(self.head_norm(k));
        let norms = norms.filter(|(a, b)| numbers(*a) == numbers(*b)).map(|(a, b)| [a, b]);
        let mut nodes = vec![q, k];
        nodes.extend(norms.iter().flatten());
        self.take(&nodes, Pattern::Heads(Heads { norms, ropes: Some([q, k]) }));
    }

    fn head_norms(&mut self, q: usize) {
        let of = |at: usize| self.common_norm(at).filter(|_| !self.taken[at]);
        let cols = |v: &ValueId| self.graph.value(*v).shape.row_len();
        let (Some(numbers), Some(x)) = (of(q), self.node(q).inputs.first()) else { return };
        if numbers.2 == cols(x) {
            return;
        }
        if let Some(k) = (q + 1..self.graph.nodes.len()).find(|k| of(*k) == Some(numbers)) {
            self.take(&[q, k], Pattern::Heads(Heads { norms: Some([q, k]), ropes: None }));
        }
    }

    fn attend(&mut self, attention: usize) {
        let Op::Attention(op) = &self.node(attention).op else { return };
        let mut nodes = Vec::new();
        for state in &self.node(attention).states {
            let uses = |n: &usize| self.node(*n).states.contains(state);
            let all: Vec<usize> = (0..self.graph.nodes.len()).filter(uses).collect();
            let [append, last] = all[..] else { return };
            let fits = match &self.node(append).op {
                Op::KvAppend(k) => k.page_group == op.page_group && last == attention,
                _ => false,
            };
            if !fits || self.taken[append] || self.node(append).states.len() != 1 {
                return;
            }
            nodes.push(append);
        }
        let appends = nodes.clone();
        nodes.push(attention);
        self.take(&nodes, Pattern::Attend { appends, attention });
    }

    /// The sum that only reads a value and another one: its node, the other one and the result.
    fn added(&self, value: ValueId) -> Option<(usize, ValueId, ValueId)> {
        let add = self.only_reader(value)?;
        let node = self.node(add);
        let ([a, b], [result], Op::Add) = (&node.inputs[..], &node.outputs[..], &node.op) else {
            return None;
        };
        let other = if *a == value { *b } else { *a };
        (other != value).then_some((add, other, *result))
    }

    fn chain(&mut self, linear: usize) {
        let [result] = self.node(linear).outputs[..] else { return };
        if self.taken[linear] || !self.is_product(linear) {
            return;
        }
        let mut nodes = vec![linear];
        let mut chain = Chain::of(linear, result);
        if let Some(at) = self.only_reader(chain.result)
            && let (Op::Activate(act), [y]) = (&self.node(at).op, &self.node(at).outputs[..])
            && !matches!(act, Activation::ClampedSwiglu { .. })
        {
            (chain.act, chain.result) = (Some(*act), *y);
            nodes.push(at);
        }
        if let Some(at) = self.only_reader(chain.result)
            && let node = self.node(at)
            && let (Op::SigmoidGate, [x, gate], [y]) =
                (&node.op, &node.inputs[..], &node.outputs[..])
            && *x == chain.result
            && x != gate
        {
            (chain.gate, chain.result) = (Some(*gate), *y);
            nodes.push(at);
        }
        while chain.addends.len() < MOST_ADDENDS
            && let Some((add, other, y)) = self.added(chain.result)
        {
            chain.addends.push(other);
            chain.result = y;
            nodes.push(add);
        }
        if nodes.len() > 1 {
            self.take(&nodes, Pattern::Product(chain));
        }
    }

    fn products(&mut self, first: usize) {
        if self.taken[first] || !self.is_product(first) {
            return;
        }
        let alike = |at: &usize| {
            let free = !self.taken[*at] && self.is_product(*at);
            free && self.alike(first, *at, false)
                && self.node(*at).inputs == self.node(first).inputs
        };
        let others = (first + 1..self.graph.nodes.len()).filter(alike);
        let all: Vec<usize> = std::iter::once(first).chain(others).take(MOST_PRODUCTS).collect();
        if all.len() > 1 {
            self.take(&all, Pattern::Products(all.clone()));
        }
    }

    /// Norms and experts whose results are added to a value.
    fn sum(&mut self, at: usize) {
        let node = self.node(at);
        if self.taken[at]
            || !matches!(node.op, Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::Experts(_))
        {
            return;
        }
        if let Some((add, addend, result)) = self.added(node.outputs[0]) {
            self.take(&[at, add], Pattern::Sum { node: at, addend, result });
        }
    }

    /// What is left runs alone; a product is one with nothing behind it.
    fn rest(&mut self) {
        for at in 0..self.graph.nodes.len() {
            if self.taken[at] {
                continue;
            }
            let pattern = match self.node(at).outputs[..] {
                [result] if self.is_product(at) => Pattern::Product(Chain::of(at, result)),
                _ => Pattern::Alone,
            };
            self.take(&[at], pattern);
        }
    }

    /// Norms of whole rows that only products read are offered to these.
    fn norms(&mut self) {
        for norm in 0..self.graph.nodes.len() {
            let node = self.node(norm);
            let (&[x], &[n]) = (&node.inputs[..], &node.outputs[..]) else { continue };
            let cols = self.graph.value(x).shape.row_len();
            let fits = match &node.op {
                Op::RmsNorm { weight, group, .. } => weight.is_some() && *group == cols,
                Op::LayerNorm { group, .. } => *group == cols,
                _ => false,
            };
            let alone = self.units.iter().position(|u| u.nodes == [norm]);
            let Some(alone) = alone.filter(|_| fits) else { continue };
            let readers: Vec<usize> =
                (0..self.units.len()).filter(|u| self.reads(&self.units[*u], n)).collect();
            let is_kept = self.graph.outputs.contains(&n);
            let can_keep = match &readers[..] {
                [one] => matches!(self.units[*one].pattern, Pattern::Product(_)),
                _ => false,
            };
            let all_take = readers.iter().all(|u| self.takes_norm(&self.units[*u], n));
            if !readers.is_empty() && all_take && (can_keep || !is_kept) {
                self.units[alone].pattern = Pattern::Norm;
                readers.into_iter().for_each(|u| self.units[u].norm = Some(norm));
            }
        }
    }

    fn reads(&self, unit: &Unit, value: ValueId) -> bool {
        unit.nodes.iter().any(|n| self.node(*n).inputs.contains(&value))
    }

    /// Whether a unit reads a value only as what its products multiply.
    fn takes_norm(&self, unit: &Unit, n: ValueId) -> bool {
        let products = match &unit.pattern {
            Pattern::Product(chain) => vec![chain.linear],
            Pattern::Products(list) => list.clone(),
            Pattern::GateUp(GateUp { gate, up, .. }) => vec![*gate, *up],
            _ => return false,
        };
        let only = |at: &usize| products.contains(at) || !self.node(*at).inputs.contains(&n);
        unit.norm.is_none() && unit.nodes.iter().all(only)
    }
}

/// Units in an order in which each follows those whose results and states it reads; `None` if there
/// is none.
fn ordered(graph: &Subgraph, mut left: Vec<Unit>) -> Option<Vec<Unit>> {
    left.sort_by_key(|unit| unit.nodes.first().copied());
    let mut ordered = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let ready = left.iter().position(|unit| {
            let waits = |other: &Unit| other != unit && follows(graph, unit, other);
            !left.iter().any(waits)
        })?;
        ordered.push(left.remove(ready));
    }
    Some(ordered)
}

/// Whether a unit reads what another one makes, or a state that this touches before.
fn follows(graph: &Subgraph, unit: &Unit, other: &Unit) -> bool {
    let makes = |v: ValueId| other.nodes.iter().any(|n| graph.nodes[*n].outputs.contains(&v));
    let shares = |a: usize, b: usize| {
        let (a, b) = (&graph.nodes[a], &graph.nodes[b]);
        a.states.iter().any(|s| b.states.contains(s))
    };
    let touches = |a: &usize| other.nodes.iter().any(|b| b < a && shares(*a, *b));
    unit.reads(graph).any(makes) || unit.nodes.iter().any(touches)
}
