//! Buffers: memory that tasks of several devices share.

use std::any::Any;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::claims::{Access, AccessError, Table};
use super::{OutOfMemory, Rect, SpaceId, ZeroedBytes};

/// The first bytes of a buffer lie in small pages, so that little-used buffers stay small. The size
/// is one huge page on most systems.
const SMALL_PAGES: usize = 2 << 20;

/// A piece of memory, shared by reference count. Whoever made it owns it: it is zeroed memory of the
/// host, or a device's, known by a handle alone.
///
/// Access is tracked at run time by rectangles ([`Rect`]): each byte has many readers or one
/// writer, and uses of different bytes are independent. The scheduler orders tasks so that
/// conflicts never happen. If one did, the task would fail with [`AccessError`] instead of racing.
#[derive(Clone)]
pub struct Buffer(Arc<Shared>);

struct Shared {
    /// The first byte of the owner's memory, which is accessed only through this pointer; null if
    /// the host cannot address it.
    base: *mut u8,
    len: usize,
    space: SpaceId,
    table: Table,
    owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: `base` points into memory that the owner keeps, and whose bytes are accessed under claims
// that the table, behind a lock, gives to many readers or one writer.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Buffer {
    /// A zeroed buffer of `len` bytes, in pages of its own, so that a device on the host's memory can
    /// take them for itself. Pages are allocated when first written. After the first MiBs they are
    /// huge pages where available: each token reads the whole key/value cache, and small pages would
    /// cost a look-up each.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn zeroed(len: usize) -> Result<Buffer, OutOfMemory> {
        Ok(Buffer::of(ZeroedBytes::in_pages(len)?.huge_pages_from(SMALL_PAGES), SpaceId::HOST))
    }

    /// A buffer in a device's own memory, which this process models: only tasks of devices that
    /// reach the space can use it. Each byte starts as `fill`: with 0xff every element is NaN, so
    /// that reads of unwritten values show.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn in_space(space: SpaceId, len: usize, fill: u8) -> Result<Buffer, OutOfMemory> {
        let mut memory = ZeroedBytes::new(len)?;
        if fill != 0 {
            memory.fill(fill);
        }
        Ok(Buffer::of(memory, space))
    }

    fn of(mut memory: ZeroedBytes, space: SpaceId) -> Buffer {
        let (base, len) = (memory.as_mut_ptr(), memory.len());
        Buffer::shared(space, base, len, memory)
    }

    /// Memory of a device that the host cannot address. Its device finds it by the handle; views of
    /// it can be bound and copied by that device alone.
    pub fn of_handle(space: SpaceId, len: usize, handle: impl Any + Send + Sync) -> Buffer {
        Buffer::shared(space, std::ptr::null_mut(), len, handle)
    }

    fn shared(space: SpaceId, base: *mut u8, len: usize, owner: impl Any + Send + Sync) -> Buffer {
        let owner = Arc::new(owner);
        Buffer(Arc::new(Shared { base, len, space, table: Table::new(), owner }))
    }

    /// The owner or handle; `None` if it is of another type.
    pub fn owner<T: Any>(&self) -> Option<&T> {
        self.0.owner.downcast_ref()
    }

    /// Keeps the memory from being freed, for a device that knows it by its address. It gives no
    /// access.
    pub fn keep(&self) -> Arc<dyn Any + Send + Sync> {
        self.0.owner.clone()
    }

    /// Tells whether the buffer is still there.
    pub fn watch(&self) -> BufferWatch {
        BufferWatch(Arc::downgrade(&self.0))
    }

    /// The memory space of the bytes.
    pub fn space(&self) -> SpaceId {
        self.0.space
    }

    /// Whether this process can address the bytes, in whatever space they are.
    pub fn is_addressable(&self) -> bool {
        !self.0.base.is_null()
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Its identity: equal only for clones of one buffer.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// The first byte; null for a handle. Bytes may be used only under a [`Claim`] on them.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.base
    }

    /// Claims rectangles for a task, all or none. They may overlap each other, since a task cannot
    /// conflict with itself. Parts beyond the end of the buffer are allowed but give no access.
    ///
    /// # Errors
    /// [`AccessError::Busy`] while another claim conflicts on any of the bytes.
    pub fn claim(&self, wanted: &[(Rect, Access)]) -> Result<Claim<'_>, AccessError> {
        Ok(Claim { buffer: Cow::Borrowed(self), ticket: self.0.table.enter(wanted)? })
    }

    /// Like [`Buffer::claim`], for a task that outlives its caller: the claim keeps the buffer
    /// alive.
    ///
    /// # Errors
    /// Those of [`Buffer::claim`].
    pub fn hold(&self, wanted: &[(Rect, Access)]) -> Result<HeldClaim, AccessError> {
        Ok(Claim { buffer: Cow::Owned(self.clone()), ticket: self.0.table.enter(wanted)? })
    }

    /// Gives the whole pages of the system within some bytes back to it, if nothing has claimed
    /// them: what they hold is lost. Memory that a device knows by its address stays.
    pub fn give_back(&self, bytes: Range<usize>) {
        let Some(memory) = self.owner::<ZeroedBytes>() else { return };
        let whole = [(Rect::bytes(bytes.clone()), Access::Write)];
        let Ok(_claim) = self.claim(&whole) else { return };
        if Arc::strong_count(&self.0.owner) == 1 {
            // SAFETY: the bytes are claimed for writing, and nobody else keeps the memory.
            unsafe { memory.give_back(bytes) };
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

/// Tells whether a buffer is still there. While it lives, no other buffer has the same
/// [`Buffer::id`].
pub struct BufferWatch(Weak<Shared>);

impl BufferWatch {
    /// Whether anybody has the buffer.
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// The right to use some rectangles of a buffer, until it is dropped.
///
/// While it lives, no other claim can write the bytes that it reads, and no other claim can use the
/// bytes that it writes. This decides what may be done with [`Buffer::as_ptr`].
pub struct Claim<'a> {
    buffer: Cow<'a, Buffer>,
    ticket: u64,
}

/// A [`Claim`] that keeps its buffer alive.
pub type HeldClaim = Claim<'static>;

impl Claim<'_> {
    /// The claimed buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Claims more of the buffer. What this claim has already does not exclude it.
    ///
    /// # Errors
    /// Those of [`Buffer::claim`]; then the claim is as before.
    pub fn extend(&mut self, wanted: &[(Rect, Access)]) -> Result<(), AccessError> {
        self.buffer.0.table.extend(self.ticket, wanted)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.buffer.0.table.leave(self.ticket);
    }
}
