//! The cores and instruction sets of this machine.

/// Instruction sets for which kernels are built, weakest first within each processor family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Without intrinsics: compiled from loops over float arrays.
    Scalar,
    /// 64-bit ARM: available on all such processors.
    Neon,
    /// NEON with sums of four byte products (`dotprod`).
    NeonDot,
    /// The above with products of byte matrices (`i8mm`).
    NeonI8mm,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// The above with sums of four byte products (AVX-VNNI).
    AvxVnni,
    /// AVX-512 F, BW, DQ and VL besides AVX2, with its own VNNI if available.
    Avx512,
    /// The above with VNNI and tiles of bf16 (AMX-TILE, AMX-BF16).
    Amx(Amx),
}

/// The capabilities of this machine's tiles, from [`Amx::detect`], stored to ask only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amx {
    /// Whether it multiplies tiles of bf16.
    pub(super) bf16: bool,
}

impl Amx {
    /// Asks the processor for tiles, and the system for permission to use them, which applies to
    /// the whole process. Linux requires that since tiles enlarge each thread's register state.
    /// Needs a system call.
    pub fn detect() -> Amx {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::machine::instructions::x86::{Tmm, tiles_multiply_pairs};
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            // Leaf 7: AMX-BF16 and AMX-TILE (Intel's manual, volume 2, CPUID).
            let edx = if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).edx };
            let has = |bit: u32| edx & (1 << bit) != 0;
            if has(24) && may_use_tiles() {
                // SAFETY: the processor has them and the system lets us use them.
                return Amx { bf16: has(22) && unsafe { tiles_multiply_pairs::<Tmm>() } };
            }
        }
        Amx { bf16: false }
    }
}

impl Isa {
    /// Whether this machine has it (cheap: the standard library caches it).
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = || has!("avx2") && has!("fma") && has!("f16c");
            let avx512 =
                || has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            match self {
                Isa::Scalar => true,
                Isa::Avx2 => avx2(),
                Isa::AvxVnni => avx2() && has!("avxvnni"),
                Isa::Avx512 => avx2() && avx512(),
                Isa::Amx(amx) => amx.bf16 && avx2() && avx512() && has!("avx512vnni"),
                _ => false,
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected as has;
            match self {
                Isa::Scalar | Isa::Neon => true,
                Isa::NeonDot => has!("dotprod"),
                Isa::NeonI8mm => has!("dotprod") && has!("i8mm"),
                _ => false,
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            self == Isa::Scalar
        }
    }

    /// Whether this build runs it in plain Rust, to test other processor families.
    pub fn is_emulated(self) -> bool {
        // Under an ARM emulator they would take hours; they are tested on x86.
        cfg!(all(any(test, feature = "emulate"), not(target_arch = "aarch64")))
            && !self.is_available()
    }

    /// Whether kernels can run on it here.
    pub fn can_run(self) -> bool {
        self.is_available() || self.is_emulated()
    }

    /// The best set of this machine.
    pub fn detect() -> Isa {
        let best = Isa::all().into_iter().rev().find(|i| i.is_available());
        best.unwrap_or(Isa::Scalar)
    }

    /// All sets of this machine, weakest first.
    pub fn available() -> Vec<Isa> {
        Isa::all().into_iter().filter(|i| i.is_available()).collect()
    }

    /// All sets, weakest first.
    pub fn all() -> [Isa; 8] {
        [
            Isa::Scalar,
            Isa::Neon,
            Isa::NeonDot,
            Isa::NeonI8mm,
            Isa::Avx2,
            Isa::AvxVnni,
            Isa::Avx512,
            Isa::Amx(Amx::detect()),
        ]
    }

    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::NeonDot => "neon dotprod",
            Isa::NeonI8mm => "neon i8mm",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avx vnni",
            Isa::Avx512 => "avx512",
            Isa::Amx(_) => "amx",
        }
    }
}

/// Asks for permission to use tiles, for all threads of this process.
#[cfg(target_arch = "x86_64")]
fn may_use_tiles() -> bool {
    #[cfg(target_os = "linux")]
    {
        /// Linux: `arch/x86/include/uapi/asm/prctl.h`.
        const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
        /// The state component of tile data.
        const XFEATURE_XTILEDATA: libc::c_ulong = 18;
        // SAFETY: takes two numbers and touches no memory.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        false
    }
}

/// Number of logical cores that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The CPU features of this machine that kernels use, separated by commas.
pub fn features() -> String {
    let mut found: Vec<&str> = Vec::new();
    #[allow(unused_macros)]
    macro_rules! list {
        ($detected:ident: $($f:tt),*) => {
            $(if std::arch::$detected!($f) { found.push($f); })*
        };
    }
    #[cfg(target_arch = "x86_64")]
    {
        list!(is_x86_feature_detected: "avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw");
        list!(is_x86_feature_detected: "avx512dq", "avx512vl", "avx512vnni", "avx512bf16");
        list!(is_x86_feature_detected: "avx512fp16");
        found.extend(Amx::detect().bf16.then_some("amx_bf16"));
    }
    #[cfg(target_arch = "aarch64")]
    list!(is_aarch64_feature_detected: "neon", "dotprod", "i8mm", "fp16", "bf16");
    if found.is_empty() {
        found.push("none");
    }
    found.join(",")
}
