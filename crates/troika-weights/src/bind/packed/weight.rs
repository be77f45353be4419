//! A layer in a checkpoint's own layout, and making its rows.

use std::ops::Range;

use half::f16;
use troika_device::WeightBytes;
use troika_graph::{DType, quantize};
use troika_model::lower::WeightShape;

use super::codes::{self, Codes, Grid, Levels, Number, Order, Zeros};
use crate::bind::cut::{aligned_with, narrow, quantize_row};

/// Rows whose codes are unpacked together, so that words along the outputs are read once.
const TILE: usize = 32;

/// How far the values of a weight are from those of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rounding {
    /// Not at all.
    None,
    /// Scales were rounded to f16, by at most this part of them.
    Scales(f32),
    /// Values were rounded to this type.
    Values(DType),
}

/// What a format makes of a linear layer's tensors.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub codes: Codes,
    pub number: Number,
    pub scales: Grid,
    pub zeros: Zeros,
    /// Number of inputs that share a scale.
    pub group: usize,
    /// The group of each input, if groups are not runs of adjacent inputs.
    pub index: Option<WeightBytes>,
}

/// A linear layer, or a part of it.
#[derive(Clone, Debug)]
pub(crate) struct PackedWeight {
    pub parts: Parts,
    /// The selected outputs.
    pub taken: Vec<Range<usize>>,
    /// Whether the selection is transposed.
    pub transpose: bool,
    pub rounding: Rounding,
    /// Values of the whole tensor.
    pub values: usize,
}

impl PackedWeight {
    /// The bytes of its tensors.
    pub fn tensors(&self) -> Vec<&WeightBytes> {
        let more = [self.parts.zeros.bytes(), self.parts.index.as_ref()];
        [&self.parts.codes.bytes, &self.parts.scales.bytes]
            .into_iter()
            .chain(more.into_iter().flatten())
            .collect()
    }

    /// Leaves out the rows before and after those that are selected, so that an expert is not read
    /// with all others.
    pub fn narrow(&mut self) -> Option<()> {
        let first = self.taken.iter().map(|r| r.start).min()?;
        let end = self.taken.iter().map(|r| r.end).max()?;
        let biases = match &mut self.parts.zeros {
            Zeros::Fixed(_) => None,
            Zeros::Biases(biases) => Some(biases),
            _ => return None,
        };
        if self.parts.codes.order != Order::Rows || self.parts.scales.steps.share != 1 {
            return None;
        }
        self.parts.codes = self.parts.codes.part(first..end)?;
        for grid in [&mut self.parts.scales].into_iter().chain(biases) {
            *grid = grid.part(first..end)?;
        }
        self.taken.iter_mut().for_each(|r| *r = r.start - first..r.end - first);
        Some(())
    }

    fn group_of(&self, k: usize) -> usize {
        let index = self.parts.index.as_ref();
        index.map_or_else(|| k / self.parts.group, |index| codes::word(index, k) as usize)
    }

    /// Some rows of the weight as blocks of the shape's type, and whether all values are finite.
    pub fn rows(&self, shape: WeightShape, rows: Range<usize>) -> Option<(WeightBytes, bool)> {
        let row_bytes = shape.dtype.row_bytes(shape.cols)?;
        let all = self.taken.iter().flat_map(|r| r.clone());
        let outputs: Vec<usize> = match self.transpose {
            true => all.collect(),
            false => all.skip(rows.start).take(rows.len()).collect(),
        };
        let fits = if self.transpose { shape.cols } else { rows.len() };
        if outputs.len() != fits {
            return None;
        }
        let levels = self.parts.number.levels();
        let mut finite = true;
        let made = aligned_with(rows.len().checked_mul(row_bytes)?, |out| {
            if self.transpose {
                finite = self.transposed(shape, rows, &outputs, out);
                return;
            }
            let tiles = outputs.chunks(TILE).zip(out.chunks_mut((TILE * row_bytes).max(1)));
            for (outputs, out) in tiles {
                let codes = self.parts.codes.unpacked(outputs);
                let each = outputs.iter().zip(codes.chunks_exact(self.parts.codes.k));
                for ((n, codes), out) in each.zip(out.chunks_exact_mut(row_bytes)) {
                    match self.rounding {
                        Rounding::Values(_) => {
                            finite &= write(shape.dtype, &self.floats(&levels, *n, codes), out);
                        }
                        _ => self.blocks(shape.dtype, *n, codes, out),
                    }
                }
            }
        });
        made.ok().map(|bytes| (bytes, finite))
    }

