//! Loops whose rates are a device's limits.

use super::Binding::{Value, Weight};
use super::spec::{Dispatch, KernelError, KernelSpec};

static READ: KernelSpec =
    KernelSpec::new("probe_read", &[include_str!("wgsl/probe_read.wgsl")], &[Weight, Value]);
static MULTIPLY: KernelSpec =
    KernelSpec::new("probe_multiply", &[include_str!("wgsl/probe_multiply.wgsl")], &[Value]);

/// Threads of a workgroup, and products of each of them in a pass.
const THREADS: u64 = 256;
const PRODUCTS: u64 = 16 * 4 * 4;

/// Reads `units` of 16 bytes.
///
/// Bindings: the units; a value that is not written.
pub fn probe_read(units: u32) -> Dispatch {
    Dispatch { spec: &READ, overrides: vec![], params: vec![units], grid: [2048, 1, 1] }
}

/// Multiplies and adds floats in `groups` workgroups and `passes`. The second result is the number of
/// products.
///
/// Bindings: a value that is not written.
///
/// # Errors
/// More workgroups than a dispatch may have.
pub fn probe_multiply(groups: u32, passes: u32) -> Result<(Dispatch, u64), KernelError> {
    let (params, grid) = (vec![passes], [groups, 1, 1]);
    let made = Dispatch { spec: &MULTIPLY, overrides: vec![], params, grid }.checked()?;
    Ok((made, u64::from(groups) * THREADS * u64::from(passes) * PRODUCTS))
}
