//! Products with weights: `y = x * W^T + b`.
//!
//! Every product, in every path, adds in the same order: a block of [`BLOCK`] words (columns, or
//! pairs of columns) in one chain, then the blocks in order, then the bias. So a row's result has
//! the same bits whether it is computed alone or among others, and whatever the register width.
//!
//! Weights stay as they lie in memory. With several activation rows a block of weight rows is
//! turned and widened into a panel (`pack`) that all rows meet; with one row that happens in
//! registers (`tile`). Weights of floats may be packed ([`panels`], multiplied by `packed`, or on
//! tiles by `amx`), so that one row reads few streams of memory. [`bf16`] is the path for activations in bf16. `run`
//! chooses by instruction set.

#[cfg(any(
    target_arch = "x86_64",
    all(any(test, feature = "emulate"), not(target_arch = "aarch64"))
))]
mod amx;
pub mod bf16;
mod pack;
mod packed;
pub mod panels;
mod part;
mod run;
mod sink;
mod terms;
mod tile;
mod weights;

use std::ops::Range;

use troika_graph::{ActivationFormat, DType};

use crate::kernels::quantized::{Layout, PackedView};
use crate::kernels::select;
use crate::kernels::{Context, KernelError};
use crate::machine::Multiply;
use crate::{Isa, SharedMut};

pub(crate) use bf16::dispatch_pairs;
pub(crate) use part::ProductPart;
pub(crate) use run::run_part;
pub(crate) use terms::{Float, Pairs, RowReader};
pub(crate) use weights::{Bf16Row, F16Row, F32Row};

// Words whose products are summed in one chain.
pub use crate::kernels::quantized::BLOCK;

/// The multiply instruction behind products of activations in f32, or bf16.
pub(crate) fn multiply(isa: Isa, activations: ActivationFormat) -> Option<Multiply> {
    match isa {
        _ if activations == ActivationFormat::Bf16 && bf16::is_native(isa) => {
            match bf16::instruction(isa) {
                bf16::Instruction::Registers => Some(Multiply::Bf16Avx512),
                bf16::Instruction::Tiles => Some(Multiply::Bf16Amx),
            }
        }
        Isa::Scalar => None,
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => Some(Multiply::F32Neon),
        Isa::Avx2 | Isa::AvxVnni => Some(Multiply::F32Avx2),
        Isa::Avx512 | Isa::Amx(_) => Some(Multiply::F32Avx512),
    }
}

/// A weight matrix in memory.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    /// Type of its elements.
    pub dtype: DType,
    /// Its rows, one after another.
    pub bytes: &'a [u8],
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

impl WeightView<'_> {
    /// Bytes of a row; 0 if the columns do not fill whole blocks.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.cols).unwrap_or(0)
    }

    pub(crate) fn check(&self) {
        let need = self.dtype.row_bytes(self.cols).and_then(|r| r.checked_mul(self.rows));
        assert_eq!(need, Some(self.bytes.len()), "bytes of a {} weight", self.dtype);
        assert!(self.dtype != DType::I32, "I32 is no weight type");
    }
}

/// Rows of activations, one after another, as products take them.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The rows.
    pub data: &'a [f32],
    /// Words of a row.
    pub width: usize,
    /// Whether they hold pairs of bf16.
    pub pairs: bool,
}

impl<'a> Input<'a> {
    /// Rows of `cols` floats; with `bf16`, rounded into `work` (as many floats as `x` has).
    ///
    /// # Errors
    /// A panic of a part.
    pub fn new(
        cx: &mut Context<'_>,
        x: &'a [f32],
        cols: usize,
        bf16: bool,
        work: &'a mut [f32],
    ) -> Result<Input<'a>, KernelError> {
        if !bf16 {
            return Ok(Input { data: x, width: cols, pairs: false });
        }
        let pairs = bf16::is_native(cx.isa);
        let width = if pairs { bf16::words(cols) } else { cols };
        let data = &mut work[..x.len() / cols.max(1) * width];
        bf16::round(cx, x, cols, pairs, data)?;
        Ok(Input { data, width, pairs })
    }
}

