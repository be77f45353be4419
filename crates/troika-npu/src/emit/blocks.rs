//! Weights as they are stored: the numbers of blocks, with scales for groups of them. Compilers keep
//! these and multiply with them.

use std::ops::Range;

use half::f16;
use troika_device::{DeviceError, PackLayout, WeightBytes, WeightData};
use troika_graph::blocks::BlockParts;
use troika_graph::{DType, WeightDecl, WeightRef, WeightSlice};

use super::Emitter;
use crate::onnx::{Attribute, ElementType};

/// The most numbers of a product's weight: others are multiplied in parts, so that nothing on the
/// way to a compiled graph, and no reference that it is compared with, has all of a head as floats.
const MOST: usize = 16 << 20;

/// How a weight of blocks is written.
#[derive(Clone, Copy)]
struct Levels {
    dtype: DType,
    /// The type of its numbers.
    element: ElementType,
    cols: usize,
}

/// The constants of a weight.
struct Written {
    rows: usize,
    /// Numbers `[rows, cols]`, or for types with minima `[rows, groups, group]`.
    numbers: String,
    /// Scales of a row, for each group.
    scales: Vec<f32>,
    /// What to take off the numbers of each group before they are scaled, for types with minima.
    zeros: Vec<f32>,
}

impl Levels {
    fn of(decl: &WeightDecl) -> Levels {
        let dtype = decl.dtype;
        let element = match (dtype.level_bits(), dtype.has_minimum()) {
            (4, true) => ElementType::U4,
            (4, false) => ElementType::I4,
            _ => ElementType::I8,
        };
        Levels { dtype, element, cols: decl.cols }
    }

    fn group(self) -> usize {
        self.dtype.group_len()
    }

    fn groups(self) -> usize {
        self.cols / self.group()
    }

    /// Bytes of a row's numbers.
    fn number_bytes(self) -> usize {
        if self.element == ElementType::I8 { self.cols } else { self.cols / 2 }
    }

    /// Bytes of a row that is taken apart.
    fn row_bytes(self) -> usize {
        let floats = if self.dtype.has_minimum() { 2 } else { 1 };
        self.number_bytes() + 4 * self.groups() * floats
    }

    /// Takes a row of blocks apart: its numbers, then scales, then zeros.
    fn take(self, row: &[u8], out: &mut [u8]) {
        let (numbers, rest) = out.split_at_mut(self.number_bytes());
        let (scales, zeros) = rest.split_at_mut(4 * self.groups());
        let (len, group) = (self.dtype.block_len(), self.group());
        let mut parts = BlockParts::default();
        let each = numbers.len() / (self.cols / len);
        let blocks = row.chunks_exact(self.dtype.block_bytes()).zip(numbers.chunks_exact_mut(each));
        for (b, (block, numbers)) in blocks.enumerate() {
            parts.take(self.dtype, block);
            for g in 0..len / group {
                // A group of one value is the number 0 with a scale.
                if parts.scales[g] == 0.0 {
                    parts.scales[g] = 1.0;
                    parts.levels[g * group..(g + 1) * group].fill(0);
                }
                let at = 4 * (b * len / group + g);
                scales[at..at + 4].copy_from_slice(&parts.scales[g].to_le_bytes());
                if let Some(zero) = zeros.get_mut(at..at + 4) {
                    zero.copy_from_slice(&(-parts.mins[g] / parts.scales[g]).to_le_bytes());
                }
            }
            let pairs = parts.levels.as_chunks::<2>().0;
            match self.element {
                ElementType::I8 => {
                    numbers.copy_from_slice(bytemuck::cast_slice(&parts.levels[..len]))
                }
                _ => numbers.iter_mut().zip(pairs).for_each(|(n, [low, high])| {
                    *n = *low as u8 & 15 | (*high as u8) << 4;
                }),
            }
        }
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))
}