    /// Rows of the transposed selection.
    fn transposed(
        &self,
        shape: WeightShape,
        rows: Range<usize>,
        outputs: &[usize],
        out: &mut [u8],
    ) -> bool {
        let codes = self.parts.codes.unpacked(outputs);
        let all = outputs.iter().zip(codes.chunks_exact(self.parts.codes.k));
        let levels = self.parts.number.levels();
        let all: Vec<Vec<f32>> = all.map(|(n, codes)| self.floats(&levels, *n, codes)).collect();
        let row_bytes = out.len() / rows.len().max(1);
        let each = rows.zip(out.chunks_exact_mut(row_bytes.max(1)));
        each.fold(true, |finite, (k, out)| {
            let column: Vec<f32> = all.iter().map(|row| row[k]).collect();
            write(shape.dtype, &column, out) && finite
        })
    }

    /// The values of an output.
    fn floats(&self, levels: &Levels, n: usize, codes: &[u8]) -> Vec<f32> {
        let Parts { scales, zeros, group, .. } = &self.parts;
        let groups = self.parts.codes.k.div_ceil((*group).max(1));
        let shift = |g: usize| match zeros {
            Zeros::Biases(grid) => (0.0, grid.at(n, g)),
            zeros => (f32::from(zeros.at(n, g)), 0.0),
        };
        let of_group: Vec<_> = (0..groups).map(|g| (scales.at(n, g), shift(g))).collect();
        let value = |(k, code): (usize, &u8)| {
            let (scale, (zero, bias)) = of_group[self.group_of(k)];
            scale * (levels.0[usize::from(*code)] - zero) + bias
        };
        codes.iter().enumerate().map(value).collect()
    }

    /// The blocks of an output, in a type that has the same values.
    fn blocks(&self, dtype: DType, n: usize, codes: &[u8], out: &mut [u8]) {
        let blocks = codes.chunks_exact(dtype.block_len());
        let blocks = blocks.zip(out.chunks_exact_mut(dtype.block_bytes()));
        for (b, (codes, out)) in blocks.enumerate() {
            let g = b * dtype.block_len() / self.parts.group;
            let scale = f16::from_f32(self.parts.scales.at(n, g)).to_le_bytes();
            let (head, values) = match dtype {
                DType::MXFP4 => out.split_at_mut(1),
                DType::Q8_0 => out.split_at_mut(2),
                DType::Q4_1 => out.split_at_mut(4),
                _ => out.split_at_mut(3),
            };
            match &self.parts.zeros {
                Zeros::Biases(biases) => {
                    head[..2].copy_from_slice(&scale);
                    head[2..].copy_from_slice(&f16::from_f32(biases.at(n, g)).to_le_bytes());
                }
                _ if dtype == DType::MXFP4 => head[0] = self.parts.scales.byte(n, g),
                zeros => {
                    head[..2].copy_from_slice(&scale);
                    head[2..].fill(zeros.at(n, g));
                }
            }
            if dtype == DType::Q8_0 {
                // A zero of 128 is that of a signed byte.
                let flip = if self.parts.number == Number::Unsigned { 128 } else { 0 };
                values.iter_mut().zip(codes).for_each(|(v, code)| *v = code ^ flip);
                continue;
            }
            // Of 32 values, the first half lies in the low bits.
            for (codes, values) in codes.chunks_exact(32).zip(values.chunks_exact_mut(16)) {
                let (low, high) = codes.split_at(16);
                values.iter_mut().zip(low.iter().zip(high)).for_each(|(v, (l, h))| *v = l | h << 4);
            }
        }
    }
}

/// Rounds values to a type. Returns whether all are finite.
fn write(dtype: DType, values: &[f32], out: &mut [u8]) -> bool {
    if quantize::is_target(dtype) {
        return quantize_row(dtype, values, out);
    }
    narrow(values, dtype, out);
    values.iter().all(|v| v.is_finite())
}