/// Rows of activations: row `i` lies at `base + at(i) * stride`.
#[derive(Clone, Copy, Debug)]
pub struct RowsView<'a> {
    /// All the floats.
    pub data: &'a [f32],
    /// Floats before the first column.
    pub offset: usize,
    /// Floats from row to row.
    pub stride: usize,
    /// Which rows; `None`: 0, 1, 2, ...
    pub index: Option<&'a [u32]>,
    /// Divides the index (rows shared by several entries of the index).
    pub divide: usize,
}

impl<'a> RowsView<'a> {
    /// Rows of `cols` floats, one after another.
    pub fn dense(data: &'a [f32], cols: usize) -> Self {
        RowsView { data, offset: 0, stride: cols, index: None, divide: 1 }
    }

    /// First element of row `i`, which has `cols` elements in range.
    #[inline(always)]
    pub(crate) fn row(&self, i: usize, cols: usize) -> *const f32 {
        let row = self.index.map_or(i, |ix| ix[i] as usize / self.divide);
        self.data[self.offset + row * self.stride..][..cols].as_ptr()
    }

    /// Whether all these rows lie inside, `cols` floats each.
    pub(crate) fn has(&self, rows: &Range<usize>, cols: usize) -> bool {
        let at = |i: usize| self.index.map_or(i, |ix| ix[i] as usize).checked_div(self.divide);
        let end = |i| at(i)?.checked_mul(self.stride)?.checked_add(self.offset)?.checked_add(cols);
        all_within(self.data.len(), rows, self.index.is_some(), &end)
    }
}

/// Whether rows lie inside of `len` floats. Row `i` ends at `end(i)`.
fn all_within(
    len: usize,
    rows: &Range<usize>,
    indexed: bool,
    end: &dyn Fn(usize) -> Option<usize>,
) -> bool {
    if rows.is_empty() {
        return true;
    }
    let inside = |i: usize| end(i).is_some_and(|end| end <= len);
    // Without an index the last row stands for all.
    if indexed { rows.clone().all(inside) } else { inside(rows.end - 1) }
}

/// Where results go: row `i` at `offset + at(i) * stride`.
#[derive(Clone, Copy)]
pub struct OutView<'a> {
    /// All the floats.
    pub data: SharedMut<'a, f32>,
    /// Floats before the first column.
    pub offset: usize,
    /// Floats from row to row.
    pub stride: usize,
    /// Which rows; `None`: 0, 1, 2, ...
    pub index: Option<&'a [u32]>,
}

impl<'a> OutView<'a> {
    /// Rows of `cols` floats, one after another.
    pub fn dense(data: SharedMut<'a, f32>, cols: usize) -> Self {
        OutView { data, offset: 0, stride: cols, index: None }
    }

    #[inline(always)]
    pub(crate) fn at(&self, i: usize, cols: usize) -> *mut f32 {
        let row = self.index.map_or(i, |ix| ix[i] as usize);
        let start = self.offset + row * self.stride;
        let inside = self.data.len().checked_sub(cols).is_some_and(|last| start <= last);
        assert!(inside, "result row out of range");
        // SAFETY: in range by the assertion.
        unsafe { self.data.as_ptr().add(start) }
    }

    /// Whether all these rows lie inside, `cols` floats each.
    pub(crate) fn has(&self, rows: &Range<usize>, cols: usize) -> bool {
        let at = |i: usize| self.index.map_or(i, |ix| ix[i] as usize);
        let end = |i| at(i).checked_mul(self.stride)?.checked_add(self.offset)?.checked_add(cols);
        all_within(self.data.len(), rows, self.index.is_some(), &end)
    }
}

/// A product: rows times the transpose of a weight.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// The weight.
    pub weight: WeightView<'a>,
    /// Added to each row.
    pub bias: Option<&'a [f32]>,
    /// The activations.
    pub x: RowsView<'a>,
    /// Where results go.
    pub y: OutView<'a>,
    /// Whether `x` holds pairs of bf16 ([`bf16::round`]) instead of floats; the weight is BF16.
    pub pairs: bool,
    /// Whether the weight's bytes are [`panels`].
    pub panels: bool,
}

