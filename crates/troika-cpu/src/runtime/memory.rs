//! Memory shared by the threads of a parallel region.

use std::marker::PhantomData;
use std::ops::Range;

use troika_device::{OutOfMemory, ZeroedBytes};

use super::{Panicked, Pool};

/// Floats per cache line.
pub(crate) const LINE: usize = 16;

/// A 64-byte aligned block of floats that only grows.
#[derive(Default)]
pub(crate) struct Lines(Option<ZeroedBytes>);

impl Lines {
    /// Makes room for `floats` floats in whole cache lines; contents may be lost. Returns whether
    /// the memory was reallocated.
    ///
    /// # Errors
    /// The system has not enough memory; the block is empty then.
    pub fn grow(&mut self, floats: usize) -> Result<bool, OutOfMemory> {
        let lines = floats.checked_next_multiple_of(LINE);
        let bytes = lines.and_then(|n| n.checked_mul(size_of::<f32>())).unwrap_or(usize::MAX);
        let grows = self.0.as_ref().map_or(0, |b| b.len()) < bytes;
        if grows {
            // Frees the old memory first, since both together may be too much.
            self.0 = None;
            self.0 = Some(ZeroedBytes::new(bytes)?.huge_pages());
        }
        Ok(grows)
    }

    /// The floats.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        self.0.as_mut().map_or(&mut [], |b| bytemuck::cast_slice_mut(b))
    }
}

/// A slice that several threads write, each only its own elements.
#[derive(Clone, Copy)]
pub struct SharedMut<'a, T> {
    ptr: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through unsafe methods whose callers promise disjoint elements.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Shares a slice.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedMut { ptr: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// Shares elements; others may use some of them.
    ///
    /// # Safety
    /// `ptr` is aligned, and the `len` elements from it on are memory that stays for `'a`. Whoever
    /// accesses elements through the result promises that nobody else does.
    pub unsafe fn from_raw(ptr: *mut T, len: usize) -> Self {
        SharedMut { ptr, len, life: PhantomData }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first element.
    pub fn as_ptr(&self) -> *mut T {
        self.ptr
    }

    /// A part of the slice.
    ///
    /// # Safety
    /// Nobody else accesses these elements while the result lives.
    ///
    /// # Panics
    /// If the range is not inside.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: in range by the assertion, unshared by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }
}

/// Elements to read, while others may write elements that are not read.
#[derive(Clone, Copy, Debug)]
pub struct SharedRef<'a, T> {
    ptr: *const T,
    len: usize,
    life: PhantomData<&'a [T]>,
}

// SAFETY: it reads only, what its maker promised that nobody writes.
unsafe impl<T: Sync> Send for SharedRef<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SharedRef<'_, T> {}

impl<'a, T: Copy> SharedRef<'a, T> {
    /// A slice that nobody writes.
    pub fn new(slice: &'a [T]) -> Self {
        SharedRef { ptr: slice.as_ptr(), len: slice.len(), life: PhantomData }
    }

    /// Elements; others may write some of them.
    ///
    /// # Safety
    /// `ptr` is aligned, and the `len` elements from it on are memory that stays for `'a`. What is
    /// read of it nobody writes meanwhile.
    pub unsafe fn from_raw(ptr: *const T, len: usize) -> Self {
        SharedRef { ptr, len, life: PhantomData }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first element.
    pub fn as_ptr(&self) -> *const T {
        self.ptr
    }

    /// An element.
    ///
    /// # Panics
    /// If it is not inside.
    pub fn get(&self, i: usize) -> T {
        assert!(i < self.len, "{i} of {}", self.len);
        // SAFETY: in range by the assertion; not written by the promise of whoever made it.
        unsafe { *self.ptr.add(i) }
    }
}

/// Scratch memory with a part for each worker of one pool, so there are no copies of it.
///
/// ```compile_fail,E0382
/// let mut floats = [0.0; 16];
/// let scratch = troika_cpu::PerWorker::new(&mut floats, 16);
/// let two_pools = [scratch, scratch];
/// ```
pub struct PerWorker<'a> {
    all: &'a mut [f32],
    each: usize,
}

impl<'a> PerWorker<'a> {
    /// Divides `all` into parts of `each` floats (a multiple of a cache line's 16).
    pub fn new(all: &'a mut [f32], each: usize) -> Self {
        PerWorker { all, each }
    }

    /// [`Pool::run`], with each worker's scratch instead of its number.
    pub(crate) fn run(
        &mut self,
        pool: &mut Pool,
        parts: usize,
        work: &(dyn Fn(&mut [f32], usize) + Sync),
    ) -> Result<(), Panicked> {
        let (all, each) = (SharedMut::new(self.all), self.each);
        pool.run(parts, &|worker, part| {
            // SAFETY: a worker runs one part at a time, and no two have the same number.
            work(unsafe { all.slice(worker * each..(worker + 1) * each) }, part)
        })
    }
}
