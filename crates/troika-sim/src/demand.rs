//! The work of a run: operations by activation format, and bytes to move. Pure functions of the
//! subgraph's shapes and the forward batch.

use troika_device::{ForwardBatch, SeqRows};
use troika_graph::{
    ActivationFormat, Attention, Dim, Experts, Node, Op, ProductForm, Subgraph, ValueId, WeightRef,
    Window,
};

use crate::soc::Tile;

/// Operations and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Operations in f32; a multiply-add counts as two.
    pub f32: u64,
    /// Operations with eight-bit activations.
    pub int8: u64,
    /// Operations with bf16 activations.
    pub bf16: u64,
    /// Bytes read and written: weights, bound values and cached positions. Values inside a graph
    /// stay within the processor.
    pub bytes: u64,
}

impl Demand {
    /// The demand of a graph on some rows. Products are rounded up to whole tiles of rows and
    /// columns.
    pub fn of(graph: &Subgraph, rows: usize, forward: &ForwardBatch, tile: Tile) -> Demand {
        RunShape { graph, rows, forward, tile }.demand(None)
    }

    /// The same, with products listed separately instead of counted as operations.
    pub fn and_products(
        graph: &Subgraph,
        rows: usize,
        forward: &ForwardBatch,
    ) -> (Demand, Vec<Product>) {
        let mut products = Vec::new();
        let shape = RunShape { graph, rows, forward, tile: Tile::ONE };
        (shape.demand(Some(&mut products)), products)
    }

    fn operations(&mut self, format: ActivationFormat, count: u64) {
        let sum = match format {
            ActivationFormat::F32 => &mut self.f32,
            ActivationFormat::Int(_) => &mut self.int8,
            ActivationFormat::Bf16 | ActivationFormat::F16 | ActivationFormat::F16Int4 => {
                &mut self.bf16
            }
        };
        *sum = sum.saturating_add(count);
    }

    fn move_bytes(&mut self, count: u64) {
        self.bytes = self.bytes.saturating_add(count);
    }
}

/// A product of a run, or adjacent products of one input, which are computed as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    input: ValueId,
    pub format: ActivationFormat,
    /// Rows of the activations.
    pub rows: usize,
    /// Columns of the result: rows of the weight matrix.
    pub outs: usize,
    /// Terms of each sum: columns of the weight matrix.
    pub terms: usize,
    /// Bytes of the weight matrix.
    pub bytes: u64,
    pub quantized: bool,
    pub form: Option<ProductForm>,
}

impl Product {
    /// Elements of the weight matrix.
    pub fn weights(&self) -> u64 {
        times(&[self.outs, self.terms])
    }

    /// The times as long it takes as with as many groups as each has rows.
    pub fn tallness(&self, square_gain: f64) -> f64 {
        let high = self.form.and_then(|form| form.group(self.rows)).unwrap_or(self.rows) as f64;
        let rows = self.rows as f64;
        let apart = if self.rows > 1 { (high * high / rows).ln().abs() / rows.ln() } else { 0.0 };
        1.0 + (square_gain - 1.0) * apart
    }

    /// Its operations, with rows and columns rounded up to whole tiles.
    pub fn operations(&self, tile: Tile) -> u64 {
        whole_tiles(self.rows, self.outs, self.terms, tile)
    }
}

/// Operations of `[m, k] x [k, n]` in whole tiles.
fn whole_tiles(m: usize, n: usize, k: usize, tile: Tile) -> u64 {
    let whole = |n: usize, tile: usize| n.div_ceil(tile).saturating_mul(tile);
    times(&[2, whole(m, tile.rows), whole(n, tile.cols), k])
}

struct RunShape<'a> {
    graph: &'a Subgraph,
    rows: usize,
    forward: &'a ForwardBatch,
    tile: Tile,
}

/// A product of counts, saturating.
fn times(counts: &[usize]) -> u64 {
    counts.iter().fold(1_u64, |all, n| all.saturating_mul(*n as u64))
}

