//! The heap, which ends the command with a sentence where there is no memory. Rust would abort.

#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The system's heap. Large memory, which is mapped, does not come from here: where that is
/// refused, an error says what it was for.
struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// Whether memory is counted.
static LIMITED: AtomicBool = AtomicBool::new(false);
/// Bytes that may still be taken, if memory is counted.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Lets the process take so many bytes from now on. Where it would take more, it ends.
pub fn limit(bytes: usize) {
    LEFT.store(bytes, Ordering::Relaxed);
    LIMITED.store(true, Ordering::Relaxed);
}

/// Counts memory that is taken. Whether there is enough left.
fn take(size: usize) -> bool {
    let less = |left: usize| left.checked_sub(size);
    !LIMITED.load(Ordering::Relaxed)
        || LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
}

fn give_back(size: usize) {
    if LIMITED.load(Ordering::Relaxed) {
        LEFT.fetch_add(size, Ordering::Relaxed);
    }
}

// SAFETY: each function passes its caller's promises on to the system's heap, and gives what that
// gives.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        given(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        given(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        give_back(layout.size());
        // SAFETY: as promised by the caller.
        given(size, || unsafe { System.realloc(old, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// What the system gives for `size` bytes; if nothing, the command ends.
fn given(size: usize, get: impl FnOnce() -> *mut u8) -> *mut u8 {
    static ENDING: AtomicBool = AtomicBool::new(false);
    let memory = if take(size) { get() } else { null_mut() };
    if !memory.is_null() {
        return memory;
    }
    if !ENDING.swap(true, Ordering::Relaxed) {
        // Writing to standard error takes no memory of the heap.
        let _ = writeln!(
            std::io::stderr(),
            "troika: no memory for what comes next: {size} bytes were asked for; \
             a smaller model or context (-c) takes less"
        );
        std::process::exit(1);
    }
    // Another thread is ending the command.
    std::thread::sleep(Duration::from_secs(1));
    memory
}
