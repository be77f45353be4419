//! Weights as they are stored: the numbers of blocks, with scales for groups of them. Compilers keep
//! these and multiply with them.

use std::ops::Range;

use troika_graph::blocks::BlockParts;
use troika_graph::{DType, WeightRef, WeightSlice};

use super::verb::{Result, Verb};
use super::{Emitter, GraphWriter};
use crate::onnx::{Attribute, ElementType, OnnxModel};

/// The most numbers of a product's weight: others are multiplied in parts, so that nothing on the
/// way to a compiled graph, and no reference that it is compared with, has all of a head as floats.
const MOST: usize = 8 << 20;
/// Up to here, halves tell whole numbers apart.
const MOST_HALF: f32 = 2048.0;

/// Rows of blocks, taken apart.
pub(crate) struct Levels {
    /// Numbers of 8 bits, or two of 4 bits in a byte.
    pub numbers: Vec<u8>,
    /// A scale for each group.
    pub scales: Vec<f32>,
    /// What to take off the numbers of each group before they are scaled, for types with minima.
    pub zeros: Vec<f32>,
}

impl Levels {
    /// Takes rows of blocks apart, as numbers of 8 or 4 bits.
    pub fn take(dtype: DType, bytes: &[u8], bits: usize) -> Levels {
        let (len, group) = (dtype.block_len(), dtype.group_len());
        let mut all = Levels { numbers: Vec::new(), scales: Vec::new(), zeros: Vec::new() };
        all.numbers.reserve_exact(bytes.len() / dtype.block_bytes() * len * bits / 8);
        let mut parts = BlockParts::default();
        for block in bytes.chunks_exact(dtype.block_bytes()) {
            parts.take(dtype, block);
            for (g, levels) in parts.levels[..len].chunks_exact_mut(group).enumerate() {
                // A group of one value is the number 0 with a scale.
                if parts.scales[g] == 0.0 {
                    parts.scales[g] = 1.0;
                    levels.fill(0);
                }
                all.scales.push(parts.scales[g]);
                if dtype.has_minimum() {
                    all.zeros.push(-parts.mins[g] / parts.scales[g]);
                }
            }
            let pairs = parts.levels[..len].as_chunks::<2>().0;
            match bits {
                4 => all.numbers.extend(pairs.iter().map(|[a, b]| *a as u8 & 15 | (*b as u8) << 4)),
                _ => all.numbers.extend(parts.levels[..len].iter().map(|n| *n as u8)),
            }
        }
        all
    }
}

