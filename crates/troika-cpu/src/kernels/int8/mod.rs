//! Products of quantized weights with activations in eight bits.
//!
//! Activations are quantized once per op input ([`quantize`]): 32 values share an f32 scale.
//! Weights are packed when a subgraph is compiled ([`Layout`]) and used as they lie. The sum of a
//! group of 32 columns is an exact integer; it is scaled and added in the order of the columns
//! with one rounding per addition. So a row's result has the same bits alone or among others, on
//! any number of threads, and on every instruction set.

mod format;
mod lanes;
mod layout;
mod quantize;
pub mod scalar;
mod tile;

use troika_graph::DType;

use crate::kernels::linear::{OutView, RowsView, worker_floats};
use crate::kernels::{Context, KernelError};
use crate::select;

pub use lanes::{ROWS, name};
pub use layout::{GROUP, Layout, PackedView};
pub use quantize::{Extra, floats, quantize};
pub(crate) use tile::Part;

/// A product: quantized rows times the transpose of a packed weight.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// The weight.
    pub weight: PackedView<'a>,
    /// Added to each row.
    pub bias: Option<&'a [f32]>,
    /// The activations, [`floats`] floats a row, quantized for the weight's [`Extra`].
    pub x: RowsView<'a>,
    /// Where results go.
    pub y: OutView<'a>,
}

/// Types of weights the kernels multiply.
pub const DTYPES: [DType; 8] = [
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::Q4_G32,
    DType::Q4_G64,
    DType::Q4_G128,
];

/// Runs a part of a product.
pub(crate) fn run_part(isa: crate::Isa, part: Part<'_>) {
    // SAFETY: parts write results of their own: `linear` and the experts cut them so.
    unsafe { lanes::dispatch(isa, part) }
}

/// `y = x * W^T + b`.
///
/// # Errors
/// A panic of a part.
pub fn linear(cx: &mut Context<'_>, rows: usize, product: &Product<'_>) -> Result<(), KernelError> {
    let layout = &product.weight.layout;
    let n = layout.rows;
    if rows == 0 || n == 0 {
        return Ok(());
    }
    let bytes = layout.bytes() / layout.panels();
    let shape = select::PanelShape { rows, panels: layout.panels(), bytes, count: 1 };
    let choice = select::panels(shape, cx.pool.threads());
    let (step, blocks) = (choice.panel * ROWS, rows.div_ceil(choice.row_block));
    let (isa, scratch) = (cx.isa, cx.scratch);
    cx.pool.run(n.div_ceil(step) * blocks, &|worker, part| {
        let (panel, block) = (part / blocks * step, part % blocks * choice.row_block);
        let n = panel..(panel + step).min(n);
        let m = block..(block + choice.row_block).min(rows);
        // SAFETY: each worker asks for its own scratch once per part.
        let scratch = unsafe { scratch.get(worker) };
        run_part(isa, Part { product: *product, n, m, origin: 0, scratch });
    })?;
    Ok(())
}

const _: () = assert!(tile::SCRATCH <= select::MAX_PANEL * crate::kernels::linear::K_BLOCK);

/// Scratch floats a part needs: two widened panels.
pub fn scratch_floats() -> usize {
    worker_floats()
}
