//! Embedding look-up; a few rows per forward batch need no more than plain code.

use troika_graph::blocks;

use crate::kernels::linear::WeightView;
use crate::kernels::{Context, KernelError, elementwise};

/// `y[row] = table[ids[row]] * scale`.
///
/// # Errors
/// An id that is not in the table; a panic of a part.
pub fn embed(
    cx: &mut Context<'_>,
    table: WeightView<'_>,
    scale: f32,
    ids: &[i32],
    y: &mut [f32],
) -> Result<(), KernelError> {
    if let Some(id) = ids.iter().find(|id| usize::try_from(**id).map_or(true, |i| i >= table.rows))
    {
        return Err(KernelError::Operand(format!("id {id} is not among {} rows", table.rows)));
    }
    assert!(ids.len() * table.cols == y.len(), "an id per row");
    let bytes = table.row_bytes();
    elementwise::each_row(cx, y, table.cols, &|row, y| {
        blocks::dequantize(table.dtype, &table.bytes[ids[row] as usize * bytes..][..bytes], y);
        if scale != 1.0 {
            y.iter_mut().for_each(|y| *y *= scale);
        }
    })
}