impl RunShape<'_> {
    /// Rows of a value in this run; for static shapes, all rows of the shape.
    fn rows_of(&self, id: ValueId) -> usize {
        match self.graph.value(id).shape.0.first() {
            Some(Dim::Fixed(n)) => *n,
            _ => self.rows,
        }
    }

    fn cols(&self, id: ValueId) -> usize {
        self.graph.value(id).shape.row_len()
    }

    fn bytes(&self, id: ValueId, rows: usize) -> u64 {
        times(&[rows, self.graph.value(id).row_bytes()])
    }

    fn weight_bytes(&self, w: WeightRef) -> u64 {
        self.graph.weight(w).bytes()
    }

    /// Bytes of a product's weight: bytes with a scale for each row where inputs have one scale.
    fn multiplied_bytes(&self, weight: WeightRef, activations: ActivationFormat) -> u64 {
        let w = self.graph.weight(weight);
        match activations.is_tensor_bytes() {
            true => times(&[w.rows, w.cols.saturating_add(size_of::<f32>())]),
            false => self.weight_bytes(weight),
        }
    }

    fn weights(&self, all: &[WeightRef]) -> u64 {
        all.iter().fold(0, |sum: u64, w| sum.saturating_add(self.weight_bytes(*w)))
    }

    fn product(&self, m: usize, n: usize, k: usize) -> u64 {
        whole_tiles(m, n, k, self.tile)
    }

    fn demand(&self, mut apart: Option<&mut Vec<Product>>) -> Demand {
        let mut demand = Demand::default();
        for id in self.graph.inputs.iter().chain(&self.graph.outputs) {
            demand.bytes = demand.bytes.saturating_add(self.bytes(*id, self.rows_of(*id)));
        }
        for node in &self.graph.nodes {
            let noted = apart.as_mut().is_some_and(|products| self.note(node, products));
            if !noted {
                self.add(node, &mut demand);
            }
        }
        for product in apart.iter().flat_map(|all| all.iter()) {
            demand.move_bytes(product.bytes);
        }
        demand
    }

    /// Adds a product to the list; `false` for other ops.
    fn note(&self, node: &Node, products: &mut Vec<Product>) -> bool {
        let (Op::Linear { weight, bias, activations, form }, Some(&input), Some(&output)) =
            (&node.op, node.inputs.first(), node.outputs.first())
        else {
            return false;
        };
        let decl = self.graph.weight(*weight);
        let stored = !activations.is_tensor_bytes();
        let new = Product {
            input,
            format: *activations,
            rows: self.rows_of(input),
            outs: self.cols(output),
            terms: self.cols(input),
            bytes: bias.iter().fold(self.multiplied_bytes(*weight, *activations), |sum, b| {
                sum.saturating_add(self.weight_bytes(*b))
            }),
            quantized: stored && decl.dtype.is_quantized(),
            form: *form,
        };
        let key = |p: &Product| (p.input, p.format, p.quantized, p.form);
        match products.last_mut().filter(|p| key(p) == key(&new)) {
            Some(last) => {
                last.outs = last.outs.saturating_add(new.outs);
                last.bytes = last.bytes.saturating_add(new.bytes);
            }
            None => products.push(new),
        }
        true
    }

    fn add(&self, node: &Node, d: &mut Demand) {
        let Some(&first) = node.inputs.first() else { return };
        let (rows, cols) = (self.rows_of(first), self.cols(first));
        let out = node.outputs.first().map_or(0, |id| self.cols(*id));
        match &node.op {
            Op::Embed { table, .. } => {
                let table = self.graph.weight(*table);
                let row = table.dtype.row_size(table.cols);
                d.move_bytes(times(&[rows, row]));
            }
            Op::Linear { weight, bias, activations, .. } => {
                d.operations(*activations, self.product(rows, out, cols));
                d.move_bytes(self.multiplied_bytes(*weight, *activations));
                d.move_bytes(bias.map_or(0, |b| self.weight_bytes(b)));
            }
            // A few columns in a thousand have any (llm.npu, section 3.3).
            Op::Outliers { weight, .. } => {
                let all = self.product(rows, out, cols);
                d.operations(ActivationFormat::F32, all / OUTLIER_COLUMNS);
                d.move_bytes(self.weight_bytes(*weight) / OUTLIER_COLUMNS);
            }
            Op::HeadLinear(h) => {
                let heads = h.weights.len().max(1);
                let one = self.product(rows, out / heads, cols / heads);
                d.operations(ActivationFormat::F32, one.saturating_mul(heads as u64));
                d.move_bytes(self.weights(&h.weights));
            }
            Op::Attention(a) => self.attention(a, node, d),
            Op::Experts(e) => self.experts(e, node, d),
            Op::ExpertGroup(g) => {
                let used = rows.div_ceil(g.capacity.max(1)).min(g.experts.gate.len());
                self.feed_forwards(&g.experts, used, g.capacity.min(rows), cols, d);
            }
            op @ (Op::DecayingSum(_) | Op::ShortConv(_) | Op::Mamba2(_) | Op::DeltaRule(_)) => {
                let each = match op {
                    Op::ShortConv(s) => times(&[cols, s.taps, 2]),
                    Op::Mamba2(m) => times(&[out, m.state_size, 5]),
                    // A state's elements are multiplied and added to four times.
                    Op::DeltaRule(rule) => times(&[8, rule.state().unwrap_or(usize::MAX)]),
                    _ => times(&[cols, 2]),
                };
                d.operations(ActivationFormat::F32, each.saturating_mul(rows as u64));
                d.move_bytes(node.states.first().map_or(0, |s| self.bytes(*s, 2)));
                d.move_bytes(self.weights(&op.weights()));
            }
            Op::KvAppend(_) => {
                d.move_bytes(node.states.first().map_or(0, |s| self.bytes(*s, rows)));
            }
            other => {
                let each = per_element(other);
                d.operations(ActivationFormat::F32, times(&[rows, cols, each]));
                d.move_bytes(self.weights(&other.weights()));
            }
        }
    }

    /// Each row attends to the positions up to its own within its window. Padding rows count like
    /// the last row.
    fn attention(&self, a: &Attention, node: &Node, d: &mut Demand) {
        let rows = node.outputs.first().map_or(0, |o| self.rows_of(*o));
        let (mut seen, mut kept) = (0_u64, 0_usize);
        for seq in &self.forward.seqs {
            let (rows_see, positions) = visible(seq, a.window);
            seen = seen.saturating_add(rows_see);
            kept = kept.saturating_add(positions);
        }
        let last = self.forward.seqs.last();
        let last =
            last.map_or(0, |s| seen_from(s.pos.saturating_add(s.rows.len().max(1) - 1), a.window));
        let padding = rows.saturating_sub(self.forward.rows());
        seen = seen.saturating_add(times(&[padding, last]));
        let width = a.heads.saturating_mul(a.k_dim.saturating_add(a.v_dim));
        d.operations(a.activations, times(&[2, width]).saturating_mul(seen));
        for state in &node.states {
            d.move_bytes(self.bytes(*state, kept));
        }
    }

    /// Assumes that rows are spread evenly over as many experts as they can choose, since the
    /// actual choice does not follow from shapes; a slice gets its share of them. Rows' choices of no
    /// expert count, too.
    fn experts(&self, e: &Experts, node: &Node, d: &mut Demand) {
        let (Some(&x), Some(&ids)) = (node.inputs.first(), node.inputs.get(1)) else { return };
        let (rows, k, top_k) = (self.rows_of(x), self.cols(x), self.cols(ids));
        let pairs = rows.saturating_mul(top_k).saturating_mul(e.gate.len());
        let pairs = pairs.div_ceil(e.gate.len().max(1));
        let used = e.gate.len().min(pairs).max(1);
        self.feed_forwards(e, used, pairs.div_ceil(used), k, d);
    }

    /// The feed-forwards of `used` experts, each on `each` rows of `k` columns.
    fn feed_forwards(&self, e: &Experts, used: usize, each: usize, k: usize, d: &mut Demand) {
        let inter = e.gate.first().map_or(0, |w| self.graph.weight(*w).rows);
        let one = self.product(each, inter, k).saturating_mul(2);
        let one = one.saturating_add(self.product(each, k, inter));
        d.operations(e.activations, one.saturating_mul(used as u64));
        for list in e.lists() {
            d.move_bytes(self.weights(&list[..used.min(list.len())]));
        }
    }
}

