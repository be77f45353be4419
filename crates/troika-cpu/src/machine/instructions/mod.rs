//! Instructions under their own names: as the machine has them, and in plain Rust with their
//! exact meaning.
//!
//! A kernel written over one of these traits is one source for both. Where the machine has the
//! instructions it runs on them; with the feature `emulate` it runs on the plain ones anywhere,
//! so that the kernel's logic is tested on machines that lack them. A shipped build has no
//! emulation.

#[cfg(any(target_arch = "aarch64", feature = "emulate"))]
pub mod arm;
#[cfg(any(target_arch = "x86_64", all(feature = "emulate", not(target_arch = "aarch64"))))]
pub(crate) mod x86;

/// Work over registers.
pub(crate) trait RegisterWork {
    /// Does it; implementations must be `#[inline(always)]`.
    ///
    /// # Safety
    /// Needs the features of the registers it is over.
    unsafe fn run(self);
}

/// Runs work that needs no features in a function of its own.
///
/// # Safety
/// As for [`RegisterWork::run`].
#[inline(never)]
pub(crate) unsafe fn apart<W: RegisterWork>(work: W) {
    // SAFETY: by the caller.
    unsafe { work.run() }
}
