//! Products of quantized weights with activations in eight bits, or in seven.
//!
//! Activations are quantized once per op input ([`quantize`]): 32 values share an f32 scale.
//! Weights are packed when a subgraph is compiled ([`Layout`]) and used as they lie. The sum of a
//! group of 32 columns is an exact integer; it is scaled and added in the order of the columns
//! with one rounding per addition. So a row's result has the same bits alone or among others, on
//! any number of threads, and on every instruction set.
//!
//! Seven bits are for weights that use all of their eight: AVX2 adds two products in 16 bits, which
//! eight times eight bits do not fit unless one of them is made an absolute value.

mod block;
mod part;
mod quantize;
mod run;
pub mod scalar;
mod stored;
mod tile;
mod widen;

use std::ops::Range;

use smallvec::SmallVec;
use troika_graph::{ActivationFormat, DType};

use crate::Isa;
use crate::kernels::linear::worker_floats;
use crate::kernels::quantized::{self, format};
use crate::kernels::select;
use crate::kernels::{Context, KernelError};

pub use crate::kernels::quantized::{GROUP, Layout, PackedView, ROWS};
pub(crate) use part::Int8Part;
pub use part::Product;
pub use quantize::{ActivationRows, CalibratedInput, INT7, Quantization, floats, quantize};
pub(crate) use run::{gains_from_seven_bits, multiply, run_part};

/// Types of weights the kernels multiply: all that are quantized.
pub const DTYPES: &[DType] = DType::WEIGHTS.split_at(3).1;

/// Types of weights, each with what activations may be quantized to.
pub fn kinds() -> Vec<(DType, ActivationFormat)> {
    let eight = DTYPES.iter().map(|dtype| (*dtype, ActivationFormat::INT8));
    std::iter::once((DType::Q8_0, INT7)).chain(eight).collect()
}

/// Most rows with which weights are read as streams, a group of columns after the other.
pub(super) const STREAM_ROWS: usize = tile::AGAIN;

/// `y = x * W^T + b` for some products of as many rows each, in one parallel region.
///
/// # Safety
/// The results of these rows of all products are different floats, and nobody else accesses them
/// meanwhile.
///
/// # Errors
/// A panic of a part: operands that do not fit each other.
pub unsafe fn linear(
    cx: &mut Context<'_>,
    rows: usize,
    products: &[Product<'_>],
) -> Result<(), KernelError> {
    if rows == 0 {
        return Ok(());
    }
    let threads = cx.pool.threads();
    let all = products.iter().map(|p| p.weight.layout.panels()).sum();
    if rows <= STREAM_ROWS {
        let bytes = products.iter().map(|p| p.weight.layout.bytes()).sum();
        let together = products.first().map_or(
            1,
            |p| format::with_format!(p.weight.layout.dtype, F => tile::together::<F>(rows)),
        );
        let cut = select::stream(all, together, bytes, threads);
        // SAFETY: by the caller.
        return unsafe { few_rows(cx, rows, products, cut) };
    }
    let cut = |p: &Product<'_>| {
        let layout = &p.weight.layout;
        let bytes = layout.bytes() / layout.panels().max(1);
        let choice =
            select::panels(select::PanelShape { rows, panels: all, bytes, count: 1 }, threads);
        let (step, blocks) = (choice.panel * ROWS, rows.div_ceil(choice.row_block));
        let parts = layout.rows.div_ceil(step) * blocks;
        PanelCut { step, blocks, row_block: choice.row_block, parts }
    };
    let cuts: SmallVec<[PanelCut; 3]> = products.iter().map(cut).collect();
    let isa = cx.isa;
    cx.run(cuts.iter().map(|c| c.parts).sum(), &|scratch, mut part| {
        let mut of = 0;
        while part >= cuts[of].parts {
            part -= cuts[of].parts;
            of += 1;
        }
        let (c, product) = (&cuts[of], products[of]);
        let (panel, block) = (part / c.blocks * c.step, part % c.blocks * c.row_block);
        let n = panel..(panel + c.step).min(product.weight.layout.rows);
        let m = block..(block + c.row_block).min(rows);
        // SAFETY: parts have different rows of results, and products by the caller.
        unsafe { run_rows(isa, product, n, m, scratch) };
    })
}

/// Computes the rows `n` of a product's weight with the activation rows `m`.
///
/// # Safety
/// As for [`Int8Part::new`].
unsafe fn run_rows(
    isa: Isa,
    product: Product<'_>,
    n: Range<usize>,
    m: Range<usize>,
    scratch: &mut [f32],
) {
    // SAFETY: passed on.
    unsafe {
        match product.weight.layout.stored {
            true => stored::run(isa, product, n, m, scratch),
            false => run_part(isa, Int8Part::new(product, n, m, 0, scratch)),
        }
    }
}

/// Products of few rows: the panels of all of them are cut as if they were one weight.
///
/// # Safety
/// As for [`linear`].
unsafe fn few_rows(
    cx: &mut Context<'_>,
    rows: usize,
    products: &[Product<'_>],
    cut: select::Stream,
) -> Result<(), KernelError> {
    let isa = cx.isa;
    cx.run(cut.parts(), &|scratch, part| {
        let panels = products.iter().map(|p| p.weight.layout.panels());
        cut.visit(part, panels, |i, panels| {
            let (product, scratch) = (products[i], &mut *scratch);
            let n = panels.start * ROWS..(panels.end * ROWS).min(product.weight.layout.rows);
            // SAFETY: parts have different rows of results, and products by the caller.
            unsafe { run_rows(isa, product, n, 0..rows, scratch) };
        });
    })
}

/// How a product is cut into parts.
struct PanelCut {
    /// Weight rows of a part.
    step: usize,
    /// Blocks of activation rows.
    blocks: usize,
    /// Activation rows of a part.
    row_block: usize,
    parts: usize,
}

// Three widened panels.
const _: () = assert!(quantized::wide::SCRATCH <= worker_floats());

#[cfg(all(test, not(target_arch = "aarch64")))]
mod tests;
