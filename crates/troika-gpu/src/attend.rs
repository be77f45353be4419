//! The steps of an attention: rotations, appends to caches, and attention over them.

use troika_graph::{Attention, Op, Rope, RopeFreqs, RopeStyle, ValueId};

use crate::compile::{
    Code, Dispatches, Emitted, HEAD_WORDS, Operand, PackPart, PlacedDispatch, RECORD_WORDS, Shape,
    is_f32,
};
use crate::kernels::{
    self, Append, AttentionShape, BatchWords, CacheFormat, FEW, HeadNorm, KernelError, Loc,
    Rotation, RotationAt, unsupported,
};
use crate::places::ValuePlace;

impl Code {
    /// The rotations of queries and keys, or of one value if both are the same node; with the norms
    /// of their heads, and where the weights of these are.
    pub(crate) fn rotate(
        &self,
        q: usize,
        k: usize,
        norms: Option<([usize; 2], PackPart)>,
        s: &Shape<'_>,
        out: &mut Dispatches,
    ) -> Emitted {
        let node = &self.graph.nodes[q];
        let Op::Rope(rope) = &node.op else { return unsupported("a rotation of another op") };
        let positions = node.inputs.get(1).map_or(0, |v| v.0 as usize);
        let from = norms.map_or([q, k], |(norms, _)| norms);
        let from = from.map(|n| self.graph.nodes[n].inputs.first().map_or(0, |v| v.0 as usize));
        let to = [q, k].map(|n| self.graph.nodes[n].outputs.first().map_or(0, |v| v.0 as usize));
        let [q_heads, k_heads] = from.map(|v| (self.slots[v].cols / rope.head_dim.max(1)) as u32);
        let heads = [q_heads, if q == k { 0 } else { k_heads }];
        let norm = norms.map(|([q, k], _)| self.head_norm(q, k)).transpose()?;
        let rows = self.slots[from[0]].rows_of(s.rows);
        let runs: &[(usize, usize, bool)] =
            if rope.long.is_some() { s.runs } else { &[(0, rows, false)] };
        for (first, count, is_long) in runs {
            let (freqs, pack): (&RopeFreqs, usize) = match &rope.long {
                Some((long, _)) if *is_long => (long, 1),
                _ => (&rope.freqs, 0),
            };
            let loc = |v: usize| {
                let Loc { offset, stride } = s.locs[v];
                Loc { offset: offset + stride * *first as u32, stride }
            };
            let (factor, rows) = (freqs.factor, *count as u32);
            let of = Rotation { rope, factor, rows, heads, norm };
            let at = RotationAt { from: from.map(loc), positions: loc(positions), to: to.map(loc) };
            let mut operands = vec![
                Operand::Weight(PackPart { of: q, pack, part: 0 }),
                norms.map_or(Operand::Spare, |(_, vectors)| Operand::Weight(vectors)),
            ];
            let values = [from[0], from[1], positions, to[0], to[1]];
            operands.extend(values.map(Operand::Value));
            out.push(PlacedDispatch::new(kernels::rope(&of, at)?, operands));
        }
        Ok(())
    }

    /// Norms of the heads of queries and keys: a rotation of no elements.
    pub(crate) fn head_norms(
        &self,
        q: usize,
        k: usize,
        vectors: PackPart,
        s: &Shape<'_>,
        out: &mut Dispatches,
    ) -> Emitted {
        let norm = self.head_norm(q, k)?;
        let value = |list: &[ValueId]| list.first().map_or(0, |v| v.0 as usize);
        let norms = [q, k];
        let [q, k] = norms.map(|n| value(&self.graph.nodes[n].inputs));
        let [y, z] = norms.map(|n| value(&self.graph.nodes[n].outputs));
        let rope = Rope {
            head_dim: norm.groups[0] as usize,
            offset: 0,
            rotary_dim: 0,
            style: RopeStyle::Half,
            freqs: RopeFreqs { inv_freq: Vec::new().into(), factor: 1.0 },
            long: None,
        };
        let heads = [q, k].map(|v| (self.slots[v].cols / rope.head_dim.max(1)) as u32);
        let rows = self.slots[q].rows_of(s.rows) as u32;
        let of = Rotation { rope: &rope, factor: 1.0, rows, heads, norm: Some(norm) };
        let loc = |v: usize| s.locs[v];
        // No position is used.
        let at = RotationAt { from: [q, k].map(loc), positions: loc(q), to: [y, z].map(loc) };
        let mut operands = vec![Operand::Spare, Operand::Weight(vectors)];
        operands.extend([q, k, q, y, z].map(Operand::Value));
        out.push(PlacedDispatch::new(kernels::rope(&of, at)?, operands));
        Ok(())
    }

    /// The numbers of two norms of heads, which have the same.
    fn head_norm(&self, q: usize, k: usize) -> Result<HeadNorm, KernelError> {
        match (&self.graph.nodes[q].op, &self.graph.nodes[k].op) {
            (Op::RmsNorm { eps, offset, group: of_q, .. }, Op::RmsNorm { group: of_k, .. }) => {
                let groups = [*of_q as u32, *of_k as u32];
                Ok(HeadNorm { eps: *eps, offset: *offset, groups })
            }
            _ => unsupported("norms of heads of other ops"),
        }
    }

