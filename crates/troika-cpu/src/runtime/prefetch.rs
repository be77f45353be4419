//! Prefetches cache lines. Any address is allowed, since prefetches never fault.

use std::sync::atomic::{AtomicBool, Ordering};

use super::maker::{is_intel, vendor};

/// Whether [`once`] bypasses the farther caches. On a Zen 5, two cores then read 10 to 20 % faster
/// than through all caches; on a Cascade Lake, half as fast (bf16 weights, two cores: 11.6 to 15.3
/// GB/s instead of 22.4 to 23.1).
static PAST_CACHES: AtomicBool = AtomicBool::new(false);
/// Whether a thread reads several streams faster than one.
static STREAMS: AtomicBool = AtomicBool::new(false);

/// Chooses the kind of prefetch, and the number of streams, for this processor; called before any kernel runs.
pub(crate) fn prepare() {
    let amd = [*b"AuthenticAMD", *b"HygonGenuine"];
    PAST_CACHES.store(amd.contains(&vendor()), Ordering::Relaxed);
    STREAMS.store(is_intel(), Ordering::Relaxed);
}

/// Prefetches a line that several passes use into the second-level cache.
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

/// Prefetches a line that is read once, such as weights for one activation row, into the
/// first-level cache. Bypasses the other caches where that is faster.
#[inline(always)]
pub(crate) fn once(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_NTA, _MM_HINT_T0, _mm_prefetch};
        if PAST_CACHES.load(Ordering::Relaxed) {
            _mm_prefetch::<_MM_HINT_NTA>(p.cast());
        } else {
            _mm_prefetch::<_MM_HINT_T0>(p.cast());
        }
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

/// Whether a thread reads memory faster as several streams than as one.
#[inline(always)]
pub(crate) fn gains_from_streams() -> bool {
    cfg!(target_arch = "x86_64") && STREAMS.load(Ordering::Relaxed)
}
