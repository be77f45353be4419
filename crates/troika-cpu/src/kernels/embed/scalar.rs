//! The plain look-up of a row; a few rows per forward batch need no more.

use troika_graph::blocks;

use crate::kernels::linear::WeightView;

/// Row `id` of the table, scaled.
///
/// # Panics
/// If the table has no such row.
pub fn row(table: WeightView<'_>, id: i32, scale: f32, y: &mut [f32]) {
    let bytes = table.row_bytes();
    blocks::dequantize(table.dtype, &table.bytes[id as usize * bytes..][..bytes], y);
    if scale != 1.0 {
        y.iter_mut().for_each(|y| *y *= scale);
    }
}
