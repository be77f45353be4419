//! Ops on elements, and ops that move columns.

use troika_graph::{Activation, DType, Op};

use super::Binding::Value;
use super::spec::{
    ACTIVATION, Dispatch, KernelResult, KernelSpec, Loc, MAX_GROUPS, ROUNDING, unsupported, words,
};

static ELEMENTS: KernelSpec =
    KernelSpec::new("elements", &[ACTIVATION, include_str!("wgsl/elements.wgsl")], &[Value; 3]);
static COLUMNS: KernelSpec =
    KernelSpec::new("columns", &[include_str!("wgsl/columns.wgsl")], &[Value; 3]);
static MIX: KernelSpec = KernelSpec::new("mix", &[include_str!("wgsl/mix.wgsl")], &[Value; 3]);
static CONVERT: KernelSpec =
    KernelSpec::new("convert", &[ROUNDING, include_str!("wgsl/convert.wgsl")], &[Value; 2]);

/// An activation's number in the kernels, and its two parameters.
pub(super) fn activation(act: Activation) -> (f64, [u32; 2]) {
    match act {
        Activation::Silu => (0.0, [0, 0]),
        Activation::Gelu => (1.0, [0, 0]),
        Activation::GeluTanh => (2.0, [0, 0]),
        Activation::Relu => (3.0, [0, 0]),
        Activation::ClampedSwiglu { alpha, limit } => (4.0, [alpha.to_bits(), limit.to_bits()]),
        Activation::ReluSquared => (5.0, [0, 0]),
        Activation::Sigmoid => (6.0, [0, 0]),
        Activation::Softplus => (7.0, [0, 0]),
        Activation::Xielu { alpha_p, alpha_n } => (8.0, [alpha_p.to_bits(), alpha_n.to_bits()]),
    }
}

/// A thread for each column of each row, up to the limit.
fn grid(rows: u32, cols: u32) -> [u32; 3] {
    [cols.div_ceil(256), rows.min(MAX_GROUPS), 1]
}

/// An op on each element of `[rows, cols]`: an activation, a gate, a sum, a scale, a clamp, a soft
/// cap, or a sigmoid gate, which has one element a row.
///
/// Bindings: the operand; the second operand, or the first again; results, which may be the rows of
/// an operand themselves. `at` has them in this order.
///
/// # Errors
/// More columns than a dispatch may have; another op.
pub fn elements(op: &Op, rows: u32, cols: u32, at: [Loc; 3]) -> KernelResult {
    let number = |number: f32| (0.0, [number.to_bits(), 0]);
    let (code, (act, numbers)) = match op {
        Op::Activate(act) => (0.0, activation(*act)),
        Op::Gate(act) => (1.0, activation(*act)),
        Op::Add => (2.0, number(0.0)),
        Op::Scale { factor } => (3.0, number(*factor)),
        Op::Clamp { limit } => (4.0, number(*limit)),
        Op::SoftCap { cap } => (5.0, number(*cap)),
        Op::SigmoidGate => (6.0, number(0.0)),
        _ => return unsupported("an op that is not on elements"),
    };
    let mut params = vec![rows, cols, numbers[0], numbers[1]];
    params.extend(words(&at));
    let overrides = vec![("OP", code), ("ACT", act)];
    Dispatch { spec: &ELEMENTS, overrides, params, grid: grid(rows, cols) }.checked()
}

/// Columns that move: each group of results has some columns of a group of a, then a group of b.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Rows of the results.
    pub rows: u32,
    /// Groups of a row.
    pub groups: u32,
    /// Columns of a group of a.
    pub group: u32,
    /// The first column that is kept of a group of a.
    pub start: u32,
    /// Columns that are kept of a group of a.
    pub kept: u32,
    /// Columns of a group of b; 0 if there is no b.
    pub joined: u32,
}

/// Moves columns.
///
/// Bindings: a; b, or a again; results. `at` has them in this order.
///
/// # Errors
/// As for [`elements`].
pub fn columns(of: Columns, at: [Loc; 3]) -> KernelResult {
    let Columns { rows, groups, group, start, kept, joined } = of;
    let mut params = vec![rows, groups, group, start, kept, joined];
    params.extend(words(&at));
    let grid = grid(rows, groups * (kept + joined));
    Dispatch { spec: &COLUMNS, overrides: vec![], params, grid }.checked()
}

/// Sums of `streams` streams of `width` columns: `y_i = x_(i mod n) + sum_j c_(i n + j) x_j`.
///
/// Bindings: streams; coefficients; results. `at` has them in this order.
///
/// # Errors
/// As for [`elements`].
pub fn mix(rows: u32, width: u32, streams: u32, sums: u32, at: [Loc; 3]) -> KernelResult {
    let mut params = vec![rows, width, streams, sums];
    params.extend(words(&at));
    Dispatch { spec: &MIX, overrides: vec![], params, grid: grid(rows, width) }.checked()
}

/// A type of floats in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floats {
    /// f32.
    F32,
    /// f16, two in each word.
    F16,
    /// bf16, two in each word.
    Bf16,
}

impl Floats {
    /// The floats of a type, if it has such.
    pub const fn of(dtype: DType) -> Option<Floats> {
        match dtype {
            DType::F32 => Some(Floats::F32),
            DType::F16 => Some(Floats::F16),
            DType::BF16 => Some(Floats::Bf16),
            _ => None,
        }
    }
}

/// Converts `count` adjacent floats (rows without gaps). `x` and `y` are the words at which
/// they begin in their bindings. Of an odd number of two-byte floats the last word's upper half becomes 0.
///
/// Bindings: x; results, which may not overlap x.
///
/// # Errors
/// More floats than 65,535 workgroups of 65,535 convert.
pub fn convert(from: Floats, to: Floats, count: u32, x: u32, y: u32) -> KernelResult {
    if count > 1 << 31 {
        return unsupported(format!("a conversion of {count} floats"));
    }
    let groups = count.div_ceil(2).div_ceil(256);
    let wide = groups.min(1024);
    let overrides = vec![("FROM", f64::from(from as u8)), ("TO", f64::from(to as u8))];
    let grid = [wide, groups.div_ceil(wide.max(1)), 1];
    Dispatch { spec: &CONVERT, overrides, params: vec![count, x, y], grid }.checked()
}
