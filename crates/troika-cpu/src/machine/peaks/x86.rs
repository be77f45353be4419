//! Loops of multiply instructions on x86-64, in assembly, since a compiler would remove sums that
//! are never read.

use std::arch::asm;
use std::arch::is_x86_feature_detected as has;

use super::{Multiply, Probe};
use crate::machine::Amx;
use crate::machine::instructions::x86::TileConfig;

/// The loop for a way to multiply, if this machine has the instructions.
pub(super) fn probe(multiply: Multiply) -> Option<Probe> {
    let avx512 = || has!("avx512f");
    let of = |there: bool, run: unsafe fn(u64), ops: u64| there.then_some(Probe { run, ops });
    match multiply {
        Multiply::F32Avx2 => of(has!("avx2") && has!("fma"), fma_256, 12 * 16),
        Multiply::Int8Avx2 => of(has!("avx2"), maddubs_256, 6 * 64),
        Multiply::Int8FlipAvx2 => of(has!("avx2"), maddubs_xor_256, 6 * 64),
        Multiply::Int8SumsAvx2 => of(has!("avx2"), maddubs_sums_256, 4 * 256),
        Multiply::Int8AvxVnni => of(has!("avxvnni"), dpbusd_256, 12 * 64),
        Multiply::F32Avx512 => of(avx512(), fma_512, 12 * 32),
        Multiply::Int8Avx512 => of(avx512() && has!("avx512vnni"), dpbusd_512, 12 * 128),
        Multiply::Bf16Avx512 => of(avx512() && has!("avx512bf16"), dpbf16_512, 12 * 64),
        Multiply::Bf16Amx => of(Amx::detect().bf16, bf16_amx, 4 * 16 * 16 * 32 * 2),
        Multiply::F32Neon | Multiply::Int8Dot | Multiply::Int8Mmla => None,
    }
}

/// A function that repeats `$body` on zeroed registers as often as its argument says.
macro_rules! repeated {
    ($(#[$doc:meta])* $name:ident, $body:expr) => {
        $(#[$doc])*
        /// # Safety
        /// Needs the instructions.
        unsafe fn $name(passes: u64) {
            // SAFETY: touches the registers named below only; instructions by the caller. A VEX
            // `vpxor` clears a register's upper parts, too.
            unsafe {
                asm!(
                    zeroed!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15),
                    "2:",
                    $body,
                    "dec {n}",
                    "jnz 2b",
                    "vzeroupper",
                    n = inout(reg) passes.max(1) => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nomem, nostack),
                );
            }
        }
    };
}

/// Clears registers.
macro_rules! zeroed {
    ($($d:literal)*) => { concat!($("vpxor ymm", $d, ", ymm", $d, ", ymm", $d, "\n",)*) };
}

/// An instruction on registers 15 and 14, once per destination register.
macro_rules! each {
    ($op:literal, $r:literal; $($d:literal)*) => {
        concat!($($op, " ", $r, $d, ", ", $r, "15, ", $r, "14\n",)*)
    };
}

/// Byte products summed in pairs to 16 and then 32 bits: temporary and sum.
macro_rules! widened {
    ($($t:literal $sum:literal),*) => {
        concat!($(
            "vpmaddubsw ymm", $t, ", ymm15, ymm14\n",
            "vpmaddwd ymm", $t, ", ymm", $t, ", ymm13\n",
            "vpaddd ymm", $sum, ", ymm", $sum, ", ymm", $t, "\n",
        )*)
    };
}

/// The same after the second operand's top bits were flipped: temporary and sum.
macro_rules! flipped {
    ($($t:literal $sum:literal),*) => {
        concat!($(
            "vpxor ymm", $t, ", ymm14, ymm12\n",
            "vpmaddubsw ymm", $t, ", ymm15, ymm", $t, "\n",
            "vpmaddwd ymm", $t, ", ymm", $t, ", ymm13\n",
            "vpaddd ymm", $sum, ", ymm", $sum, ", ymm", $t, "\n",
        )*)
    };
}

/// Without signs, with four products summed in 16 bits first: two temporaries and the sum.
macro_rules! summed {
    ($($t:literal $u:literal $sum:literal),*) => {
        concat!($(
            "vpmaddubsw ymm", $t, ", ymm15, ymm14\n",
            "vpmaddubsw ymm", $u, ", ymm15, ymm14\n",
            "vpaddw ymm", $t, ", ymm", $t, ", ymm", $u, "\n",
            "vpmaddubsw ymm", $u, ", ymm15, ymm14\n",
            "vpaddw ymm", $t, ", ymm", $t, ", ymm", $u, "\n",
            "vpmaddubsw ymm", $u, ", ymm15, ymm14\n",
            "vpaddw ymm", $t, ", ymm", $t, ", ymm", $u, "\n",
            "vpmaddwd ymm", $t, ", ymm", $t, ", ymm13\n",
            "vpaddd ymm", $sum, ", ymm", $sum, ", ymm", $t, "\n",
        )*)
    };
}

repeated!(fma_256, each!("vfmadd231ps", "ymm"; 0 1 2 3 4 5 6 7 8 9 10 11));
repeated!(maddubs_256, widened!(6 0, 7 1, 8 2, 9 3, 10 4, 11 5));
repeated!(maddubs_xor_256, flipped!(6 0, 7 1, 8 2, 9 3, 10 4, 11 5));
repeated!(maddubs_sums_256, summed!(6 7 0, 8 9 1, 10 11 2, 5 12 3));
repeated!(dpbusd_256, each!("{{vex}} vpdpbusd", "ymm"; 0 1 2 3 4 5 6 7 8 9 10 11));
repeated!(fma_512, each!("vfmadd231ps", "zmm"; 0 1 2 3 4 5 6 7 8 9 10 11));
repeated!(dpbusd_512, each!("vpdpbusd", "zmm"; 0 1 2 3 4 5 6 7 8 9 10 11));
repeated!(dpbf16_512, each!("vdpbf16ps", "zmm"; 0 1 2 3 4 5 6 7 8 9 10 11));

/// # Safety
/// Needs tiles of bf16, and the system's permission to use them.
unsafe fn bf16_amx(passes: u64) {
    let config = TileConfig::new(&[(16, 64); 8]);
    // SAFETY: the configuration is valid and outlives the block; only tiles are written, which are
    // there by the caller.
    unsafe {
        asm!(
            "ldtilecfg [{c}]",
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {n}",
            "jnz 2b",
            "tilerelease",
            c = in(reg) &config,
            n = inout(reg) passes.max(1) => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(readonly, nostack),
        );
    }
}
