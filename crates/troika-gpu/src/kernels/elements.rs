//! Ops on elements, and ops that move columns.

use troika_graph::{Activation, DType};

use super::Binding::Value;
use super::spec::{Dispatch, KernelError, KernelSpec, Loc, MAX_GROUPS, unsupported};

static ELEMENTS: KernelSpec = KernelSpec {
    name: "elements",
    parts: &[include_str!("wgsl/activation.wgsl"), include_str!("wgsl/elements.wgsl")],
    bindings: &[Value, Value, Value],
    workgroup_bytes: 0,
};

static COLUMNS: KernelSpec = KernelSpec {
    name: "columns",
    parts: &[include_str!("wgsl/columns.wgsl")],
    bindings: &[Value, Value, Value],
    workgroup_bytes: 0,
};

static CONVERT: KernelSpec = KernelSpec {
    name: "convert",
    parts: &[include_str!("wgsl/rounding.wgsl"), include_str!("wgsl/convert.wgsl")],
    bindings: &[Value, Value],
    workgroup_bytes: 0,
};

/// An activation's number in the kernels, and its two parameters.
pub(super) fn activation(act: Activation) -> (f64, [u32; 2]) {
    match act {
        Activation::Silu => (0.0, [0, 0]),
        Activation::Gelu => (1.0, [0, 0]),
        Activation::GeluTanh => (2.0, [0, 0]),
        Activation::Relu => (3.0, [0, 0]),
        Activation::ClampedSwiglu { alpha, limit } => (4.0, [alpha.to_bits(), limit.to_bits()]),
    }
}

/// Number of an element-wise op in the kernel.
#[derive(Clone, Copy)]
enum Op {
    Activate = 0,
    Gate = 1,
    Add = 2,
    Scale = 3,
    Clamp = 4,
    SoftCap = 5,
    SigmoidGate = 6,
}

/// Rows and columns of a grid with a thread per column.
fn grid([rows, cols]: [u32; 2]) -> [u32; 3] {
    [cols.div_ceil(256), rows.min(MAX_GROUPS), 1]
}

fn elements(
    op: Op,
    act: f64,
    shape: [u32; 2],
    numbers: [u32; 2],
    at: [Loc; 3],
) -> Result<Dispatch, KernelError> {
    let mut params = vec![shape[0], shape[1], numbers[0], numbers[1]];
    params.extend(at.iter().flat_map(|l| [l.offset, l.stride]));
    Dispatch {
        spec: &ELEMENTS,
        overrides: vec![("OP", f64::from(op as u8)), ("ACT", act)],
        params,
        grid: grid(shape),
    }
    .checked()
}

/// `act(x)` of `[rows, cols]`.
///
/// Bindings: x; x again; results, which may be the rows of x themselves.
///
/// # Errors
/// More columns than a dispatch may have.
pub fn activate(act: Activation, shape: [u32; 2], x: Loc, y: Loc) -> Result<Dispatch, KernelError> {
    let (act, numbers) = activation(act);
    elements(Op::Activate, act, shape, numbers, [x, x, y])
}

/// `act(gate) * up` of `[rows, cols]`.
///
/// Bindings: gate; up; results, which may be the rows of an operand themselves. `at` has them in
/// this order.
///
/// # Errors
/// As for [`activate`].
pub fn gate(act: Activation, shape: [u32; 2], at: [Loc; 3]) -> Result<Dispatch, KernelError> {
    let (act, numbers) = activation(act);
    elements(Op::Gate, act, shape, numbers, at)
}

/// `a + b` of `[rows, cols]`.
///
/// Bindings: a; b; results, which may be the rows of an operand themselves.
///
/// # Errors
/// As for [`activate`].
pub fn add(shape: [u32; 2], at: [Loc; 3]) -> Result<Dispatch, KernelError> {
    elements(Op::Add, 0.0, shape, [0, 0], at)
}

