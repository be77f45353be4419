//! What experts multiply with: floats, or packed weights.

use std::ops::Range;

use troika_graph::ActivationFormat;

use crate::kernels::linear::{self, Input, OutView, RowsView, WeightView};
use crate::kernels::select;
use crate::kernels::{Context, KernelError, int8};
use crate::machine::Isa;

/// A product of some weight rows with some activation rows.
pub struct ExpertPiece<'a> {
    /// Added to each row, by weight rows.
    pub bias: Option<&'a [f32]>,
    /// Weight rows.
    pub n: Range<usize>,
    /// Activation rows.
    pub m: usize,
    /// The activations, as [`Weight::input`] makes them.
    pub x: RowsView<'a>,
    /// What they were made from them.
    pub activations: ActivationFormat,
    /// Where results go.
    pub y: OutView<'a>,
    /// Weight row that belongs to the first column of the results.
    pub origin: usize,
    /// [`Input::pairs`].
    pub pairs: bool,
}

/// A weight of an expert.
pub trait Weight: Copy {
    /// Rows of `cols` activations made ready for products, in `work` where that takes memory.
    ///
    /// # Errors
    /// A panic of a part.
    fn input<'a>(
        &self,
        cx: &mut Context<'_>,
        x: &'a [f32],
        cols: usize,
        activations: ActivationFormat,
        work: &'a mut [f32],
    ) -> Result<Input<'a>, KernelError>;

    /// Whether another weight takes the same rows made ready.
    fn shares_input(&self, other: &Self, activations: ActivationFormat) -> bool;

    /// Its bytes.
    fn bytes(&self) -> &[u8];

    /// Whether few rows are multiplied with panels of any number: weights as they lie in a file may
    /// have to be widened, in memory that holds a part's rows.
    const STREAMS: bool;

    /// Weight rows of a part, when each of `used` experts has about `rows` activation rows.
    fn part_rows(&self, cx: &Context<'_>, rows: usize, used: usize) -> usize;

    /// Computes a piece; `scratch` has [`linear::worker_floats`].
    ///
    /// # Safety
    /// Nobody else accesses the piece's results meanwhile.
    unsafe fn multiply(&self, isa: Isa, piece: ExpertPiece<'_>, scratch: &mut [f32]);
}

impl Weight for WeightView<'_> {
    const STREAMS: bool = false;

    fn input<'a>(
        &self,
        cx: &mut Context<'_>,
        x: &'a [f32],
        cols: usize,
        activations: ActivationFormat,
        work: &'a mut [f32],
    ) -> Result<Input<'a>, KernelError> {
        Input::new(cx, x, cols, activations == ActivationFormat::Bf16, work)
    }

    fn shares_input(&self, _: &Self, _: ActivationFormat) -> bool {
        true
    }

    fn bytes(&self) -> &[u8] {
        self.bytes
    }

    fn part_rows(&self, cx: &Context<'_>, rows: usize, used: usize) -> usize {
        let (n, k, dtype) = (self.rows, self.cols, self.dtype);
        let shape = select::LinearShape { rows, n, k, dtype, count: used };
        select::linear(cx.isa, shape, cx.pool.threads()).panel
    }

    unsafe fn multiply(&self, isa: Isa, p: ExpertPiece<'_>, scratch: &mut [f32]) {
        self.check();
        // The rows from the origin on, so that results begin with it.
        let (rows, bytes) = (p.origin..p.n.end, self.row_bytes());
        let bytes = &self.bytes[rows.start * bytes..rows.end * bytes];
        let weight = WeightView { bytes, rows: rows.len(), ..*self };
        let bias = p.bias.map(|b| &b[rows]);
        let (bias, pairs, panels) = (bias, p.pairs, false);
        let product = linear::Product { weight, bias, x: p.x, y: p.y, pairs, panels };
        let n = p.n.start - p.origin..weight.rows;
        // SAFETY: by the caller.
        linear::run_part(isa, unsafe { linear::ProductPart::new(product, n, 0..p.m, scratch) });
    }
}

impl Weight for int8::PackedView<'_> {
    const STREAMS: bool = true;

    fn input<'a>(
        &self,
        cx: &mut Context<'_>,
        x: &'a [f32],
        cols: usize,
        activations: ActivationFormat,
        work: &'a mut [f32],
    ) -> Result<Input<'a>, KernelError> {
        if !matches!(activations, ActivationFormat::Int(_)) {
            return Ok(Input { data: x, width: cols, pairs: false });
        }
        let kind = int8::Quantization::of(self.layout.dtype, activations);
        int8::quantize(cx, int8::ActivationRows::Plain(x), cols, &mut [(kind, &mut *work)])?;
        Ok(Input { data: work, width: int8::floats(cols), pairs: false })
    }

    fn shares_input(&self, other: &Self, activations: ActivationFormat) -> bool {
        let of = |w: &Self| int8::Quantization::of(w.layout.dtype, activations);
        of(self) == of(other)
    }

    fn bytes(&self) -> &[u8] {
        self.bytes
    }

    fn part_rows(&self, cx: &Context<'_>, rows: usize, used: usize) -> usize {
        let panels = self.layout.panels();
        let bytes = self.layout.bytes() / panels.max(1);
        let shape = select::PanelShape { rows, panels, bytes, count: used };
        let panels = select::panels(shape, cx.pool.threads()).panel;
        (panels * int8::ROWS).min(select::MAX_PANEL)
    }

    unsafe fn multiply(&self, isa: Isa, p: ExpertPiece<'_>, scratch: &mut [f32]) {
        if !matches!(p.activations, ActivationFormat::Int(_)) {
            // The panels from the origin on, so that results begin with it.
            let rows = p.origin..p.n.end;
            let [start, end] = [rows.start / int8::ROWS, rows.end.div_ceil(int8::ROWS)];
            let each = self.layout.panel;
            let (bytes, bias) = (&self.bytes[start * each..end * each], p.bias.map(|b| &b[rows]));
            let (dtype, cols) = (self.layout.dtype, self.layout.cols);
            let weight = WeightView { dtype, bytes, rows: p.n.end - p.origin, cols };
            let product =
                linear::Product { weight, bias, x: p.x, y: p.y, pairs: false, panels: true };
            let n = p.n.start - p.origin..weight.rows;
            // SAFETY: by the caller.
            let part = unsafe { linear::ProductPart::new(product, n, 0..p.m, scratch) };
            return linear::run_part(isa, part);
        }
        let quantization = int8::Quantization::of(self.layout.dtype, p.activations);
        let product = int8::Product { weight: *self, bias: p.bias, x: p.x, quantization, y: p.y };
        // SAFETY: by the caller.
        let part = unsafe { int8::Int8Part::new(product, p.n, 0..p.m, p.origin, scratch) };
        int8::run_part(isa, part);
    }
}
