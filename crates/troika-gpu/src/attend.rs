//! The dispatches of an attention: norms and rotations of heads, appends to caches, and attention over
//! them.

use troika_graph::{Op, Rope, RopeFreqs, RopeStyle};

use crate::code::{HEAD_WORDS, RECORD_WORDS, RowRun};
use crate::emit::{Emitted, Emitter, Operand, weight};
use crate::kernels::{
    self, Append, AttentionShape, BatchWords, FEW, Floats, HeadNorm, KernelError, Loc, Rotation,
    RotationAt, unsupported,
};
use crate::units::Heads;
use Operand::{Inner, Unused, Value, Words};

impl Emitter<'_> {
    /// Norms and rotations of the heads of queries and keys, or of one value where both are the same
    /// node. Norms alone are rotations of no elements.
    pub fn heads(&mut self, of: &Heads, vectors: Operand) -> Emitted {
        let Heads { ropes, norms } = *of;
        let (Some(first), Some(last)) = (norms.or(ropes), ropes.or(norms)) else {
            return unsupported("heads without norms and rotations");
        };
        let from = first.map(|node| self.input(node, 0));
        let to = last.map(|node| self.output(node, 0));
        let norm = self.head_norm(of)?;
        let still = Rope {
            head_dim: norm.map_or(0, |norm| norm.groups[0] as usize),
            offset: 0,
            rotary_dim: 0,
            style: RopeStyle::Half,
            freqs: RopeFreqs { inv_freq: Vec::new().into(), factor: 1.0, growth: None },
            long: None,
        };
        let (rope, positions) = match &self.code.graph.nodes[last[0]].op {
            Op::Rope(rope) => (rope, self.input(last[0], 1)),
            // No position is used.
            _ => (&still, from[0]),
        };
        let mut heads = from.map(|v| self.cols(v) / rope.head_dim.max(1) as u32);
        if last[0] == last[1] {
            heads[1] = 0;
        }
        let count = self.rows(from[0]) as usize;
        let all = [RowRun { first: 0, count, is_long: false }];
        let runs = if rope.long.is_some() && !self.shape.runs.is_empty() {
            &self.shape.runs[..]
        } else {
            &all
        };
        for RowRun { first, count, is_long } in runs {
            let (freqs, pack) = match &rope.long {
                Some((long, _)) if *is_long => (long, 1),
                _ => (&rope.freqs, 0),
            };
            let loc = |v: usize| {
                let Loc { offset, stride } = self.locs[v];
                Loc { offset: offset + stride * *first as u32, stride }
            };
            let RopeFreqs { factor, growth, .. } = *freqs;
            let of = Rotation { rope, factor, growth, rows: *count as u32, heads, norm };
            let at = RotationAt { from: from.map(loc), positions: loc(positions), to: to.map(loc) };
            let freqs = if ropes.is_some() { weight(last[0], pack) } else { Unused };
            let [q, k, positions, y, z] = [from[0], from[1], positions, to[0], to[1]].map(Value);
            self.push(kernels::rope(&of, at), &[freqs, vectors, q, k, positions, y, z])?;
        }
        Ok(())
    }

    /// The numbers of two norms of heads, which have the same, if there are norms.
    fn head_norm(&self, of: &Heads) -> Result<Option<HeadNorm>, KernelError> {
        let Some(norms) = of.norms else { return Ok(None) };
        match norms.map(|node| &self.code.graph.nodes[node].op) {
            [Op::RmsNorm { eps, offset, group: q, .. }, Op::RmsNorm { group: k, .. }] => {
                let groups = [*q as u32, *k as u32];
                Ok(Some(HeadNorm { eps: *eps, offset: *offset, groups }))
            }
            _ => unsupported("norms of heads of other ops"),
        }
    }

    /// What an append writes: its rows, and what it binds, which are their value and the cache.
    fn appended(&self, at: usize) -> Result<(Append, [Operand; 2]), KernelError> {
        let node = &self.code.graph.nodes[at];
        let Op::KvAppend(op) = &node.op else { return unsupported("an append of another op") };
        let (x, state) = (self.input(at, 0), node.states[0].0 as usize);
        let (width, cache) = (op.width as u32, self.cache(state)?);
        Ok((Append { width, x: self.locs[x], cache }, [x, state].map(Value)))
    }

    /// The appends of keys and of values, if there are any.
    pub fn append(&mut self, k: usize, v: Option<usize>) -> Emitted {
        let (keys, [key, key_cache]) = self.appended(k)?;
        let values = v.map(|v| self.appended(v)).transpose()?;
        let [value, value_cache] = values.map_or([Unused; 2], |(_, operands)| operands);
        let batch = self.batch(k)?;
        let made = kernels::kv_append(batch, keys, values.map(|(values, _)| values));
        self.push(made, &[key, value, Words, key_cache, value_cache])
    }

    /// Appends, and attention over what is appended: at once where each row is the last of its
    /// sequence.
    pub fn attend(&mut self, appends: &[usize], attention: usize) -> Emitted {
        let Some(&k) = appends.first() else { return unsupported("an append of nothing") };
        let v = appends.get(1).copied();
        let values = [k, v.unwrap_or(k)].map(|node| self.input(node, 0));
        let at_once = self.shape.one_row_each && self.shape.rows <= FEW as usize;
        let from = self.out.len();
        if at_once && self.attention(attention, Some(values)).is_ok() {
            return Ok(());
        }
        self.out.truncate(from);
        self.append(k, v)?;
        self.attention(attention, None)
    }

    /// Attention, in parts where its keys are shared out; with the values that it appends, if any.
    pub fn attention(&mut self, at: usize, append: Option<[usize; 2]>) -> Emitted {
        let node = &self.code.graph.nodes[at];
        let Op::Attention(a) = &node.op else { return unsupported("attention of another op") };
        if a.activations != troika_graph::ActivationFormat::F32 {
            return unsupported("activations that are rounded: it computes in f32");
        }
        let (q, y, locs) = (self.input(at, 0), self.output(at, 0), self.locs);
        let keys = node.states[0].0 as usize;
        let values = if a.value_in_key { keys } else { node.states[1].0 as usize };
        let shape = AttentionShape {
            op: a,
            batch: self.batch(at)?,
            keys: self.cache(keys)?,
            values: self.cache(values)?,
            append: append.map(|both| both.map(|v| locs[v])),
        };
        let sinks = if a.sinks.is_some() { weight(at, 0) } else { Unused };
        let [new_key, new_value] = append.map_or([Unused; 2], |both| both.map(Value));
        let operands =
            |y| [sinks, Value(q), Words, Value(keys), Value(values), y, new_key, new_value];
        let parts = self.code.attention_parts(a, self.shape.rows, self.shape.longest);
        if parts == 1 {
            let made = kernels::attention(shape, None, locs[q], locs[y]);
            return self.push(made, &operands(Value(y)));
        }
        let between = Loc { offset: 0, stride: kernels::part_floats(a, parts) as u32 };
        let made = kernels::attention(shape, Some(parts), locs[q], between);
        self.push(made, &operands(Inner))?;
        let made = kernels::attention_merge(a, self.shape.rows as u32, parts, between, locs[y]);
        self.push(made, &[sinks, Inner, Value(y)])
    }

    fn cache(&self, state: usize) -> Result<Floats, KernelError> {
        let dtype = self.code.values[state].dtype;
        Floats::of(dtype).map_or_else(|| unsupported(format!("a cache of {dtype}")), Ok)
    }

    /// Where the records of the rows of an op with a state are.
    pub fn batch(&self, at: usize) -> Result<BatchWords, KernelError> {
        let group = self.code.graph.nodes[at].op.page_group();
        let known = group.and_then(|(group, _)| Some((group, *self.shape.page_lens.get(group)?)));
        let Some((group, page_len)) = known else {
            return unsupported("a batch without tables of its page group");
        };
        let count = self.shape.rows as u32;
        let rows = HEAD_WORDS + group as u32 * RECORD_WORDS * count;
        Ok(BatchWords { rows, count, page_len: page_len as u32, flag: 0 })
    }
}