/// `x * factor`. Bindings as for [`activate`].
///
/// # Errors
/// As for [`activate`].
pub fn scale(factor: f32, shape: [u32; 2], x: Loc, y: Loc) -> Result<Dispatch, KernelError> {
    elements(Op::Scale, 0.0, shape, [factor.to_bits(), 0], [x, x, y])
}

/// `x` between `-limit` and `limit`. Bindings as for [`activate`].
///
/// # Errors
/// As for [`activate`].
pub fn clamp(limit: f32, shape: [u32; 2], x: Loc, y: Loc) -> Result<Dispatch, KernelError> {
    elements(Op::Clamp, 0.0, shape, [limit.to_bits(), 0], [x, x, y])
}

/// `cap * tanh(x / cap)`. Bindings as for [`activate`].
///
/// # Errors
/// As for [`activate`].
pub fn soft_cap(cap: f32, shape: [u32; 2], x: Loc, y: Loc) -> Result<Dispatch, KernelError> {
    elements(Op::SoftCap, 0.0, shape, [cap.to_bits(), 0], [x, x, y])
}

/// `x * sigmoid(g)` of `[rows, cols]`, with one g a row.
///
/// Bindings: x; g; results, which may be the rows of x themselves.
///
/// # Errors
/// As for [`activate`].
pub fn sigmoid_gate(shape: [u32; 2], at: [Loc; 3]) -> Result<Dispatch, KernelError> {
    elements(Op::SigmoidGate, 0.0, shape, [0, 0], at)
}

/// Writes, in each of `groups` groups of `a.1` and `b.1` columns, `a.1` columns of a from `a.0` on
/// and then the columns of b.
fn columns(
    [rows, groups]: [u32; 2],
    [a_group, a_start, a_len, b_len]: [u32; 4],
    at: [Loc; 3],
) -> Result<Dispatch, KernelError> {
    let mut params = vec![rows, groups, a_group, a_start, a_len, b_len];
    params.extend(at.iter().flat_map(|l| [l.offset, l.stride]));
    let grid = grid([rows, groups * (a_len + b_len)]);
    Dispatch { spec: &COLUMNS, overrides: vec![], params, grid }.checked()
}

/// Keeps `kept[1]` columns from `kept[0]` on of each group of `group` columns; the value has `rows`
/// rows of `groups` groups.
///
/// Bindings: x; x again; results.
///
/// # Errors
/// As for [`activate`].
pub fn slice_cols(
    [rows, groups]: [u32; 2],
    group: u32,
    kept: [u32; 2],
    x: Loc,
    y: Loc,
) -> Result<Dispatch, KernelError> {
    columns([rows, groups], [group, kept[0], kept[1], 0], [x, x, y])
}

/// Joins groups of two values; `widths` are the columns of a group of a and of b.
///
/// Bindings: a; b; results.
///
/// # Errors
/// As for [`activate`].
pub fn concat_cols(
    [rows, groups]: [u32; 2],
    widths: [u32; 2],
    at: [Loc; 3],
) -> Result<Dispatch, KernelError> {
    columns([rows, groups], [widths[0], 0, widths[0], widths[1]], at)
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

/// Converts `count` adjacent floats (rows without gaps). `offsets` are the words at which they begin
/// in their bindings. Of an odd number of two-byte floats the last word's upper half becomes 0.
///
/// Bindings: x; results, which may not overlap x.
///
/// # Errors
/// More floats than 65,535 workgroups of 65,535 convert.
pub fn convert(
    from: Floats,
    to: Floats,
    count: u32,
    offsets: [u32; 2],
) -> Result<Dispatch, KernelError> {
    if count > 1 << 31 {
        return unsupported(format!("a conversion of {count} floats"));
    }
    let groups = count.div_ceil(2).div_ceil(256);
    let x = groups.min(1024);
    Dispatch {
        spec: &CONVERT,
        overrides: vec![("FROM", f64::from(from as u8)), ("TO", f64::from(to as u8))],
        params: vec![count, offsets[0], offsets[1]],
        grid: [x, groups.div_ceil(x.max(1)), 1],
    }
    .checked()
}