    /// What an append writes: its page group, its rows, their value and the cache.
    fn appended(
        &self,
        at: usize,
        s: &Shape<'_>,
    ) -> Result<(usize, Append, [usize; 2]), KernelError> {
        let node = &self.graph.nodes[at];
        let (Op::KvAppend(op), [x], [state]) = (&node.op, &node.inputs[..], &node.states[..])
        else {
            return unsupported("an append of another op");
        };
        let (x, state) = (x.0 as usize, state.0 as usize);
        let (width, cache) = (op.width as u32, cache(&self.slots[state])?);
        Ok((op.page_group, Append { width, x: s.locs[x], cache }, [x, state]))
    }

    /// The appends of keys and of values, if there are any.
    pub(crate) fn append(
        &self,
        k: usize,
        v: Option<usize>,
        s: &Shape<'_>,
        out: &mut Dispatches,
    ) -> Emitted {
        let (group, keys, [key, key_state]) = self.appended(k, s)?;
        let (_, values, [value, value_state]) = self.appended(v.unwrap_or(k), s)?;
        let made = kernels::kv_append(batch(group, s)?, keys, v.map(|_| values))?;
        let operands = vec![
            Operand::Value(key),
            Operand::Value(value),
            Operand::Words,
            Operand::Value(key_state),
            Operand::Value(value_state),
        ];
        out.push(PlacedDispatch::new(made, operands));
        Ok(())
    }

    /// Appends, and attention over what is appended: at once where each row is the last of its
    /// sequence.
    pub(crate) fn attend(
        &self,
        appends: &[usize],
        attention: usize,
        s: &Shape<'_>,
        out: &mut Dispatches,
    ) -> Emitted {
        let Some(&k) = appends.first() else { return unsupported("an append of nothing") };
        let v = appends.get(1).copied();
        let value = |at: usize| self.appended(at, s).map(|(_, _, [x, _])| x);
        let at_once = s.one_row_each && s.rows <= FEW as usize;
        let from = out.len();
        if at_once
            && self.attention(attention, Some([value(k)?, value(v.unwrap_or(k))?]), s, out).is_ok()
        {
            return Ok(());
        }
        out.truncate(from);
        self.append(k, v, s, out)?;
        self.attention(attention, None, s, out)
    }

    /// How many workgroups share the keys of a row: more than one only for few rows, which alone
    /// leave a device idle.
    pub(crate) fn parts(&self, a: &Attention, rows: usize, longest: usize) -> u32 {
        let parts = kernels::attention_parts(a, longest);
        let bytes = rows.saturating_mul(kernels::part_floats(a, parts)).saturating_mul(4);
        if rows <= FEW as usize && bytes as u64 <= self.limit { parts } else { 1 }
    }

    /// Attention, in parts where its keys are shared out; with the values that it appends, if any.
    pub(crate) fn attention(
        &self,
        at: usize,
        append: Option<[usize; 2]>,
        s: &Shape<'_>,
        out: &mut Dispatches,
    ) -> Emitted {
        let node = &self.graph.nodes[at];
        let Op::Attention(a) = &node.op else { return unsupported("attention of another op") };
        is_f32(a.activations)?;
        let (Some(q), Some(keys), Some(y)) =
            (node.inputs.first(), node.states.first(), node.outputs.first())
        else {
            return unsupported("an attention without queries or keys");
        };
        let values = if a.value_in_key { keys } else { node.states.get(1).unwrap_or(keys) };
        let [q, keys, values, y] = [q, keys, values, y].map(|v| v.0 as usize);
        let shape = AttentionShape {
            op: a,
            batch: batch(a.page_group, s)?,
            keys: cache(&self.slots[keys])?,
            values: cache(&self.slots[values])?,
            append: append.map(|both| both.map(|v| s.locs[v])),
        };
        let [new_key, new_value] = append.unwrap_or([q, q]);
        let sinks = match a.sinks {
            Some(_) => Operand::Weight(PackPart { of: at, pack: 0, part: 0 }),
            None => Operand::Spare,
        };
        use Operand::{Inner, Value, Words};
        let operands = |y: Operand| {
            let caches = [Value(q), Words, Value(keys), Value(values)];
            [&[sinks][..], &caches, &[y, Value(new_key), Value(new_value)]].concat()
        };
        let parts = self.parts(a, s.rows, s.longest);
        if parts == 1 {
            let made = kernels::attention(shape, s.locs[q], s.locs[y])?;
            out.push(PlacedDispatch::new(made, operands(Value(y))));
            return Ok(());
        }
        let between = Loc { offset: 0, stride: kernels::part_floats(a, parts) as u32 };
        let made = kernels::attention_in_parts(shape, parts, s.locs[q], between)?;
        out.push(PlacedDispatch::new(made, operands(Inner)));
        let made = kernels::attention_merge(a, s.rows as u32, parts, between, s.locs[y])?;
        out.push(PlacedDispatch::new(made, vec![sinks, Inner, Value(y)]));
        Ok(())
    }
}

fn cache(slot: &ValuePlace) -> Result<CacheFormat, KernelError> {
    match CacheFormat::of(slot.dtype) {
        Some(format) => Ok(format),
        None => unsupported(format!("a cache of {}", slot.dtype)),
    }
}

fn batch(group: usize, s: &Shape<'_>) -> Result<BatchWords, KernelError> {
    let count = s.rows as u32;
    let Some(&page_len) = s.page_lens.get(group) else {
        return unsupported(format!("a batch without tables of page group {group}"));
    };
    let rows = HEAD_WORDS + group as u32 * RECORD_WORDS * count;
    Ok(BatchWords { rows, count, page_len: page_len as u32, flag: 0 })
}
