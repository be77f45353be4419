//! Rotary position embedding.

use troika_graph::{Growth, Rope, RopeStyle};

use super::Binding::{Value, Weight};
use super::spec::{
    Dispatch, KernelResult, KernelSpec, Loc, MAX_GROUPS, TOTAL, flag, unsupported, words,
};

static ROPE: KernelSpec = KernelSpec {
    name: "rope",
    parts: &[include_str!("wgsl/cos_sin.wgsl"), TOTAL, include_str!("wgsl/rope.wgsl")],
    bindings: &[Weight, Weight, Value, Value, Value, Value, Value],
    workgroup_bytes: 5 * 1024,
};

/// Heads that are rotated by one rotation: those of queries, and those of keys.
#[derive(Clone, Copy, Debug)]
pub struct Rotation<'a> {
    /// The rotation.
    pub rope: &'a Rope,
    /// The factor of the frequencies that are bound ([`troika_graph::RopeFreqs::factor`]): the host
    /// chooses between the short and the long ones, and runs rows of different choice by dispatches
    /// of their own.
    pub factor: f32,
    /// What multiplies it at later positions.
    pub growth: Option<Growth>,
    /// Rows.
    pub rows: u32,
    /// Heads of queries, and of keys; there may be no keys.
    pub heads: [u32; 2],
    /// If heads are normalised before.
    pub norm: Option<HeadNorm>,
}

/// The norm of heads before they are rotated: each group of columns has its own mean square.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNorm {
    /// Added to the mean square.
    pub eps: f32,
    /// Added to the weights.
    pub offset: f32,
    /// Columns of a group of queries and of keys: whole heads.
    pub groups: [u32; 2],
}

/// Where queries and keys are, before and after.
#[derive(Clone, Copy, Debug)]
pub struct RotationAt {
    /// Queries and keys.
    pub from: [Loc; 2],
    /// Positions (i32, one a row).
    pub positions: Loc,
    /// Results.
    pub to: [Loc; 2],
}

/// Rotates the heads of queries and of keys.
///
/// Bindings: inverse frequencies (`rotary_dim / 2`, f32); the norms' weights (f32: those for a group
/// of queries, then those for a group of keys; a spare weight if there are none); queries; keys;
/// positions; rotated queries; rotated keys. Results may not overlap what is rotated.
///
/// # Errors
/// Heads of more than 1024 elements; groups that are not of whole heads; more heads than a dispatch
/// may have.
pub fn rope(of: &Rotation<'_>, at: RotationAt) -> KernelResult {
    let rope = of.rope;
    let dim = rope.head_dim as u32;
    if dim == 0 || dim > 1024 {
        return unsupported(format!("rotated heads of {dim} elements"));
    }
    let norm = of.norm.unwrap_or(HeadNorm { eps: 0.0, offset: 0.0, groups: [dim; 2] });
    let fits = |(heads, group): (u32, u32)| {
        group > 0 && group.is_multiple_of(dim) && (heads * dim).is_multiple_of(group)
    };
    if !of.heads.into_iter().zip(norm.groups).all(fits) {
        return unsupported(format!("norms of {:?} columns of heads of {dim}", norm.groups));
    }
    let ([q, k], [y, z]) = (at.from, at.to);
    let mut params: Vec<u32> = words(&[q, k, at.positions, y, z]).collect();
    params.extend([of.rows, of.heads[0], dim, rope.offset as u32, rope.rotary_dim as u32]);
    params.push(of.factor.to_bits());
    params.extend(norm.groups);
    params.extend([norm.eps.to_bits(), norm.offset.to_bits()]);
    let growth = of.growth.unwrap_or(Growth { beta: 0.0, original: 1 });
    params.extend([growth.beta, growth.original as f32].map(f32::to_bits));
    let interleaved = flag(rope.style == RopeStyle::Interleaved);
    let overrides = vec![("INTERLEAVED", interleaved), ("NORM", flag(of.norm.is_some()))];
    let grid = [of.heads.iter().sum(), of.rows.min(MAX_GROUPS), 1];
    Dispatch { spec: &ROPE, overrides, params, grid }.checked()
}
