//! Memory that several devices can see.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use atomic_refcell::{AtomicRef, AtomicRefCell, AtomicRefMut};
use bytemuck::{AnyBitPattern, NoUninit};

use crate::memory::{OutOfMemory, ZeroedBytes};

/// A zero-initialised, 64-byte aligned piece of memory, shared by reference count.
///
/// Access is tracked at run time: many readers or one writer. The scheduler orders tasks so that
/// a conflict never happens; if it ever did, the task fails with [`BufferBusy`] instead of
/// racing.
#[derive(Clone)]
pub struct Buffer {
    mem: Arc<AtomicRefCell<ZeroedBytes>>,
    len: usize,
}

/// Two tasks touched one buffer at once: an ordering bug in the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a buffer was accessed by two tasks at once")]
pub struct BufferBusy;

impl Buffer {
    /// A zeroed buffer of `len` bytes. Pages are not touched until written.
    ///
    /// # Errors
    /// When the system has no such memory.
    pub fn zeroed(len: usize) -> Result<Buffer, OutOfMemory> {
        let mem = Arc::new(AtomicRefCell::new(ZeroedBytes::new(len)?));
        Ok(Buffer { mem, len })
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Identity: equal for clones of one buffer only.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.mem).cast::<()>() as usize
    }

    /// Opens the buffer for reading.
    ///
    /// # Errors
    /// [`BufferBusy`] while someone writes it.
    pub fn read(&self) -> Result<ReadGuard<'_>, BufferBusy> {
        let guard = self.mem.try_borrow().map_err(|_| BufferBusy)?;
        Ok(ReadGuard { guard })
    }

    /// Opens the buffer for writing.
    ///
    /// # Errors
    /// [`BufferBusy`] while someone else reads or writes it.
    pub fn write(&self) -> Result<WriteGuard<'_>, BufferBusy> {
        let guard = self.mem.try_borrow_mut().map_err(|_| BufferBusy)?;
        Ok(WriteGuard { guard })
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// Shared access to a buffer.
pub struct ReadGuard<'a> {
    guard: AtomicRef<'a, ZeroedBytes>,
}

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
        &self.guard
    }
}

/// Exclusive access to a buffer.
pub struct WriteGuard<'a> {
    guard: AtomicRefMut<'a, ZeroedBytes>,
}

impl WriteGuard<'_> {
    /// The buffer as elements; a trailing partial element is left out.
    pub fn as_slice<T: AnyBitPattern>(&self) -> &[T] {
        let size = size_of::<T>();
        bytemuck::cast_slice(&self[..self.len() / size * size])
    }

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
        &self.guard
    }
}

impl DerefMut for WriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let b = Buffer::zeroed(10).unwrap();
        let c = b.clone();
        assert_eq!(b.id(), c.id());
        {
            let (_x, _y) = (b.read().unwrap(), c.read().unwrap());
            assert!(b.write().is_err());
        }
        let mut w = b.write().unwrap();
        assert!(c.read().is_err());
        w.as_mut_slice::<f32>().copy_from_slice(&[1.0, 2.0]);
        drop(w);
        assert_eq!(c.read().unwrap().as_slice::<f32>(), &[1.0, 2.0]);
        assert_eq!(c.read().unwrap().as_ptr() as usize % 64, 0);
    }
}
