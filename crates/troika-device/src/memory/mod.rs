//! Memory: bytes from the system, buffers shared by devices, views of them and claims on them.

#![allow(unsafe_code, reason = "buffers are shared memory, of which tasks claim parts")]

mod buffer;
mod bytes;
mod claims;
mod rect;
mod space;
#[cfg(test)]
mod tests;
mod view;

pub use buffer::{Buffer, BufferWatch, Claim, HeldClaim};
pub use bytes::{OutOfMemory, ZeroedBytes, trim_heap};
pub use claims::{Access, AccessError};
pub use rect::Rect;
pub use space::SpaceId;
pub use view::{ReadGuard, ReadRows, View, ViewError, WriteGuard, WriteRows};