impl Emitter<'_> {
    /// Whether a weight is written in blocks.
    pub(super) fn keeps_blocks(&self, weight: WeightRef) -> bool {
        let decl = self.graph.weight(weight);
        let whole = !matches!(decl.slice, Some(WeightSlice::Cols { .. }));
        self.options.provider.keeps_blocks() && whole && decl.dtype.is_quantized() && decl.cols > 0
    }

    /// A weight as tensors `[rows, cols]` of floats or halves, each with its rows: a large one in
    /// parts.
    ///
    /// # Errors
    /// A weight that cannot be read.
    pub(super) fn matrices(
        &mut self,
        weight: WeightRef,
        element: ElementType,
    ) -> Result<Vec<(Range<usize>, String)>, DeviceError> {
        let decl = self.graph.weight(weight).clone();
        if !self.keeps_blocks(weight) {
            let values = self.read(weight)?;
            let values = self.typed(element, &[decl.rows, decl.cols], &values);
            return Ok(vec![(0..decl.rows, values)]);
        }
        let of = Levels::of(&decl);
        let packed = self.levels(&decl, of)?;
        let each = (MOST / decl.cols).max(1);
        let parts = packed.chunks(each * of.row_bytes()).enumerate();
        let part = |(i, part): (usize, &[u8])| {
            let from = i * each;
            (from..(from + each).min(decl.rows), self.matrix(of, part, element))
        };
        Ok(parts.map(part).collect())
    }

    /// Rows that were taken apart as a tensor `[rows, cols]`.
    fn matrix(&mut self, of: Levels, rows: &[u8], element: ElementType) -> String {
        let Written { rows: n, numbers, scales, zeros } = self.write(of, rows);
        let groups = of.groups();
        if zeros.is_empty() {
            let scales = self.typed(element, &[n, groups], &scales);
            let size = Attribute::Int("block_size", of.group() as i64);
            let attributes = [Attribute::Int("axis", 1), size];
            return self.model.node("DequantizeLinear", &[&numbers, &scales], &attributes);
        }
        let [scales, zeros] =
            [&scales, &zeros].map(|values| self.typed(element, &[n, groups, 1], values));
        let numbers = self.cast(&numbers, element);
        let numbers = self.two("Sub", &numbers, &zeros);
        let values = self.two("Mul", &numbers, &scales);
        self.reshape(&values, &[n, of.cols])
    }

    /// The rows of a table of blocks that indices `[rows, 1]` name, as floats `[rows, cols]`.
    ///
    /// # Errors
    /// A table that cannot be read.
    pub(super) fn look_up(&mut self, table: WeightRef, ids: &str) -> Result<String, DeviceError> {
        let decl = self.graph.weight(table).clone();
        // Numbers of 4 bits cannot be looked up.
        let of = Levels { element: ElementType::I8, ..Levels::of(&decl) };
        let packed = self.levels(&decl, of)?;
        let Written { rows: n, numbers, scales, zeros } = self.write(of, &packed);
        let (k, groups) = (of.cols, of.groups());
        let numbers = self.two("Gather", &numbers, ids);
        let numbers = self.cast(&numbers, ElementType::F32);
        let mut values = self.reshape(&numbers, &[self.rows, groups, of.group()]);
        for (op, each) in [("Sub", zeros), ("Mul", scales)] {
            if !each.is_empty() {
                let each = self.model.floats(&[n, groups], &each);
                let each = self.two("Gather", &each, ids);
                let each = self.reshape(&each, &[self.rows, groups, 1]);
                values = self.two(op, &values, &each);
            }
        }
        Ok(self.reshape(&values, &[self.rows, k]))
    }

    /// The rows of a weight taken apart, one after another.
    fn levels(&self, decl: &WeightDecl, of: Levels) -> Result<WeightBytes, DeviceError> {
        let panel = of.row_bytes();
        let name = if of.element == ElementType::I8 { "npu-levels-8" } else { "npu-levels-4" };
        let layout = PackLayout { name, rows: 1, panel, keep: false };
        let take = |data: &WeightData, out: &mut [u8]| {
            if (data.dtype, data.cols) != (of.dtype, of.cols) {
                let why = "has another shape or type than its graph says".into();
                return Err(DeviceError::Weight { name: decl.name.to_string(), why });
            }
            let row = data.dtype.row_size(data.cols);
            let rows = data.bytes.chunks_exact(row).zip(out.chunks_exact_mut(panel));
            rows.for_each(|(row, out)| of.take(row, out));
            Ok(())
        };
        let packed = self.weights.packed_rows(&decl.name, decl.stored_rows(), layout, &take)?;
        Ok(packed.bytes)
    }

    /// Writes rows that were taken apart.
    fn write(&mut self, of: Levels, packed: &[u8]) -> Written {
        let (mut scales, mut zeros) = (Vec::new(), Vec::new());
        self.model.begin();
        let rows = packed.chunks_exact(of.row_bytes());
        let n = rows.len();
        for row in rows {
            let (numbers, rest) = row.split_at(of.number_bytes());
            let (of_row, rest) = rest.split_at(4 * of.groups());
            self.model.append(numbers);
            scales.extend(floats(of_row));
            zeros.extend(floats(rest));
        }
        let by_groups = [n, of.groups(), of.group()];
        let dims = if of.dtype.has_minimum() { &by_groups[..] } else { &[n, of.cols][..] };
        let numbers = self.model.end(of.element, dims);
        Written { rows: n, numbers, scales, zeros }
    }

    /// A constant of floats or halves.
    pub(super) fn typed(&mut self, element: ElementType, dims: &[usize], values: &[f32]) -> String {
        if element != ElementType::F16 {
            return self.model.floats(dims, values);
        }
        let bytes = values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
        self.model.constant(element, dims, bytes)
    }
}
