//! Kernels as data: WGSL sources, their bindings, and one function per op that says how to run it.
//! Nothing here names a driver or allocates on a device, so all of it is tested without one.
//!
//! **Values** are rows of 4-byte elements (f32 or i32) somewhere in a binding ([`Loc`]). They are
//! bound as `read_write` storage, since one buffer may serve several values of a dispatch. Results
//! may share memory with operands only where a function says so.
//!
//! **Weights** are read-only storage in the layout of [`WeightFormat`]: rows one after another, each
//! of a whole number of 16-byte words. A weight beyond the binding limit lies in several buffers
//! ([`Matrix::first`]), and one dispatch serves one of them.
//!
//! **Forward batches** come as a value of 32-bit words, which the host writes ([`Batch`]).
//!
//! The order of bindings is that of each function's documentation. Binding `i` of a dispatch is
//! `@group(0) @binding(i)`.

mod attention;
mod elements;
mod format;
mod moe;
mod norm;
mod products;
pub mod repack;
mod rope;

pub use attention::{
    AttentionShape, Batch, CacheFormat, attention, attention_in_parts, attention_merge,
    attention_parts, kv_append, part_floats,
};
pub use elements::{
    Floats, activate, add, clamp, concat_cols, convert, gate, scale, sigmoid_gate, slice_cols,
    soft_cap,
};
pub use format::WeightFormat;
pub use moe::{ExpertShape, Stack, experts_down, experts_gate_up, router};
pub use norm::{NormShape, add_rms_norm, layer_norm, rms_norm};
pub use products::{Matrix, embed, gate_up, head_linear, linear, linear_three};
pub use rope::{RopeAppend, rope, rope_append};

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
    /// WGSL.
    pub source: &'static str,
    /// Bindings of group 0 in order; at most eight.
    pub bindings: &'static [Binding],
    /// Workgroup memory that it uses at most, in bytes.
    pub workgroup_bytes: u32,
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
/// Words of immediates that are used at most.
pub const MAX_PARAMS: usize = 32;

/// Why an op has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A shape or a type that the kernels do not take.
    #[error("no kernel for {0}")]
    Unsupported(String),
    /// A dispatch of more workgroups than a dimension may have.
    #[error("{kernel} needs {groups} workgroups in a dimension, more than {MAX_GROUPS}")]
    TooLarge {
        /// The kernel.
        kernel: &'static str,
        /// Workgroups of the largest dimension.
        groups: u32,
    },
}

impl Dispatch {
    /// Checks the grid.
    fn checked(self) -> Result<Dispatch, KernelError> {
        let groups = self.grid.into_iter().max().unwrap_or(0);
        if groups > MAX_GROUPS {
            return Err(KernelError::TooLarge { kernel: self.spec.name, groups });
        }
        Ok(self)
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

fn unsupported<T>(what: impl Into<String>) -> Result<T, KernelError> {
    Err(KernelError::Unsupported(what.into()))
}
