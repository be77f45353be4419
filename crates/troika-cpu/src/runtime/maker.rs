//! Who made this processor: some instructions have other speeds by that.

/// The maker of this processor, as it says itself.
#[cfg(target_arch = "x86_64")]
pub(crate) fn vendor() -> [u8; 12] {
    // SAFETY: every 64-bit x86 processor has the instruction.
    #[allow(unused_unsafe)]
    let vendor = unsafe { std::arch::x86_64::__cpuid(0) };
    bytemuck::cast([vendor.ebx, vendor.edx, vendor.ecx])
}

/// Whether this is a processor of Intel.
pub(crate) fn is_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        vendor() == *b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}
