//! Prefetching of a cache line. Any address will do: what is not mapped is not read.

/// A line that several passes use: into the second-level cache.
#[inline(always)]
pub(crate) fn shared(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch of any address is allowed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint; an address that is not mapped is ignored.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{p}]", p = in(reg) p,
            options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}

/// A line that is read once, as weights are by one activation row: into the first-level cache,
/// past the others. On a Zen 5, two cores read 10 to 20 % faster so than through all caches.
#[inline(always)]
pub(crate) fn once(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_NTA>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1strm, [{p}]", p = in(reg) p,
            options(readonly, nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}
