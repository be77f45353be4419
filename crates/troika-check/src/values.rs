//! The values of a run: made from a seed, and compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use troika_device::{ForwardBatch, PageTable, SeqRows};
use troika_graph::blocks::dequantize;
use troika_graph::{DType, Node, Op, StateKind, Subgraph, ValueId};

use crate::POSITIONS;
use crate::random::Random;

/// Inputs, caches and outputs: dense valid rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    /// Valid rows of inputs and outputs.
    pub rows: usize,
    /// The bytes of each value.
    pub bytes: BTreeMap<ValueId, Vec<u8>>,
}

/// Sequences of a run: two from three rows on. Their pages are in random order.
pub(crate) fn forward(rows: usize) -> Arc<ForwardBatch> {
    let first = rows - (rows / 3).min(3);
    // The last group is of fixed states.
    let table = |pages: &[u32]| {
        let group = |kind| PageTable::new(kind, 16, pages.to_vec());
        let paged = StateKind::Paged(None);
        [paged, paged, paged, StateKind::Fixed].map(group).to_vec()
    };
    let seq = |seq, rows: std::ops::Range<usize>, pos, pages: &[u32]| {
        let known_len = pos + rows.len();
        SeqRows { seq, rows, pos, known_len, tables: table(pages) }
    };
    let mut seqs = vec![seq(4, 0..first, 40, &[3, 0, 6, 2, 5, 1, 7])];
    if first < rows {
        seqs.push(seq(9, first..rows, 0, &[4]));
    }
    Arc::new(ForwardBatch { seqs })
}

impl Values {
    /// Random floats, valid token ids and positions, and different experts in each row.
    pub fn new(g: &Subgraph, rows: usize, seed: u64) -> Values {
        let mut r = Random(seed);
        let experts = g.experts().map_or(1, |e| e.gate.len());
        let positions: Vec<i32> = forward(rows)
            .seqs
            .iter()
            .flat_map(|s| (s.pos..s.pos + s.rows.len()).map(|p| p as i32))
            .collect();
        let mut bytes = BTreeMap::new();
        for id in g.inputs.iter().chain(&g.states) {
            let (v, cols) = (g.value(*id), g.value(*id).shape.row_len());
            let rows = if g.states.contains(id) { POSITIONS } else { rows };
            let expert = |i: usize| (i / cols * 3 + i % cols) % experts;
            let value: Vec<u8> = match v.dtype {
                DType::I32 if cols == 1 => positions.iter().flat_map(|p| p.to_le_bytes()).collect(),
                DType::I32 => {
                    (0..rows * cols).flat_map(|i| (expert(i) as i32).to_le_bytes()).collect()
                }
                dtype => r.bytes(dtype, rows * v.row_bytes()),
            };
            bytes.insert(*id, value);
        }
        Values { rows, bytes }
    }

    /// Largest difference of caches and outputs, relative to the other's largest element and
    /// beyond what a cache's type rounds; infinite if ids differ.
    pub fn difference(&self, other: &Values, g: &Subgraph) -> f32 {
        let value = |id: &ValueId| {
            let (a, b) = (self.bytes.get(id), other.bytes.get(id));
            let dtype = g.value(*id).dtype;
            match (a, b) {
                (Some(a), Some(b)) if dtype == DType::I32 && a == b => 0.0,
                (Some(a), Some(b)) if dtype != DType::I32 => {
                    let error = relative_error(&floats(a, dtype), &floats(b, dtype));
                    if error > rounding(g, *id) { error } else { 0.0 }
                }
                _ => f32::INFINITY,
            }
        };
        g.outputs.iter().chain(&g.states).map(value).fold(0.0, f32::max)
    }
}

/// How far the same numbers may lie apart in a cache: devices compute them with other last bits, and
/// those may round to either neighbour. What is appended as it came in lies nowhere else.
fn rounding(g: &Subgraph, cache: ValueId) -> f32 {
    let computes =
        |n: &Node| n.states.contains(&cache) && !n.inputs.iter().all(|x| g.inputs.contains(x));
    let appends = |n: &&Node| matches!(n.op, Op::KvAppend(_));
    match g.value(cache).dtype {
        DType::F16 if g.nodes.iter().filter(appends).any(computes) => 2_f32.powi(-10),
        DType::BF16 if g.nodes.iter().filter(appends).any(computes) => 2_f32.powi(-7),
        _ => 0.0,
    }
}

/// The numbers of a float type.
pub fn floats(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.block_bytes()];
    dequantize(dtype, bytes, &mut out);
    out
}

/// The signal-to-noise ratio of numbers in decibels, beside those of a reference.
pub fn snr_db(got: &[f32], reference: &[f32]) -> f64 {
    let sum = |terms: &mut dyn Iterator<Item = f64>| terms.map(|x| x * x).sum::<f64>();
    let signal = sum(&mut reference.iter().map(|x| f64::from(*x)));
    let noise = sum(&mut got.iter().zip(reference).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    if noise == 0.0 { f64::INFINITY } else { 10.0 * (signal / noise).log10() }
}

/// Largest difference of numbers, relative to the largest of the reference.
pub fn relative_error(got: &[f32], reference: &[f32]) -> f32 {
    if got.len() != reference.len() {
        return f32::INFINITY;
    }
    let top = reference.iter().fold(0f32, |m, v| m.max(v.abs()));
    let worst = got.iter().zip(reference).fold(0f32, |m, (a, b)| {
        let d = (a - b).abs();
        if d.is_nan() { f32::INFINITY } else { m.max(d) }
    });
    worst / top.max(f32::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::Kernel;

    /// Last bits of what is computed may round to either neighbour, but to no number beyond them, and
    /// what is appended as it came in is the same everywhere.
    #[test]
    fn only_computed_numbers_of_a_cache_may_be_rounded_to_a_neighbour() {
        let cases = Kernel::Attention { cache: DType::F16, window: false }.cases().unwrap();
        for (case, computed) in cases.iter().zip([[false, false], [true, false]]) {
            let g = &case.graph;
            let largest = f16::from_f32(1.75);
            let of = |id: &ValueId| (*id, largest.to_le_bytes().repeat(64));
            let bytes = g.states.iter().chain(&g.outputs).map(of).collect();
            let expected = Values { rows: 1, bytes };
            for (state, computed) in g.states.iter().zip(computed) {
                let other = |steps: u16| {
                    let mut got = expected.clone();
                    let number = f16::from_bits(largest.to_bits() + steps).to_le_bytes();
                    got.bytes.get_mut(state).unwrap()[..2].copy_from_slice(&number);
                    got.difference(&expected, g)
                };
                assert_eq!(other(1) == 0.0, computed, "{}", case.name);
                assert!(other(2) > 1e-3 && other(0) == 0.0, "{}", case.name);
            }
        }
    }

    #[test]
    fn noise_is_measured_beside_the_signal() {
        assert_eq!(snr_db(&[3.0, 4.0], &[3.0, 4.0]), f64::INFINITY);
        assert!((snr_db(&[3.0, 4.5], &[3.0, 4.0]) - 20.0).abs() < 1e-9);
    }
}
