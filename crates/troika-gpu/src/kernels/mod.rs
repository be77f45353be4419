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
//! **Forward batches** come as a value of 32-bit words, which the host writes ([`BatchWords`]).
//!
//! Each function's documentation lists the bindings in their order. Binding `i` of a dispatch is
//! `@group(0) @binding(i)`.

mod attention;
mod elements;
mod format;
mod moe;
mod norm;
mod probes;
mod products;
mod recurrence;
pub mod repack;
mod rope;
mod spec;
mod top_k;

pub use attention::{
    Append, AttentionShape, BatchWords, attention, attention_merge, attention_parts, kv_append,
    part_floats,
};
pub use elements::{Columns, Floats, columns, convert, elements, mix};
pub use format::WeightFormat;
pub use moe::{Before, ExpertShape, Stack, experts_down, experts_gate_up, router};
pub use norm::{NormShape, layer_norm, rescale, rms_norm};
pub use probes::{probe_multiply, probe_read};
pub use products::{
    Around, FewRows, Matrix, RowNorm, embed, gate_up, head_linear, linear, linear_three, outliers,
    with_matrix_units,
};
pub(crate) use products::{FEW, MATRIX_BYTES, MATRIX_SIZE, MATRIX_THREADS, is_eight_bits};
pub use recurrence::{delta_gates, delta_rule, gate_floats, mamba2, short_conv};
pub use rope::{HeadNorm, Rotation, RotationAt, rope};
pub(crate) use spec::unsupported;
pub use spec::{Binding, Dispatch, KernelError, KernelResult, KernelSpec, Loc, MAX_GROUPS};
pub use top_k::{MOST_TOP_K, TopKShape, top_k, top_k_kernels};