impl<'a> Product<'a> {
    /// Its weight, if it is quantized and in panels.
    pub(super) fn packed(&self) -> Option<PackedView<'a>> {
        let w = &self.weight;
        if !self.panels || !w.dtype.is_quantized() {
            return None;
        }
        let layout = Layout::new(w.dtype, w.rows, w.cols)?;
        Some(PackedView { layout, bytes: w.bytes })
    }
}

/// Scratch floats a part of a product needs: packed panels, and widened rows.
pub const fn worker_floats() -> usize {
    select::MAX_PANEL * BLOCK + pack::WIDE
}

/// `y = x * W^T + b` for each product, in one parallel region; all have as many columns and `rows`
/// activation rows.
///
/// # Safety
/// The results of these rows of all products are different floats, and nobody else accesses them
/// meanwhile.
///
/// # Errors
/// A panic of a part: operands that do not fit each other.
pub unsafe fn linear<'a>(
    cx: &mut Context<'_>,
    rows: usize,
    count: usize,
    product: &(dyn Fn(usize) -> Product<'a> + Sync),
) -> Result<(), KernelError> {
    if count == 0 || rows == 0 {
        return Ok(());
    }
    if rows <= packed::FEW && (0..count).all(|i| product(i).panels) {
        // SAFETY: by the caller.
        return unsafe { stream(cx, rows, count, product) };
    }
    let first = product(0).weight;
    let n = (0..count).map(|i| product(i).weight.rows).sum();
    let shape = select::LinearShape { rows, n, k: first.cols, dtype: first.dtype, count: 1 };
    let choice = select::linear(cx.isa, shape, cx.pool.threads());
    let blocks = rows.div_ceil(choice.row_block);
    let parts = |i: usize| product(i).weight.rows.div_ceil(choice.panel) * blocks;
    // Heads are many and alike: theirs are found by division.
    let even = (1..count).all(|i| product(i).weight.rows == first.rows).then(|| parts(0).max(1));
    let isa = cx.isa;
    cx.run((0..count).map(parts).sum(), &|scratch, mut part| {
        let mut index = even.map_or(0, |each| part / each);
        part -= even.map_or(0, |each| index * each);
        while even.is_none() && part >= parts(index) {
            part -= parts(index);
            index += 1;
        }
        let (panel, block) = (part / blocks, part % blocks);
        let product = product(index);
        let n = panel * choice.panel..((panel + 1) * choice.panel).min(product.weight.rows);
        let m = block * choice.row_block..((block + 1) * choice.row_block).min(rows);
        // SAFETY: parts have different rows of results, and products by the caller.
        let part = unsafe { ProductPart::new(product, n, m, scratch) };
        run_part(isa, part);
    })
}

/// The products of few rows with packed weights, which are read from memory as streams.
///
/// # Safety
/// As for [`linear`].
unsafe fn stream<'a>(
    cx: &mut Context<'_>,
    rows: usize,
    count: usize,
    product: &(dyn Fn(usize) -> Product<'a> + Sync),
) -> Result<(), KernelError> {
    let panels = |i: usize| product(i).weight.rows.div_ceil(panels::ROWS);
    let bytes = (0..count).map(|i| product(i).weight.bytes.len()).sum();
    let cut = select::stream((0..count).map(panels).sum(), 1, bytes, cx.pool.threads());
    let isa = cx.isa;
    cx.run(cut.parts(), &|scratch, part| {
        cut.visit(part, (0..count).map(panels), |i, of| {
            let product = product(i);
            let n = of.start * panels::ROWS..(of.end * panels::ROWS).min(product.weight.rows);
            // SAFETY: parts have different rows of results, and products by the caller.
            let part = unsafe { ProductPart::new(product, n, 0..rows, scratch) };
            run_part(isa, part);
        });
    })
}
