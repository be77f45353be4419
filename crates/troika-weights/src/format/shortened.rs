//! Ends the process with a message when a mapped file is shortened.
//!
//! If another program shortens a mapped file, its pages beyond the new end cannot be read; nor can
//! pages with disk errors. On Unix the system then sends SIGBUS to the reading thread, in the
//! middle of a kernel that cannot return an error. A program that called [`exit_when_shortened`]
//! ends with a sentence on standard error and exit code 1; others are ended by the signal.

pub(crate) use system::Watch;
pub use system::exit_when_shortened;

#[cfg(unix)]
mod system {
    use std::ffi::{c_int, c_void};
    use std::fs::File;
    use std::mem::MaybeUninit;
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering};

    /// Number of files that can be named; further shards are recognised without a name.
    const SLOTS: usize = 128;
    /// The most bytes of a path, taken from its end.
    const NAME: usize = 512;

    /// A mapped file, in memory that a signal handler may read at any moment.
    struct MapEntry {
        taken: AtomicBool,
        start: AtomicUsize,
        /// 0 while the entry is unused.
        len: AtomicUsize,
        file: AtomicI32,
        name_len: AtomicUsize,
        name: [AtomicU8; NAME],
    }

    static MAPPED: [MapEntry; SLOTS] = [const { MapEntry::empty() }; SLOTS];
    /// Number of files without a slot.
    static UNNAMED: AtomicUsize = AtomicUsize::new(0);
    /// Whether a thread is ending the process.
    static ENDING: AtomicBool = AtomicBool::new(false);
    /// The beginning of the sentence.
    static PREFIX: OnceLock<&'static str> = OnceLock::new();
    /// The previous handler, for faults outside of mapped files.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    impl MapEntry {
        const fn empty() -> MapEntry {
            MapEntry {
                taken: AtomicBool::new(false),
                start: AtomicUsize::new(0),
                len: AtomicUsize::new(0),
                file: AtomicI32::new(-1),
                name_len: AtomicUsize::new(0),
                name: [const { AtomicU8::new(0) }; NAME],
            }
        }

        fn holds(&self, address: usize) -> bool {
            let (start, len) =
                (self.start.load(Ordering::Acquire), self.len.load(Ordering::Acquire));
            address >= start && address - start < len
        }

        /// Whether the file is shorter than its mapping. Async-signal-safe.
        fn is_shorter(&self) -> bool {
            let mut meta = MaybeUninit::<libc::stat>::zeroed();
            // SAFETY: `fstat` writes a `stat` to the place it is given, and all zeros are one.
            let (failed, meta) = unsafe {
                (
                    libc::fstat(self.file.load(Ordering::Acquire), meta.as_mut_ptr()),
                    meta.assume_init(),
                )
            };
            let len = self.len.load(Ordering::Acquire);
            failed == 0 && usize::try_from(meta.st_size).is_ok_and(|size| size < len)
        }
    }

    /// Keeps a mapped file's name for the message until this is dropped.
    pub(crate) struct Watch(Option<&'static MapEntry>);

    impl Watch {
        pub fn new(path: &Path, file: &File, map: &[u8]) -> Watch {
            let free = |s: &&MapEntry| !s.taken.swap(true, Ordering::AcqRel);
            let Some(slot) = MAPPED.iter().find(free) else {
                UNNAMED.fetch_add(1, Ordering::AcqRel);
                return Watch(None);
            };
            let text = path.display().to_string();
            let shown = |b: u8| if b.is_ascii_control() { b'?' } else { b };
            let kept = &text.as_bytes()[text.len().saturating_sub(NAME)..];
            for (to, b) in slot.name.iter().zip(kept) {
                to.store(shown(*b), Ordering::Relaxed);
            }
            slot.name_len.store(kept.len(), Ordering::Relaxed);
            slot.file.store(file.as_raw_fd(), Ordering::Relaxed);
            slot.start.store(map.as_ptr() as usize, Ordering::Release);
            slot.len.store(map.len(), Ordering::Release);
            Watch(Some(slot))
        }
    }

    impl Drop for Watch {
        fn drop(&mut self) {
            match self.0 {
                Some(slot) => {
                    slot.len.store(0, Ordering::Release);
                    slot.taken.store(false, Ordering::Release);
                }
                None => _ = UNNAMED.fetch_sub(1, Ordering::AcqRel),
            }
        }
    }

    /// From now on, shortening a mapped file (of a model or of packed weights) ends the process
    /// with exit code 1 and a line on standard error that begins with `prefix` and names the file.
    /// For programs only: libraries must not change signal handling.
    pub fn exit_when_shortened(prefix: &'static str) {
        if PREFIX.set(prefix).is_err() {
            return;
        }
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: all zeros are a `sigaction`; the handler is a function of the form that
        // SA_SIGINFO asks for, does only what a signal handler may, and lives as long as the
        // process. It runs on the stack of the thread, which was reading, and not on one for
        // signals: where processors have AMX, what the system saves there leaves no room.
        let before = unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &raw const action, before.as_mut_ptr());
            before.assume_init()
        };
        let _ = BEFORE.set(before);
    }

    /// The handler of SIGBUS.
    ///
    /// # Safety
    /// `info` describes the signal, as the system passes it.
    unsafe extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: by the caller.
        let address = unsafe { (*info).si_addr() } as usize;
        let slot = MAPPED.iter().find(|s| s.holds(address));
        if slot.is_some() || UNNAMED.load(Ordering::Acquire) > 0 {
            end(slot);
        }
        // Not a mapped file: restore the previous handler, which gets the repeated fault.
        if let Some(before) = BEFORE.get() {
            // SAFETY: this is what the system said was in force before.
            unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
        }
    }

    /// Prints the message and ends the process. It may only do what signal handlers may: no
    /// allocation, no locks.
    fn end(slot: Option<&MapEntry>) -> ! {
        if ENDING.swap(true, Ordering::AcqRel) {
            loop {
                // SAFETY: it waits for a signal; the thread that came first ends the process.
                unsafe { libc::pause() };
            }
        }
        let mut line = Line { bytes: [0; NAME + 256], len: 0 };
        line.add(PREFIX.get().copied().unwrap_or_default().bytes());
        match slot {
            None => line.add("a mapped file".bytes()),
            Some(slot) => {
                let len = slot.name_len.load(Ordering::Acquire);
                line.add(slot.name.iter().take(len).map(|b| b.load(Ordering::Relaxed)));
            }
        }
        line.add(match slot.is_none_or(MapEntry::is_shorter) {
            true => " was shortened while it was in use; restore it and start again\n".bytes(),
            false => " could not be read; its disk or network folder does not answer\n".bytes(),
        });
        // SAFETY: the bytes are there; `write` and `_exit` may be called by a signal handler.
        unsafe {
            libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len);
            libc::_exit(1)
        }
    }

    /// Text on the stack.
    struct Line {
        bytes: [u8; NAME + 256],
        len: usize,
    }

    impl Line {
        fn add(&mut self, text: impl Iterator<Item = u8>) {
            for b in text {
                if let Some(to) = self.bytes.get_mut(self.len) {
                    *to = b;
                    self.len += 1;
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn slots_are_given_back_and_overflow_is_counted() {
            let file = tempfile::tempfile().unwrap();
            let bytes = [0u8; 64];
            let inside = bytes.as_ptr() as usize + 63;
            let seen = || MAPPED.iter().filter(|s| s.holds(inside)).count();
            let watches: Vec<Watch> =
                (0..SLOTS + 3).map(|_| Watch::new(Path::new("a\nb"), &file, &bytes)).collect();
            assert!(seen() > SLOTS / 2 && UNNAMED.load(Ordering::Acquire) >= 3);
            let slot = watches[0].0.unwrap();
            let name: Vec<u8> = slot.name[..3].iter().map(|b| b.load(Ordering::Acquire)).collect();
            assert_eq!((name.as_slice(), slot.is_shorter()), (b"a?b".as_slice(), true));
            file.set_len(64).unwrap();
            assert!(!slot.is_shorter() && !slot.holds(inside + 1));
            drop(watches);
            assert_eq!(seen(), 0);
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::fs::File;
    use std::path::Path;

    pub(crate) struct Watch;

    impl Watch {
        pub fn new(_: &Path, _: &File, _: &[u8]) -> Watch {
            Watch
        }
    }

    /// Does nothing: this system does not let mapped files be shortened.
    pub fn exit_when_shortened(_: &'static str) {}
}
