//! Rectangles of buffers: what tasks are bound to, depend on and claim.

use std::ops::Range;

use bytemuck::{AnyBitPattern, NoUninit};

use super::buffer::{Buffer, Claim};
use super::claims::{Access, AccessError};
use super::rect::Rect;

/// A rectangle of a buffer, inside of it.
#[derive(Clone, Debug)]
pub struct View {
    buffer: Buffer,
    rect: Rect,
}

/// A rectangle that is none of its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{rows} rows of {row_bytes} bytes, {stride} bytes apart from byte {offset} on, are no view \
     of a buffer of {len} bytes"
)]
pub struct ViewError {
    /// First byte.
    pub offset: usize,
    /// Rows.
    pub rows: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Bytes from row to row.
    pub stride: usize,
    /// Bytes of the buffer, or of the view.
    pub len: usize,
}

impl View {
    /// Rows of `row_bytes` bytes that start every `stride` bytes from `offset` on.
    ///
    /// # Errors
    /// Rows that overlap each other, or do not lie inside of the buffer.
    pub fn new(
        buffer: &Buffer,
        offset: usize,
        (rows, row_bytes): (usize, usize),
        stride: usize,
    ) -> Result<View, ViewError> {
        let len = buffer.len();
        Rect::new(offset, rows, row_bytes, stride)
            .filter(|rect| offset <= len && rect.span().end <= len)
            .map(|rect| View { buffer: buffer.clone(), rect })
            .ok_or(ViewError { offset, rows, row_bytes, stride, len })
    }

    /// Rows one after another.
    ///
    /// # Errors
    /// As for [`View::new`].
    pub fn dense(
        buffer: &Buffer,
        offset: usize,
        (rows, row_bytes): (usize, usize),
    ) -> Result<View, ViewError> {
        View::new(buffer, offset, (rows, row_bytes), row_bytes)
    }

    /// The whole buffer as one row.
    pub fn whole(buffer: &Buffer) -> View {
        View { buffer: buffer.clone(), rect: Rect::bytes(0..buffer.len()) }
    }

    /// Some of the rows.
    ///
    /// # Errors
    /// Rows that the view does not have.
    pub fn rows(&self, rows: Range<usize>) -> Result<View, ViewError> {
        let r = self.rect;
        let (count, offset) = (rows.len(), rows.start.checked_mul(r.stride()));
        let offset = offset.and_then(|at| at.checked_add(r.offset())).unwrap_or(usize::MAX);
        let error = ViewError {
            offset,
            rows: count,
            row_bytes: r.row_bytes(),
            stride: r.stride(),
            len: self.buffer.len(),
        };
        if rows.start > rows.end || rows.end > r.rows() {
            return Err(error);
        }
        View::new(&self.buffer, offset, (count, r.row_bytes()), r.stride())
    }

    /// Some bytes of each row: columns.
    ///
    /// # Errors
    /// Bytes that rows of the view do not have.
    pub fn columns(&self, bytes: Range<usize>) -> Result<View, ViewError> {
        let r = self.rect;
        let (offset, row_bytes) = (r.offset().saturating_add(bytes.start), bytes.len());
        let (rows, stride, len) = (r.rows(), r.stride(), self.buffer.len());
        if bytes.start > bytes.end || bytes.end > r.row_bytes() {
            return Err(ViewError { offset, rows, row_bytes, stride, len });
        }
        View::new(&self.buffer, offset, (rows, row_bytes), stride)
    }

    /// The memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Which part of it.
    pub fn rect(&self) -> &Rect {
        &self.rect
    }

    /// Whether a byte belongs to both views; see [`Rect::overlaps`] for when that is exact.
    pub fn overlaps(&self, other: &View) -> bool {
        self.buffer.id() == other.buffer.id() && self.rect.overlaps(&other.rect)
    }

    /// Opens the view for reading.
    ///
    /// # Errors
    /// [`AccessError::Busy`] while someone writes any of its bytes; [`AccessError::Foreign`] for
    /// memory of a device.
    pub fn read(&self) -> Result<ReadRows<'_>, AccessError> {
        self.buffer.on_host()?;
        let claim = self.buffer.claim(&[(self.rect, Access::Read)])?;
        Ok(ReadRows { claim, rect: self.rect })
    }

    /// Opens the view for writing.
    ///
    /// # Errors
    /// [`AccessError::Busy`] while someone else reads or writes any of its bytes;
    /// [`AccessError::Foreign`] for memory of a device.
    pub fn write(&self) -> Result<WriteRows<'_>, AccessError> {
        self.buffer.on_host()?;
        let claim = self.buffer.claim(&[(self.rect, Access::Write)])?;
        Ok(WriteRows { claim, rect: self.rect })
    }

    /// Copies the rows of this view to those of another one with as many bytes in each, wherever
    /// both live: for queues that carry out copies between spaces that this process holds.
    ///
    /// # Errors
    /// Views of unlike shapes; [`AccessError::Busy`] while someone else uses the bytes.
    pub fn copy_to(&self, to: &View) -> Result<(), AccessError> {
        let (r, w) = (&self.rect, &to.rect);
        let (from, to_shape) = ((r.rows(), r.row_bytes()), (w.rows(), w.row_bytes()));
        if from != to_shape {
            return Err(AccessError::Shapes { from, to: to_shape });
        }
        let read = ReadRows { claim: self.buffer.claim(&[(*r, Access::Read)])?, rect: *r };
        let mut write = WriteRows { claim: to.buffer.claim(&[(*w, Access::Write)])?, rect: *w };
        for i in 0..r.rows() {
            if let (Some(from), Some(to)) = (read.bytes(Some(i)), write.bytes_mut(Some(i))) {
                to.copy_from_slice(from);
            }
        }
        Ok(())
    }
}

