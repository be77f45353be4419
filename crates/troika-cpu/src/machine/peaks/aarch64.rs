//! Loops of multiply instructions on aarch64, in assembly as on x86-64.

use std::arch::asm;
use std::arch::is_aarch64_feature_detected as has;

use super::{Multiply, Probe};

/// The loop for a way to multiply, if this machine has the instructions.
pub(super) fn probe(multiply: Multiply) -> Option<Probe> {
    let of = |there: bool, run: unsafe fn(u64), ops: u64| there.then_some(Probe { run, ops });
    match multiply {
        Multiply::F32Neon => of(has!("neon"), fmla, 16 * 8),
        Multiply::Int8Dot => of(has!("dotprod"), sdot, 16 * 32),
        Multiply::Int8Mmla => of(has!("i8mm"), smmla, 16 * 64),
        _ => None,
    }
}

/// A function that repeats an instruction on sixteen sums as often as its argument says.
macro_rules! repeated {
    ($name:ident, $extension:literal, $op:literal, $form:literal) => {
        repeated!(@ $name, $extension, $op, $form; 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23);
    };
    (@ $name:ident, $extension:literal, $op:literal, $form:literal; $($d:literal)*) => {
        /// # Safety
        /// Needs the instruction.
        unsafe fn $name(passes: u64) {
            // SAFETY: touches the registers named below only; the instruction by the caller.
            unsafe {
                asm!(
                    $extension,
                    $(concat!("movi v", $d, ".16b, #0"),)*
                    "movi v30.16b, #0",
                    "movi v31.16b, #0",
                    "2:",
                    $(concat!($op, " v", $d, ".4s, v30.", $form, ", v31.", $form),)*
                    "subs {n}, {n}, #1",
                    "b.ne 2b",
                    n = inout(reg) passes.max(1) => _,
                    out("v0") _, out("v1") _, out("v2") _, out("v3") _,
                    out("v4") _, out("v5") _, out("v6") _, out("v7") _,
                    out("v16") _, out("v17") _, out("v18") _, out("v19") _,
                    out("v20") _, out("v21") _, out("v22") _, out("v23") _,
                    out("v30") _, out("v31") _,
                    options(nomem, nostack),
                );
            }
        }
    };
}

repeated!(fmla, "", "fmla", "4s");
repeated!(sdot, ".arch_extension dotprod", "sdot", "16b");
repeated!(smmla, ".arch_extension i8mm", "smmla", "16b");
