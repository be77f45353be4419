//! The heap, which ends the command with a sentence where there is no memory. Rust would abort.

#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The system's heap. Large memory, which is mapped, does not come from here: where that is
/// refused, an error says what it was for.
struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

// SAFETY: each function passes its caller's promises on to the system's heap, and gives what that
// gives.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as promised by the caller.
        given(unsafe { System.realloc(old, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// What the system gave for `size` bytes; if nothing, the command ends.
fn given(memory: *mut u8, size: usize) -> *mut u8 {
    static ENDING: AtomicBool = AtomicBool::new(false);
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
