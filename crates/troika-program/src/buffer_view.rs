//! Rectangles of buffers that have names, before they are bound.

use troika_device::{Rect, SpaceId};

/// A rectangle of a buffer with a name of type `B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferView<B> {
    /// The buffer.
    pub buffer: B,
    /// Its memory space.
    pub space: SpaceId,
    /// First byte of row 0.
    pub offset: usize,
    /// Number of rows.
    pub rows: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes from the start of a row to the start of the next.
    pub stride: usize,
}

impl<B> BufferView<B> {
    /// Its bytes. A view whose end overflows stands for all bytes: binding refuses it.
    pub fn rect(&self) -> Rect {
        let rect = Rect::new(self.offset, self.rows, self.row_bytes, self.stride);
        rect.unwrap_or_else(|| Rect::bytes(0..usize::MAX))
    }

    /// How many bytes its rows have.
    pub fn bytes(&self) -> u64 {
        (self.rows as u64).saturating_mul(self.row_bytes as u64)
    }
}