/// One column in this many has outliers.
const OUTLIER_COLUMNS: u64 = 400;

/// Number of positions that a row at `pos` sees.
fn seen_from(pos: usize, window: Window) -> usize {
    window.unwrap_or(usize::MAX).min(pos.saturating_add(1))
}

/// Positions that a sequence's rows see: summed over the rows, and the number seen by any of them.
fn visible(seq: &SeqRows, window: Window) -> (u64, usize) {
    let n = seq.rows.len();
    let seen = |i: usize| seen_from(seq.pos.saturating_add(i), window) as u64;
    let sum = (0..n).map(seen).fold(0, u64::saturating_add);
    let first = seq.pos.saturating_add(1).saturating_sub(seen_from(seq.pos, window));
    (sum, if n == 0 { 0 } else { seq.pos.saturating_add(n) - first })
}

/// Operations per element of the first input, for ops other than products.
fn per_element(op: &Op) -> usize {
    match op {
        Op::RmsNorm { .. } | Op::Activate(_) | Op::Router(_) => 4,
        Op::LayerNorm { .. } | Op::Gate(_) | Op::Rescale(_) => 6,
        Op::Mix { streams } => 2 * streams,
        Op::Rope(_) | Op::SoftCap { .. } => 3,
        Op::SigmoidGate => 2,
        Op::SliceCols { .. } | Op::ConcatCols { .. } => 0,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use troika_device::{ForwardBatch, SeqRows};
    use troika_graph::{
        Activation, ActivationFormat, Attention, DType, Dim, ExpertGroup, Experts, Op, Shape,
        Subgraph, SubgraphBuilder, WeightDecl, bind_static,
    };

    use super::{Demand, Tile};

    fn forward(seqs: &[(usize, usize)]) -> ForwardBatch {
        let mut at = 0;
        let seq = |&(pos, n): &(usize, usize)| {
            let rows = at..at + n;
            at += n;
            SeqRows { seq: 0, rows, pos, known_len: pos + n, tables: Vec::new() }
        };
        ForwardBatch { seqs: seqs.iter().map(seq).collect() }
    }

    fn linear(rows: Dim, activations: ActivationFormat) -> Subgraph {
        let mut b = SubgraphBuilder::new("product", rows.bound());
        let weight = b.weight(WeightDecl::whole("w".into(), 100, 64, DType::Q8_0));
        let x = b.input("x", 64, DType::F32);
        let y = b.op("y", Op::Linear { weight, bias: None, activations, form: None }, &[x], 100);
        b.output(y);
        let mut graph = b.finish().unwrap();
        graph.values.iter_mut().for_each(|v| v.shape.0[0] = rows);
        graph
    }

    #[test]
    fn products_are_rounded_up_to_tiles() {
        let graph = linear(Dim::Rows(8), ActivationFormat::F32);
        let batch = forward(&[(0, 3)]);
        // 3 x 64 and 3 x 100 floats, and 100 rows of two blocks of 34 bytes.
        let bytes = 3 * 64 * 4 + 3 * 100 * 4 + 100 * 68;
        let exact = Demand { f32: 2 * 3 * 100 * 64, bytes, ..Demand::default() };
        assert_eq!(Demand::of(&graph, 3, &batch, Tile::ONE), exact);
        let whole = Demand { f32: 2 * 4 * 128 * 64, ..exact };
        assert_eq!(Demand::of(&graph, 3, &batch, Tile { rows: 4, cols: 32 }), whole);
        let graph = linear(Dim::Rows(8), ActivationFormat::INT8);
        let whole = Demand { f32: 0, int8: 2 * 4 * 128 * 64, ..exact };
        assert_eq!(Demand::of(&graph, 3, &batch, Tile { rows: 4, cols: 32 }), whole);
    }

    #[test]
    fn static_shapes_cost_their_bucket() {
        let bucket = linear(Dim::Fixed(8), ActivationFormat::F32);
        let rows = linear(Dim::Rows(8), ActivationFormat::F32);
        let padded = Demand::of(&bucket, 3, &forward(&[(0, 3)]), Tile::ONE);
        assert_eq!(padded, Demand::of(&rows, 8, &forward(&[(0, 8)]), Tile::ONE));
    }

    fn attention(window: Option<usize>, rows: Dim) -> Subgraph {
        let mut b = SubgraphBuilder::new("attention", rows.bound());
        let q = b.input("q", 4 * 6, DType::F32);
        let cache = |cols| Shape(vec![Dim::KvLen(64), Dim::Fixed(cols)]);
        let states = [b.state("k", cache(12), DType::F16), b.state("v", cache(10), DType::F16)];
        let op = Attention {
            heads: 4,
            kv_heads: 2,
            k_dim: 6,
            v_dim: 5,
            scale: 1.0,
            window,
            softcap: None,
            sinks: None,
            value_in_key: false,
            page_group: 0,
            activations: ActivationFormat::F32,
        };
        let y = b.attention(op, q, &states);
        b.output(y);
        let mut graph = b.finish().unwrap();
        for id in [q, y] {
            graph.values[id.0 as usize].shape.0[0] = rows;
        }
        graph
    }

    #[test]
    fn attention_costs_what_its_rows_look_at() {
        // Two rows that see 6 and 7 positions, and one that sees 1: in all 8 positions are read, of
        // 12 and 10 halves.
        let batch = forward(&[(5, 2), (0, 1)]);
        let bytes = 3 * (24 + 20) * 4;
        let d = Demand::of(&attention(None, Dim::Rows(8)), 3, &batch, Tile::ONE);
        assert_eq!(d.f32, 2 * 4 * (6 + 5) * (6 + 7 + 1));
        assert_eq!(d.bytes, bytes + (7 + 1) * (12 + 10) * 2);
        // With a window of three positions, the first two rows see three each, four in all.
        let d = Demand::of(&attention(Some(3), Dim::Rows(8)), 3, &batch, Tile::ONE);
        assert_eq!(d.f32, 2 * 4 * (6 + 5) * (3 + 3 + 1));
        assert_eq!(d.bytes, bytes + (4 + 1) * (12 + 10) * 2);
        // Five padding rows see as many positions as the last row.
        let d = Demand::of(&attention(None, Dim::Fixed(8)), 3, &batch, Tile::ONE);
        assert_eq!(d.f32, 2 * 4 * (6 + 5) * (6 + 7 + 1 + 5));
    }

    #[test]
    fn groups_of_experts_cost_their_capacity() {
        let group = |capacity| {
            let mut b = SubgraphBuilder::new("group", 3 * capacity);
            let mut list = |rows, cols| -> Vec<_> {
                let decl =
                    |i| WeightDecl::whole(format!("{rows}.{i}").into(), rows, cols, DType::F32);
                (0..3).map(|i| b.weight(decl(i))).collect()
            };
            let experts = Experts {
                gate: list(8, 16),
                up: list(8, 16),
                down: list(16, 8),
                gate_bias: vec![],
                up_bias: vec![],
                down_bias: vec![],
                act: Activation::Silu,
                activations: ActivationFormat::F32,
            };
            let x = b.input("x", 16, DType::F32);
            let y = b.op("y", Op::ExpertGroup(ExpertGroup { experts, capacity }), &[x], 16);
            b.output(y);
            bind_static(&b.finish().unwrap(), 3 * capacity)
        };
        let of = |capacity, tile| Demand::of(&group(capacity), 2, &ForwardBatch::default(), tile);
        // Padding is computed, and all weights are read.
        let one = 3 * 2 * 5 * 8 * 16;
        let bytes = 3 * 3 * 8 * 16 * 4 + 2 * 15 * 16 * 4;
        assert_eq!(of(5, Tile::ONE), Demand { f32: 3 * one, bytes, ..Demand::default() });
        // Each expert's rows are rounded up by themselves.
        let tall = Tile { rows: 8, cols: 1 };
        assert_eq!(of(5, tall).f32, of(8, tall).f32);
    }

    #[test]
    fn what_cannot_be_counted_is_the_most_there_is() {
        let batch = forward(&[(usize::MAX - 9, 4)]);
        let d = Demand::of(&attention(None, Dim::Rows(8)), 4, &batch, Tile::ONE);
        assert_eq!(d.f32, u64::MAX);
    }
}
