//! Rectangles of buffers, which tasks use, depend on and claim.

use std::ops::{Deref, DerefMut, Range};

use bytemuck::{AnyBitPattern, NoUninit};

use super::buffer::{Buffer, Claim};
use super::claims::{Access, AccessError};
use super::rect::Rect;
use super::space::SpaceId;

/// A rectangle inside a buffer.
#[derive(Clone, Debug)]
pub struct View {
    buffer: Buffer,
    rect: Rect,
}

/// A rectangle that is not inside its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{rows} rows of {row_bytes} bytes, {stride} bytes apart from byte {offset} on, are no view \
     of a buffer of {len} bytes"
)]
pub struct ViewError {
    /// The first byte.
    pub offset: usize,
    /// Number of rows.
    pub rows: usize,
    /// Bytes per row.
    pub row_bytes: usize,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Bytes of the buffer or of the view.
    pub len: usize,
}

impl View {
    /// Rows of `row_bytes` bytes that start every `stride` bytes from `offset` on.
    ///
    /// # Errors
    /// Rows overlap or are not inside the buffer.
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

    /// Rows without gaps.
    ///
    /// # Errors
    /// Those of [`View::new`].
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
    /// The view does not have these rows.
    pub fn rows(&self, rows: Range<usize>) -> Result<View, ViewError> {
        let r = self.rect;
        let (count, offset) = (rows.len(), rows.start.checked_mul(r.stride()));
        let offset = offset.and_then(|at| at.checked_add(r.offset())).unwrap_or(usize::MAX);
        let (row_bytes, stride, len) = (r.row_bytes(), r.stride(), self.buffer.len());
        if rows.start > rows.end || rows.end > r.rows() {
            return Err(ViewError { offset, rows: count, row_bytes, stride, len });
        }
        View::new(&self.buffer, offset, (count, row_bytes), stride)
    }

    /// A range of bytes of each row: columns.
    ///
    /// # Errors
    /// The rows do not have these bytes.
    pub fn columns(&self, bytes: Range<usize>) -> Result<View, ViewError> {
        let r = self.rect;
        let (offset, row_bytes) = (r.offset().saturating_add(bytes.start), bytes.len());
        let (rows, stride, len) = (r.rows(), r.stride(), self.buffer.len());
        if bytes.start > bytes.end || bytes.end > r.row_bytes() {
            return Err(ViewError { offset, rows, row_bytes, stride, len });
        }
        View::new(&self.buffer, offset, (rows, row_bytes), stride)
    }

    /// The buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// The rectangle in the buffer.
    pub fn rect(&self) -> &Rect {
        &self.rect
    }

    /// Whether both views share a byte; see [`Rect::overlaps`] for when that is exact.
    pub fn overlaps(&self, other: &View) -> bool {
        self.buffer.id() == other.buffer.id() && self.rect.overlaps(&other.rect)
    }

    /// Opens the view for reading.
    ///
    /// # Errors
    /// [`AccessError::Busy`] while any of its bytes is being written; [`AccessError::Foreign`] for
    /// memory of a device.
    pub fn read(&self) -> Result<ReadRows<'_>, AccessError> {
        ReadRows::on_host(&self.buffer, self.rect, Access::Read)
    }

    /// Opens the view for writing.
    ///
    /// # Errors
    /// [`AccessError::Busy`] while any of its bytes is in use; [`AccessError::Foreign`] for memory
    /// of a device.
    pub fn write(&self) -> Result<WriteRows<'_>, AccessError> {
        ReadRows::on_host(&self.buffer, self.rect, Access::Write).map(WriteRows)
    }

    /// Copies the rows to another view of the same shape, in any memory space: for queues that copy
    /// between spaces modelled by this process.
    ///
    /// # Errors
    /// Views of different shapes; [`AccessError::Busy`] while bytes are in use;
    /// [`AccessError::Foreign`] for memory that only its device addresses.
    pub fn copy_to(&self, to: &View) -> Result<(), AccessError> {
        let (r, w) = (&self.rect, &to.rect);
        let (from, to_shape) = ((r.rows(), r.row_bytes()), (w.rows(), w.row_bytes()));
        if from != to_shape {
            return Err(AccessError::Shapes { from, to: to_shape });
        }
        if !self.buffer.is_addressable() || !to.buffer.is_addressable() {
            return Err(AccessError::Foreign);
        }
        let read = ReadRows { claim: self.buffer.claim(&[(*r, Access::Read)])?, rect: *r };
        let claim = to.buffer.claim(&[(*w, Access::Write)])?;
        let mut write = WriteRows(ReadRows { claim, rect: *w });
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

impl<'a> ReadRows<'a> {
    /// Claims rows that the host may read and write.
    fn on_host(
        buffer: &'a Buffer,
        rect: Rect,
        access: Access,
    ) -> Result<ReadRows<'a>, AccessError> {
        if buffer.space() != SpaceId::HOST || !buffer.is_addressable() {
            return Err(AccessError::Foreign);
        }
        Ok(ReadRows { claim: buffer.claim(&[(rect, access)])?, rect })
    }

    /// A row as elements, without a trailing partial element. `None` beyond the last row, and for
    /// rows that do not start at an element.
    pub fn row<T: AnyBitPattern>(&self, i: usize) -> Option<&[T]> {
        elements(self.bytes(Some(i))?)
    }

    /// All rows as elements, like [`ReadRows::row`]. `None` if there are gaps between rows.
    pub fn as_slice<T: AnyBitPattern>(&self) -> Option<&[T]> {
        elements(self.bytes(None)?)
    }

    /// A row, or all of them where they lie without gaps.
    fn bytes(&self, row: Option<usize>) -> Option<&[u8]> {
        let (start, len) = self.place(row)?;
        // SAFETY: a row, or rows without gaps, of the rectangle that is claimed while `self` lives;
        // it lies inside of the buffer. If it is claimed for writing, only `WriteRows::bytes_mut`
        // writes it, which borrows `self` exclusively.
        Some(unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// Where a row is, or all of them where they lie without gaps, and its bytes.
    fn place(&self, row: Option<usize>) -> Option<(*mut u8, usize)> {
        let range = match row {
            Some(i) => self.rect.row(i)?,
            None => self.rect.is_dense().then(|| self.rect.span())?,
        };
        Some((self.claim.buffer().as_ptr().wrapping_add(range.start), range.len()))
    }
}

/// Exclusive access to a view, which may also be read.
pub struct WriteRows<'a>(ReadRows<'a>);

impl<'a> Deref for WriteRows<'a> {
    type Target = ReadRows<'a>;
    fn deref(&self) -> &ReadRows<'a> {
        &self.0
    }
}

