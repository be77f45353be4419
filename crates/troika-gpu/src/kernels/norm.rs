//! Normalisation.

use super::Binding::{Value, Weight};
use super::spec::{Dispatch, KernelError, KernelSpec, Loc, MAX_GROUPS};

static RMS_NORM: KernelSpec = KernelSpec {
    name: "rms_norm",
    source: concat!(include_str!("wgsl/norm_one.wgsl"), include_str!("wgsl/norm.wgsl")),
    bindings: &[Weight, Weight, Value, Value],
    workgroup_bytes: 1024,
};

static ADD_RMS_NORM: KernelSpec = KernelSpec {
    name: "add_rms_norm",
    source: concat!(include_str!("wgsl/norm_sum.wgsl"), include_str!("wgsl/norm.wgsl")),
    bindings: &[Weight, Weight, Value, Value, Value, Value],
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
    /// Added to the mean square or the variance.
    pub eps: f32,
}

impl NormShape {
    fn dispatch(
        self,
        spec: &'static KernelSpec,
        [layer, weighted, biased]: [bool; 3],
        offset: f32,
        at: &[Loc],
    ) -> Result<Dispatch, KernelError> {
        let flag = |b: bool| f64::from(u8::from(b));
        // Threads of a group's workgroup.
        let threads = self.group.next_power_of_two().clamp(32, 256);
        let mut params = vec![self.rows, self.group, self.eps.to_bits(), offset.to_bits()];
        params.extend(at.iter().flat_map(|l| [l.offset, l.stride]));
        Dispatch {
            spec,
            overrides: vec![
                ("WG", f64::from(threads)),
                ("LAYER", flag(layer)),
                ("WEIGHT", flag(weighted)),
                ("BIAS", flag(biased)),
            ],
            params,
            grid: [self.groups, self.rows.min(MAX_GROUPS), 1],
        }
        .checked()
    }
}

/// `x / sqrt(mean(x^2) + eps) * (offset + weight)` of each group; `offset` is `None` if there is no
/// weight.
///
/// Bindings: the weight (`[group]`, f32; a spare weight if there is none); a spare weight (the
/// weight again will do); x; results, which may be the rows of x themselves.
///
/// # Errors
/// More groups than a dispatch may have.
pub fn rms_norm(
    shape: NormShape,
    offset: Option<f32>,
    x: Loc,
    y: Loc,
) -> Result<Dispatch, KernelError> {
    shape.dispatch(&RMS_NORM, [false, offset.is_some(), false], offset.unwrap_or(0.0), &[x, y])
}

/// `sum = a + b`, and [`rms_norm`] of the sum.
///
/// Bindings: the weight; a spare weight; a; b; the sum, which may be the rows of a or b themselves;
/// results. `at` has them in this order from a on.
///
/// # Errors
/// As for [`rms_norm`].
pub fn add_rms_norm(
    shape: NormShape,
    offset: Option<f32>,
    at: [Loc; 4],
) -> Result<Dispatch, KernelError> {
    let weighted = offset.is_some();
    shape.dispatch(&ADD_RMS_NORM, [false, weighted, false], offset.unwrap_or(0.0), &at)
}

/// `(x - mean) / sqrt(var + eps) * weight + bias` of each group.
///
/// Bindings: the weight (`[group]`, f32); the bias (`[group]`, f32; the weight again if there is
/// none); x; results, which may be the rows of x themselves.
///
/// # Errors
/// As for [`rms_norm`].
pub fn layer_norm(shape: NormShape, bias: bool, x: Loc, y: Loc) -> Result<Dispatch, KernelError> {
    shape.dispatch(&RMS_NORM, [true, true, bias], 0.0, &[x, y])
}
