//! Who made this processor: some instructions have other speeds by that.

/// The maker of this processor, as it says itself; only x86 says it.
pub(crate) fn vendor() -> [u8; 12] {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every 64-bit x86 processor has the instruction.
        #[allow(unused_unsafe)]
        let vendor = unsafe { std::arch::x86_64::__cpuid(0) };
        bytemuck::cast([vendor.ebx, vendor.edx, vendor.ecx])
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        [0; 12]
    }
}

/// Whether this is a processor of Intel.
pub(crate) fn is_intel() -> bool {
    vendor() == *b"GenuineIntel"
}