impl WriteRows<'_> {
    /// A row to write, like [`ReadRows::row`].
    pub fn row_mut<T: AnyBitPattern + NoUninit>(&mut self, i: usize) -> Option<&mut [T]> {
        elements_mut(self.bytes_mut(Some(i))?)
    }

    /// All rows to write, like [`ReadRows::as_slice`].
    pub fn as_mut_slice<T: AnyBitPattern + NoUninit>(&mut self) -> Option<&mut [T]> {
        elements_mut(self.bytes_mut(None)?)
    }

    fn bytes_mut(&mut self, row: Option<usize>) -> Option<&mut [u8]> {
        let (start, len) = self.0.place(row)?;
        // SAFETY: a row, or rows without gaps, of the rectangle that is claimed for writing: no
        // other claim has its bytes, and the result borrows `self` alone.
        Some(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }
}

impl Buffer {
    /// Opens the whole buffer for reading.
    ///
    /// # Errors
    /// [`AccessError::Busy`] while any of it is being written; [`AccessError::Foreign`] for memory
    /// of a device.
    pub fn read(&self) -> Result<ReadGuard<'_>, AccessError> {
        let all = Rect::bytes(0..self.len());
        ReadRows::on_host(self, all, Access::Read).map(ReadGuard)
    }

    /// Opens the whole buffer for writing.
    ///
    /// # Errors
    /// [`AccessError::Busy`] while any of it is in use; [`AccessError::Foreign`] for memory of a
    /// device.
    pub fn write(&self) -> Result<WriteGuard<'_>, AccessError> {
        let all = Rect::bytes(0..self.len());
        ReadRows::on_host(self, all, Access::Write).map(|rows| WriteGuard(WriteRows(rows)))
    }
}

/// Shared access to a whole buffer.
pub struct ReadGuard<'a>(ReadRows<'a>);

impl ReadGuard<'_> {
    /// The buffer as elements; a trailing partial element is left out.
    pub fn as_slice<T: AnyBitPattern>(&self) -> &[T] {
        let size = size_of::<T>();
        bytemuck::cast_slice(&self[..self.len() / size * size])
    }
}

impl Deref for ReadGuard<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes(None).unwrap_or_default()
    }
}

/// Exclusive access to a whole buffer.
pub struct WriteGuard<'a>(WriteRows<'a>);

impl WriteGuard<'_> {
    /// The buffer as mutable elements; a trailing partial element is left out.
    pub fn as_mut_slice<T: AnyBitPattern + NoUninit>(&mut self) -> &mut [T] {
        let size = size_of::<T>();
        let end = self.len() / size * size;
        bytemuck::cast_slice_mut(&mut self[..end])
    }
}

impl Deref for WriteGuard<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.bytes(None).unwrap_or_default()
    }
}

impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut(None).unwrap_or_default()
    }
}

fn elements<T: AnyBitPattern>(bytes: &[u8]) -> Option<&[T]> {
    let whole = bytes.len() / size_of::<T>().max(1) * size_of::<T>();
    bytemuck::try_cast_slice(&bytes[..whole]).ok()
}

fn elements_mut<T: AnyBitPattern + NoUninit>(bytes: &mut [u8]) -> Option<&mut [T]> {
    let whole = bytes.len() / size_of::<T>().max(1) * size_of::<T>();
    bytemuck::try_cast_slice_mut(&mut bytes[..whole]).ok()
}