/// Shared access to a view.
pub struct ReadRows<'a> {
    claim: Claim<'a>,
    rect: Rect,
}

impl ReadRows<'_> {
    /// A row as elements; a trailing partial element is left out. `None` past the last row, and
    /// for rows that do not start at an element.
    pub fn row<T: AnyBitPattern>(&self, i: usize) -> Option<&[T]> {
        elements(self.bytes(Some(i))?)
    }

    /// All rows as elements, as [`ReadRows::row`] gives one. `None` where they lie apart.
    pub fn as_slice<T: AnyBitPattern>(&self) -> Option<&[T]> {
        elements(self.bytes(None)?)
    }

    /// A row, or all of them where they lie without gaps.
    fn bytes(&self, row: Option<usize>) -> Option<&[u8]> {
        let (start, len) = place(&self.claim, &self.rect, row)?;
        // SAFETY: a row, or rows without gaps, of the rectangle that is claimed for reading while
        // `self` lives; it lies inside of the buffer.
        Some(unsafe { std::slice::from_raw_parts(start, len) })
    }
}

/// Exclusive access to a view.
pub struct WriteRows<'a> {
    claim: Claim<'a>,
    rect: Rect,
}

impl WriteRows<'_> {
    /// A row to read, as [`ReadRows::row`].
    pub fn row<T: AnyBitPattern>(&self, i: usize) -> Option<&[T]> {
        elements(self.bytes(Some(i))?)
    }

    /// All rows to read, as [`ReadRows::as_slice`].
    pub fn as_slice<T: AnyBitPattern>(&self) -> Option<&[T]> {
        elements(self.bytes(None)?)
    }

    /// A row to write, as [`ReadRows::row`].
    pub fn row_mut<T: AnyBitPattern + NoUninit>(&mut self, i: usize) -> Option<&mut [T]> {
        elements_mut(self.bytes_mut(Some(i))?)
    }

    /// All rows to write, as [`ReadRows::as_slice`].
    pub fn as_mut_slice<T: AnyBitPattern + NoUninit>(&mut self) -> Option<&mut [T]> {
        elements_mut(self.bytes_mut(None)?)
    }

    /// As [`ReadRows::bytes`].
    fn bytes(&self, row: Option<usize>) -> Option<&[u8]> {
        let (start, len) = place(&self.claim, &self.rect, row)?;
        // SAFETY: as for `ReadRows`; the bytes are claimed for writing, and only `bytes_mut`
        // writes them, which borrows `self` for as long.
        Some(unsafe { std::slice::from_raw_parts(start, len) })
    }

    fn bytes_mut(&mut self, row: Option<usize>) -> Option<&mut [u8]> {
        let (start, len) = place(&self.claim, &self.rect, row)?;
        // SAFETY: a row, or rows without gaps, of the rectangle that is claimed for writing: no
        // other claim has its bytes, and the result borrows `self` alone.
        Some(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }
}

/// Where a row of a rectangle is, or all of them where they lie without gaps, and its bytes.
fn place(claim: &Claim<'_>, rect: &Rect, row: Option<usize>) -> Option<(*mut u8, usize)> {
    let range = match row {
        Some(i) => rect.row(i)?,
        None => rect.is_dense().then(|| rect.span())?,
    };
    Some((claim.buffer().as_ptr().wrapping_add(range.start), range.len()))
}

fn elements<T: AnyBitPattern>(bytes: &[u8]) -> Option<&[T]> {
    let whole = bytes.len() / size_of::<T>().max(1) * size_of::<T>();
    bytemuck::try_cast_slice(&bytes[..whole]).ok()
}

fn elements_mut<T: AnyBitPattern + NoUninit>(bytes: &mut [u8]) -> Option<&mut [T]> {
    let whole = bytes.len() / size_of::<T>().max(1) * size_of::<T>();
    bytemuck::try_cast_slice_mut(&mut bytes[..whole]).ok()
}
