//! Products of bf16 weights with activations in bf16.
//!
//! Activations are rounded to the nearest bf16 once per op input ([`round`]), two columns to a
//! word. An [`Instruction`] multiplies; [`scalar`] says in plain Rust what `vdpbf16ps` adds up in
//! which order. All sums are f32, rounded to nearest even; denormal operands and results count as
//! zeros (Intel SDM, volume 2).

use half::bf16;

use crate::Isa;
#[cfg(target_arch = "x86_64")]
use crate::kernels::simd;
use crate::kernels::simd::{Kernel, Lanes, Mac, PairsKernel, Portable, dispatch, nearest};
use crate::kernels::{Context, KernelError, rows_per_part};
use crate::runtime::is_intel;

pub use crate::kernels::simd::has_pairs;

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// `vdpbf16ps`.
    Registers,
    /// `tdpbf16ps`, for any number of rows.
    Tiles,
}

/// What multiplies on an instruction set, natively or in plain Rust.
pub fn instruction(isa: Isa) -> Instruction {
    match isa {
        Isa::Amx(_) => Instruction::Tiles,
        _ => Instruction::Registers,
    }
}

/// The plain meaning of `vdpbf16ps`.
pub mod scalar {
    use half::bf16;

    /// Denormals are zeros, with their sign.
    pub fn flush(x: f32) -> f32 {
        if x.is_subnormal() { 0f32.copysign(x) } else { x }
    }

    /// `acc + x1 * w1 + x0 * w0` in this order, each sum rounded once; the first of a pair is `0`
    /// (`vdpbf16ps`).
    pub fn dot(acc: f32, x: [bf16; 2], w: [bf16; 2]) -> f32 {
        let [x, w] = [x, w].map(|v| v.map(|v| flush(v.to_f32())));
        let upper = flush(x[1].mul_add(w[1], flush(acc)));
        flush(x[0].mul_add(w[0], upper))
    }
}

/// Whether the instruction set has the products of its [`instruction`] (on this machine).
pub fn is_native(isa: Isa) -> bool {
    match isa {
        Isa::Amx(_) => isa.is_available(),
        _ => has_pairs(isa),
    }
}

/// Whether products of pairs in registers are faster than products of f32 (on this machine).
/// Intel's processors begin a `vdpbf16ps` every other cycle, and two products of f32 in each (two
/// cores of an Emerald Rapids: 167 GFLOP/s and 296).
pub fn gains_from_pairs(isa: Isa) -> bool {
    has_pairs(isa) && !is_intel()
}

/// Whether activations in bf16 make products faster (on this machine).
pub fn gains(isa: Isa) -> bool {
    match instruction(isa) {
        Instruction::Tiles => is_native(isa),
        Instruction::Registers => gains_from_pairs(isa),
    }
}

/// Pairs in plain Rust.
pub(super) struct Emulated;

impl Mac for Emulated {
    type V = Portable;
    const PAIRS: bool = true;
    #[inline(always)]
    fn mac(x: Portable, w: Portable, acc: Portable) -> Portable {
        let pair = |v: u32| [v as u16, (v >> 16) as u16].map(bf16::from_bits);
        let [x, w, mut acc] = [x, w, acc].map(Lanes::to_bits);
        for ((x, w), acc) in x.into_iter().zip(w).zip(&mut acc) {
            *acc = scalar::dot(f32::from_bits(*acc), pair(x), pair(w)).to_bits();
        }
        Portable::from_bits(acc)
    }
}

/// Runs a kernel with `vdpbf16ps` where the instruction set has it, else in plain Rust.
pub(crate) fn dispatch_pairs<K: PairsKernel>(isa: Isa, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    if has_pairs(isa) {
        return simd::dispatch_pairs(isa, kernel);
    }
    let _ = isa;
    kernel.run::<Emulated>();
}

/// Words a row of `cols` activations takes.
pub fn words(cols: usize) -> usize {
    cols.div_ceil(2)
}

struct Round<'a> {
    x: &'a [f32],
    cols: usize,
    /// Pairs; else each result is an f32.
    pairs: bool,
    out: &'a mut [f32],
}

impl Kernel for Round<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        // Plain loops: the compiler vectorises them with the features that are on.
        if !self.pairs {
            for (x, out) in self.x.iter().zip(self.out) {
                *out = f32::from_bits(nearest(*x) << 16);
            }
            return;
        }
        let rows = self.x.chunks_exact(self.cols).zip(self.out.chunks_exact_mut(words(self.cols)));
        for (x, out) in rows {
            let (pairs, rest) = x.as_chunks::<2>();
            for ([low, high], out) in pairs.iter().zip(&mut *out) {
                *out = f32::from_bits(nearest(*low) | nearest(*high) << 16);
            }
            if let ([low], Some(out)) = (rest, out.last_mut()) {
                *out = f32::from_bits(nearest(*low));
            }
        }
    }
}

/// Rounds rows of `cols` activations to bf16: into [`words`] words each if `pairs`, else into
/// floats (for instruction sets without the products, which then compute in f32).
///
/// # Errors
/// A panic of a part.
///
/// # Panics
/// If the result's length is another.
pub fn round(
    cx: &mut Context<'_>,
    x: &[f32],
    cols: usize,
    pairs: bool,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let rows = x.len() / cols.max(1);
    let width = if pairs { words(cols) } else { cols };
    assert_eq!(out.len(), rows * width, "rounded rows");
    let isa = cx.isa;
    cx.run_rows(out, width, rows_per_part(cols), |_, rows, out| {
        let x = &x[rows.start * cols..rows.end * cols];
        dispatch(isa, Round { x, cols, pairs, out });
    })
}
