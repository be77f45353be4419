//! Normalisation.

use troika_graph::Rescale;

use super::Binding::{Value, Weight};
use super::spec::{Dispatch, KernelResult, KernelSpec, Loc, MAX_GROUPS, TOTAL, flag, words};

static NORM: KernelSpec = KernelSpec {
    name: "norm",
    parts: &[TOTAL, include_str!("wgsl/norm.wgsl")],
    bindings: &[Weight, Weight, Value, Value, Value],
    workgroup_bytes: 1024,
};

/// The rows that are normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormShape {
    /// Rows.
    pub rows: u32,
    /// Groups of columns in a row.
    pub groups: u32,
    /// Columns of a group.
    pub group: u32,
    /// Whether each group has weights of its own.
    pub own_weights: bool,
    /// Added to the mean square or the variance.
    pub eps: f32,
}

impl NormShape {
    /// `kind` is the kernel's `KIND`.
    fn dispatch(
        self,
        kind: u8,
        [weighted, biased]: [bool; 2],
        offset: f32,
        addend: Option<Loc>,
        [x, y]: [Loc; 2],
    ) -> KernelResult {
        // Threads of a group's workgroup.
        let threads = self.group.next_power_of_two().clamp(32, 256);
        let next = if self.own_weights { self.group } else { 0 };
        let mut params = vec![self.rows, self.group, next, self.eps.to_bits(), offset.to_bits()];
        params.extend(words(&[x, addend.unwrap_or(x), y]));
        let overrides = vec![
            ("WG", f64::from(threads)),
            ("KIND", f64::from(kind)),
            ("WEIGHT", flag(weighted)),
            ("BIAS", flag(biased)),
            ("ADD", flag(addend.is_some() && kind != 1)),
        ];
        let grid = [self.groups, self.rows.min(MAX_GROUPS), 1];
        Dispatch { spec: &NORM, overrides, params, grid }.checked()
    }
}

/// `x / sqrt(mean(x^2) + eps) * (offset + weight)` of each group, added to another value if there is
/// one; `offset` is `None` if there is no weight.
///
/// Bindings: the weight (`[group]`, or as wide as a row, f32; a spare weight if there is none); a spare weight (the
/// weight again will do); x; the value to add (x again if there is none); results, which may be the
/// rows of x or of the value to add themselves.
///
/// # Errors
/// More groups than a dispatch may have.
pub fn rms_norm(
    shape: NormShape,
    offset: Option<f32>,
    addend: Option<Loc>,
    at: [Loc; 2],
) -> KernelResult {
    shape.dispatch(0, [offset.is_some(), false], offset.unwrap_or(0.0), addend, at)
}

/// `(x - mean) / sqrt(var + eps) * weight + bias` of each group, added to another value if there is
/// one.
///
/// Bindings: the weight (`[group]`, f32); the bias (`[group]`, f32; the weight again if there is
/// none); the rest as for [`rms_norm`].
///
/// # Errors
/// As for [`rms_norm`].
pub fn layer_norm(shape: NormShape, bias: bool, addend: Option<Loc>, at: [Loc; 2]) -> KernelResult {
    shape.dispatch(3, [true, bias], 0.0, addend, at)
}

/// What each row becomes: see [`Rescale`].
///
/// Bindings: as for [`rms_norm`] with a weight of columns; the value to add is that to match.
///
/// # Errors
/// As for [`rms_norm`].
pub fn rescale(r: Rescale, rows: u32, cols: u32, like: Option<Loc>, at: [Loc; 2]) -> KernelResult {
    let (kind, number) = match r {
        Rescale::Match { least } => (1, least),
        Rescale::Columns(_) => (2, 0.0),
        Rescale::Largest { deviations } => (4, deviations),
    };
    let shape = NormShape { rows, groups: 1, group: cols, own_weights: false, eps: number };
    shape.dispatch(kind, [kind == 2, false], 0.0, like, at)
}
