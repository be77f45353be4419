//! Quantized weights, packed by sixteen rows, and the registers they are read by. Products of bytes
//! ([`crate::kernels::int8`]) and of floats ([`crate::kernels::linear`]) share them.

pub(crate) mod dispatch;
pub(crate) mod float;
pub(crate) mod format;
pub(crate) mod lanes;
mod layout;
pub(crate) mod scales;
mod shape;
pub(crate) mod wide;

pub use layout::{Layout, PackedView};
pub use shape::{BLOCK, GROUP, ROWS};
pub(crate) use shape::{GroupScales, Panel, QUAD, joined};
