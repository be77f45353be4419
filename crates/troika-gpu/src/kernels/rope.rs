//! Rotary position embedding.

use troika_graph::{Rope, RopeStyle};

use super::Binding::{Value, Weight};
use super::{Dispatch, KernelError, KernelSpec, Loc, MAX_GROUPS};

static ROPE: KernelSpec = KernelSpec {
    name: "rope",
    source: include_str!("wgsl/rope.wgsl"),
    bindings: &[Weight, Value, Value, Value],
    workgroup_bytes: 0,
};

/// Rotates the heads of `rows` rows of `heads` heads. `factor` is that of the frequencies that are
/// bound ([`troika_graph::RopeFreqs::factor`]): the host chooses between the short and the long
/// ones, and runs rows of different choice by dispatches of their own.
///
/// Bindings: inverse frequencies (`rotary_dim / 2`, f32); x; positions (i32; `at[1]`, one a row);
/// results (`at[2]`), which may be the rows of x themselves.
///
/// # Errors
/// More heads than a dispatch may have.
pub fn rope(
    op: &Rope,
    factor: f32,
    [rows, heads]: [u32; 2],
    at: [Loc; 3],
) -> Result<Dispatch, KernelError> {
    let [x, positions, y] = at;
    // A thread has a pair of rotated elements, or two of the rest.
    let pairs = (op.head_dim as u32).div_ceil(2) * heads;
    Dispatch {
        spec: &ROPE,
        overrides: vec![
            ("INTERLEAVED", f64::from(u8::from(op.style == RopeStyle::Interleaved))),
        ],
        params: vec![
            x.offset,
            x.stride,
            positions.offset,
            positions.stride,
            y.offset,
            y.stride,
            rows,
            heads,
            op.head_dim as u32,
            op.offset as u32,
            op.rotary_dim as u32,
            factor.to_bits(),
        ],
        grid: [pairs.div_ceil(64), rows.min(MAX_GROUPS), 1],
    }
    .checked()
}