impl Emitter<'_, OnnxModel> {
    /// Whether a weight is written in blocks. A single row is not: OpenVINO takes its scales for a
    /// weight.
    pub(super) fn keeps_blocks(&self, weight: WeightRef) -> bool {
        let decl = self.graph.weight(weight);
        let whole = !matches!(decl.slice, Some(WeightSlice::Cols { .. })) && decl.rows > 1;
        self.options.provider.keeps_blocks() && whole && decl.dtype.is_quantized()
    }

    /// A weight as tensors `[rows, cols]` of floats or halves, each with its rows: a large one in
    /// parts.
    pub(super) fn matrices(
        &mut self,
        weight: WeightRef,
        halves: bool,
    ) -> Result<Vec<(Range<usize>, String)>> {
        let decl = self.graph.weight(weight);
        let (n, k, dtype) = (decl.rows, decl.cols, decl.dtype);
        if !self.keeps_blocks(weight) {
            let values = self.read(weight)?;
            return Ok(vec![(0..n, self.model.typed(halves, &[n, k], &values))]);
        }
        let bytes = self.stored(weight)?.bytes;
        // As many rows in each, so that none is left over.
        let each = n.div_ceil(n.div_ceil((MOST / k.max(1)).max(2)).max(1));
        let parts = bytes.chunks(each * dtype.row_size(k)).zip((0..n).step_by(each));
        let part = |(bytes, from): (&[u8], usize)| {
            let rows = from..(from + each).min(n);
            let matrix = self.matrix(dtype, &[rows.len(), k], bytes, halves);
            (rows, matrix)
        };
        Ok(parts.map(part).collect())
    }

    /// Rows of blocks as a tensor of `dims`, rows and columns.
    fn matrix(&mut self, dtype: DType, dims: &[usize], bytes: &[u8], halves: bool) -> String {
        let Levels { numbers, scales, zeros } = Levels::take(dtype, bytes, dtype.level_bits());
        let (n, group) = (dims[0], dtype.group_len());
        let groups = dims[1] / group;
        if zeros.is_empty() {
            let stored = if dtype.level_bits() == 4 { ElementType::I4 } else { ElementType::I8 };
            let numbers = self.model.constant(stored, dims, numbers);
            let scales = self.model.typed(halves, &[n, groups], &scales);
            let blocks = [Attribute::Int("axis", 1), Attribute::Int("block_size", group as i64)];
            let mut inputs = vec![numbers, scales];
            // Without zero points the runtime reads beyond the inputs on processors without VNNI.
            if stored == ElementType::I8 {
                inputs.push(self.model.constant(stored, &[n, groups], vec![0; n * groups]));
            }
            let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
            return self.model.node("DequantizeLinear", &inputs, &blocks);
        }
        let stored = if dtype.level_bits() == 4 { ElementType::U4 } else { ElementType::I8 };
        let numbers = self.model.constant(stored, &[n, groups, group], numbers);
        let to = if halves { DType::F16 } else { DType::F32 };
        let mut values = self.one(Verb::Cast(to), &numbers);
        let is_exact = !halves || zeros.iter().all(|z| z.abs() <= MOST_HALF);
        let steps = match is_exact {
            // This order is the one that compilers know as that of stored weights.
            true => [(Verb::Sub, zeros), (Verb::Mul, scales)],
            false => {
                let minima = zeros.iter().zip(&scales).map(|(z, s)| z * s).collect();
                [(Verb::Mul, scales), (Verb::Sub, minima)]
            }
        };
        for (op, each) in steps {
            let each = self.model.typed(halves, &[n, groups, 1], &each);
            values = self.two(op, &values, &each);
        }
        self.reshape(&values, dims)
    }

    /// The rows of a table that indices `[rows, 1]` name.
    pub(super) fn table_rows(&mut self, table: WeightRef, ids: &str) -> Result<String> {
        if self.keeps_blocks(table) {
            return self.look_up(table, ids);
        }
        let (n, cols) = (self.graph.weight(table).rows, self.graph.weight(table).cols);
        let values = self.read(table)?;
        let table = self.model.floats(&[n, cols], &values);
        let rows = self.two(Verb::Gather, &table, ids);
        Ok(self.reshape(&rows, &[self.rows, cols]))
    }

    /// The rows of a table of blocks that indices `[rows, 1]` name, as floats `[rows, cols]`.
    fn look_up(&mut self, table: WeightRef, ids: &str) -> Result<String> {
        let decl = self.graph.weight(table);
        let (n, k, group) = (decl.rows, decl.cols, decl.dtype.group_len());
        let groups = k / group;
        // Numbers of 4 bits cannot be looked up.
        let Levels { numbers, scales, zeros } =
            Levels::take(decl.dtype, &self.stored(table)?.bytes, 8);
        let numbers = self.model.constant(ElementType::I8, &[n, k], numbers);
        let numbers = self.two(Verb::Gather, &numbers, ids);
        let numbers = self.one(Verb::Cast(DType::F32), &numbers);
        let mut values = self.reshape(&numbers, &[self.rows, groups, group]);
        for (op, each) in
            [(Verb::Sub, zeros), (Verb::Mul, scales)].into_iter().filter(|e| !e.1.is_empty())
        {
            let each = self.model.floats(&[n, groups], &each);
            let each = self.two(Verb::Gather, &each, ids);
            let each = self.reshape(&each, &[self.rows, groups, 1]);
            values = self.two(op, &values, &each);
        }
        Ok(self.reshape(&values, &[self.rows, k]))
    }
}
