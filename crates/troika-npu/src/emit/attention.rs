//! Attention over keys and values, which the host gathers from its cache unless the file keeps them.

use troika_graph::{Attention, DType, Node, ValueId};

use super::verb::{Result, Seen, Verb};
use super::{Emitter, GraphWriter, MASK};
use crate::rewrites::Rewrite;

/// The names of an attention's inputs that no graph has.
const KEYS: &str = "keys";
const VALUES: &str = "values";

impl<W: GraphWriter> Emitter<'_, W> {
    /// Rows of heads `[rows, heads * dim]` as `[heads, rows, dim]`.
    fn by_heads(&mut self, x: &str, rows: usize, heads: usize, dim: usize) -> String {
        let x = self.reshape(x, &[rows, heads, dim]);
        self.transposed(&x, &[1, 0, 2])
    }

    /// Cached heads `[heads, positions, dim]` of an input, without what pads them.
    fn cached(&mut self, name: &str, state: ValueId, heads: usize, dim: usize) -> String {
        let dtype = if self.value(state).dtype == DType::F16 { DType::F16 } else { DType::F32 };
        let rewrites = self.options.rewrites;
        let (positions, wide) = (rewrites.padded(self.options.positions), rewrites.padded(dim));
        let mut all = self.extra(name, dtype, positions, heads * wide);
        if name == VALUES && self.rows > 1 && rewrites.has(Rewrite::GuardValues) {
            all = self.plus(&all, f32::MIN_POSITIVE);
        }
        let all = self.by_heads(&all, positions, heads, wide);
        if wide == dim { all } else { self.slice(&all, 0, dim, 1) }
    }

    /// What an attention sees of inputs that the host fills.
    fn gathered(&mut self, a: &Attention, states: &[ValueId]) -> Seen {
        let keys = self.cached(KEYS, states[0], a.kv_heads, a.k_dim);
        let values = match states.get(1) {
            None => self.slice(&keys, 0, a.v_dim, 1),
            Some(state) => self.cached(VALUES, *state, a.kv_heads, a.v_dim),
        };
        let positions = self.options.rewrites.padded(self.options.positions);
        let mask = self.extra(MASK, DType::F32, self.rows, positions);
        Seen { keys, values, mask, positions }
    }

    /// `softmax(cap(q * k^T * scale) + mask) * v`, perhaps in slices of queries.
    pub(super) fn attention(&mut self, q: &str, a: &Attention, node: &Node) -> Result<String> {
        let Seen { keys, values, mask, positions } = match W::kept(self, a, node)? {
            Some(seen) => seen,
            None => self.gathered(a, &node.states),
        };
        let keys = self.transposed(&keys, &[0, 2, 1]);
        let sinks = a.sinks.map(|sinks| self.read(sinks)).transpose()?;
        let shared = Shared { op: a, keys, values, positions, sinks };
        let slices = self.options.rewrites.slices(self.rows);
        if slices.len() == 1 {
            return Ok(self.attend(q, &mask, self.rows, &shared));
        }
        let (mut parts, mut from) = (Vec::new(), 0);
        for rows in slices {
            let [q, mask] = [q, &mask].map(|all| self.slice_rows(all, from, from + rows));
            parts.push(self.attend(&q, &mask, rows, &shared));
            from += rows;
        }
        Ok(self.concat_along(&parts, 0))
    }

    /// Attention of some queries. Query heads that share a key head are its rows.
    fn attend(&mut self, q: &str, mask: &str, rows: usize, shared: &Shared<'_>) -> String {
        let Shared { op: a, keys, values, positions, sinks } = shared;
        let positions = *positions;
        let (kv_heads, group) = (a.kv_heads, a.heads / a.kv_heads);
        let q = self.by_heads(q, rows, a.heads, a.k_dim);
        let q = self.reshape(&q, &[kv_heads, group * rows, a.k_dim]);
        let q = self.times(&q, a.scale);
        let mut scores = self.two(Verb::MatMul, &q, keys);
        if let Some(cap) = a.softcap {
            scores = self.soft_cap(&scores, cap);
        }
        let scores = self.reshape(&scores, &[a.heads, rows, positions]);
        let mut scores = self.two(Verb::Add, &scores, mask);
        if let Some(sinks) = sinks {
            let each: Vec<f32> = sinks.iter().flat_map(|s| std::iter::repeat_n(*s, rows)).collect();
            let sinks = self.model.floats(&[a.heads, rows, 1], &each);
            scores = self.concat(&[&scores, &sinks]);
        }
        let mut shares = self.one(Verb::Softmax, &scores);
        if sinks.is_some() {
            shares = self.slice(&shares, 0, positions, 1);
        }
        let shares = self.reshape(&shares, &[kv_heads, group * rows, positions]);
        let y = self.two(Verb::MatMul, &shares, values);
        let y = self.reshape(&y, &[a.heads, rows, a.v_dim]);
        let y = self.transposed(&y, &[1, 0, 2]);
        self.reshape(&y, &[rows, a.heads * a.v_dim])
    }
}

/// What all queries of an attention share: keys `[kv_heads, k_dim, positions]`, values
/// `[kv_heads, positions, v_dim]` and sinks.
struct Shared<'a> {
    op: &'a Attention,
    keys: String,
    values: String,
    positions: usize,
    sinks: Option<Vec<f32>>,
}
