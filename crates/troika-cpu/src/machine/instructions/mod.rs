//! Instructions under their own names: the machine's, and plain Rust with the same exact meaning.
//!
//! Kernels written over these traits have one source for both. They use the machine's instructions
//! where it has them. With the feature `emulate` they use the plain ones on any machine, so that
//! tests cover kernels that the machine cannot run. Released builds have no emulation.

/// Methods that are inlined alike, in an impl of instructions or lanes: what each is in terms of
/// others. All bodies are unsafe; the impl says why they are sound.
macro_rules! methods {
    (#[$inline:meta] $($($word:ident)+ ($($args:tt)*) $(-> $out:ty)? { $($body:tt)* })*) => {$(
        #[$inline]
        $($word)+ ($($args)*) $(-> $out)? {
            // SAFETY: said before the impl.
            unsafe { $($body)* }
        }
    )*};
}
pub(crate) use methods;

#[cfg(any(target_arch = "aarch64", test, feature = "emulate"))]
pub mod arm;
#[cfg(any(
    target_arch = "x86_64",
    all(any(test, feature = "emulate"), not(target_arch = "aarch64"))
))]
pub(crate) mod x86;

/// Work on registers.
pub(crate) trait RegisterWork {
    /// Runs it; implementations must be `#[inline(always)]`.
    ///
    /// # Safety
    /// Needs the features of the registers it is over.
    unsafe fn run(self);
}

/// Runs work that needs no features in a separate function.
///
/// # Safety
/// As for [`RegisterWork::run`].
#[inline(never)]
pub(crate) unsafe fn apart<W: RegisterWork>(work: W) {
    // SAFETY: by the caller.
    unsafe { work.run() }
}
