//! Reads through io_uring: the kernel works on them while this process computes, and no thread has
//! to wake for that.

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::io::{Done, Target};

/// Reads in the kernel at once.
const ENTRIES: u32 = 256;

pub(super) struct Ring {
    ring: IoUring,
    file: File,
}

impl Ring {
    /// A ring, where the kernel has it and lets this process use it. Gives the file back otherwise.
    pub fn new(file: File) -> std::result::Result<Ring, File> {
        match IoUring::new(ENTRIES) {
            Ok(ring) => Ok(Ring { ring, file }),
            Err(_) => Err(file),
        }
    }

    /// Begins a read, once [`Ring::submit`] is called.
    ///
    /// # Safety
    /// The target's memory is not used otherwise until the read is done.
    pub unsafe fn read(&mut self, number: u64, offset: u64, to: Target) -> Result<()> {
        let fd = types::Fd(self.file.as_raw_fd());
        let len = u32::try_from(to.bytes).map_err(Error::other)?;
        let read = opcode::Read::new(fd, to.start, len).offset(offset).build().user_data(number);
        if self.ring.submission().is_full() {
            self.submit()?;
        }
        // SAFETY: the memory is the read's own by the caller, and the file is open as long as the
        // ring is.
        let pushed = unsafe { self.ring.submission().push(&read) };
        pushed.map_err(Error::other)
    }

    /// Hands what was begun to the kernel.
    pub fn submit(&mut self) -> Result<()> {
        retry(|| self.ring.submit().map(drop))
    }

    /// Adds the reads that are done. If there is none, `wait` waits for one, which must be pending.
    pub fn done(&mut self, wait: bool, into: &mut Vec<Done>) -> Result<()> {
        let before = into.len();
        self.reap(into);
        if wait && into.len() == before {
            retry(|| self.ring.submit_and_wait(1).map(drop))?;
            self.reap(into);
        }
        Ok(())
    }

    fn reap(&mut self, into: &mut Vec<Done>) {
        for entry in self.ring.completion() {
            let result = usize::try_from(entry.result());
            let result = result.map_err(|_| Error::from_raw_os_error(-entry.result()));
            into.push(Done { number: entry.user_data(), result });
        }
    }
}

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> Result<()>) -> Result<()> {
    loop {
        match call() {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
