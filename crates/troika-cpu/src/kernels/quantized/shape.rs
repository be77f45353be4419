//! What panels consist of.

use troika_graph::DType;
use troika_graph::blocks::{self, BlockParts};

/// Weight rows of a panel, and of a register.
pub const ROWS: usize = 16;

/// Columns of a group.
pub const GROUP: usize = 32;

/// Bytes of a quad.
pub(crate) const QUAD: usize = 4 * ROWS;

/// Columns whose products with floats are summed in one chain. A multiple of every block length.
pub const BLOCK: usize = 256;

/// Where a panel begins (see [`super::layout`]), and the table of its type's codes.
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    pub base: *const u8,
    pub table: *const u8,
}

/// The sum of two i16.
#[inline(always)]
pub(crate) fn joined(split: u32) -> i32 {
    i32::from(split as i16) + i32::from((split >> 16) as i16)
}

/// The scales and minima of a group, for each sixteen columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupScales {
    /// What the scales of a block, and its minima, are whole multiples of, where that is.
    pub units: [f32; 2],
    /// The scales.
    pub scales: [f32; 2],
    /// The minima, which are subtracted.
    pub mins: [f32; 2],
}

impl GroupScales {
    /// Those of group `i` of a block that was taken apart.
    pub fn new(dtype: DType, block: &[u8], parts: &BlockParts, i: usize) -> GroupScales {
        let both = |of: &[f32; 16]| match dtype.group_len() {
            16 => [of[2 * i], of[2 * i + 1]],
            _ => [of[i]; 2],
        };
        let mins = both(&parts.mins).map(|min| if dtype.has_minimum() { -min } else { 0.0 });
        let units = blocks::units(dtype, block);
        GroupScales { units, scales: both(&parts.scales), mins }
    }

    /// Which multiple of its unit a scale is.
    pub fn scale_number(&self, sub: usize) -> i8 {
        (self.scales[sub] / self.units[0]) as i8
    }

    /// The same of a minimum.
    pub fn min_number(&self, sub: usize) -> u8 {
        (self.mins[sub] / self.units[1]) as u8
    }
}
