//! What a kernel is, and what runs of it are made of.

use std::fmt::Display;

/// Where a value lies in its binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loc {
    /// Its first element, in 4-byte elements from the binding's start.
    pub offset: u32,
    /// Elements from one row to the next.
    pub stride: u32,
}

/// What a binding holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// A weight: read-only storage.
    Weight,
    /// A value or a state: storage to read and write.
    Value,
}

/// A kernel's source and what it is bound to. Its entry point is `main`.
#[derive(Debug)]
pub struct KernelSpec {
    /// Unique name.
    pub name: &'static str,
    /// WGSL, in parts that kernels share.
    pub parts: &'static [&'static str],
    /// Bindings of group 0 in order; at most eight.
    pub bindings: &'static [Binding],
    /// Workgroup memory that it uses at most, in bytes.
    pub workgroup_bytes: u32,
}

// Parts that kernels of several ops share.
pub(super) const ACTIVATION: &str = include_str!("wgsl/activation.wgsl");
pub(super) const PAIRS: &str = include_str!("wgsl/pairs.wgsl");
pub(super) const ROUNDING: &str = include_str!("wgsl/rounding.wgsl");
pub(super) const TOTAL: &str = include_str!("wgsl/total.wgsl");

impl KernelSpec {
    /// A kernel without workgroup memory.
    pub(super) const fn new(
        name: &'static str,
        parts: &'static [&'static str],
        bindings: &'static [Binding],
    ) -> KernelSpec {
        KernelSpec { name, parts, bindings, workgroup_bytes: 0 }
    }

    /// The whole WGSL.
    pub fn source(&self) -> String {
        self.parts.concat()
    }
}

/// A kernel specialised for a shape, ready to be encoded.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The kernel.
    pub spec: &'static KernelSpec,
    /// Override constants. With the spec's name they key a pipeline.
    pub overrides: Vec<(&'static str, f64)>,
    /// The immediates, in 32-bit words from offset 0; at most 32.
    pub params: Vec<u32>,
    /// Workgroups.
    pub grid: [u32; 3],
}

/// Workgroups of a dimension that every API allows.
pub const MAX_GROUPS: u32 = 65_535;

/// How an op is run, or why it has no kernel.
pub type KernelResult = Result<Dispatch, KernelError>;

/// Why an op has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KernelError(String);

impl Dispatch {
    /// Checks the grid.
    pub(super) fn checked(self) -> KernelResult {
        let groups = self.grid.into_iter().max().unwrap_or(0);
        if groups > MAX_GROUPS {
            let needs = format!("{} needs {groups} workgroups in a dimension", self.spec.name);
            return Err(KernelError(format!("{needs}, more than {MAX_GROUPS}")));
        }
        Ok(self)
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

/// A condition as an override constant.
pub(super) fn flag(is_true: bool) -> f64 {
    f64::from(u8::from(is_true))
}

/// Where values lie, as immediates.
pub(super) fn words(at: &[Loc]) -> impl Iterator<Item = u32> + '_ {
    at.iter().flat_map(|l| [l.offset, l.stride])
}

/// The refusal of something.
///
/// # Errors
/// Always.
pub(crate) fn unsupported<T>(what: impl Display) -> Result<T, KernelError> {
    Err(KernelError(format!("no kernel for {what}")))
}
