//! SIMD lanes: kernels are written once over [`Lanes`] and instantiated per instruction set.
//!
//! [`dispatch`] and `dispatch_pairs` switch target features on; everything a [`Kernel`]
//! calls down to the lanes must be `#[inline(always)]` to be compiled with them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod mac;
#[cfg(any(target_arch = "aarch64", test, feature = "emulate"))]
mod neon;
mod scalar;

use half::{bf16, f16};

use crate::Isa;
#[cfg(any(target_arch = "aarch64", test, feature = "emulate"))]
use crate::machine::instructions::arm;

pub(crate) use mac::{Mac, PairsKernel, nearest};
pub use scalar::Portable;

/// Sums of 32 bytes: of each sixteen, the first two of every four and the last two.
pub type ByteSums = [[i16; 2]; 2];

/// `1.5 * 2^23`: added to a small number, it leaves the nearest integer in the low bits.
const TO_BYTE: f32 = 12_582_912.0;

/// The widest lanes of any instruction set.
pub const MAX_LANES: usize = 16;

/// Numbers of four bits with their bits reversed.
const REVERSED: [u8; MAX_LANES] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// Below this `exp` is 0.
const EXP_MIN: f32 = -87.336_54;
/// Above this `exp` is infinite.
const EXP_MAX: f32 = 88.722_84;

/// Coefficients of `(e^r - 1 - r) / r^2` on `|r| <= ln 2 / 2`, highest power first (Cephes,
/// expf).
const EXP_POLY: [f32; 6] =
    [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
/// `ln 2` in two parts.
const LN2_HIGH: f32 = 0.693_359_4;
/// See [`LN2_HIGH`].
const LN2_LOW: f32 = -2.121_944_4e-4;

/// Beyond this `tanh` is 1, but for rounding.
const TANH_ONE: f32 = 7.998_812;
/// Coefficients of the two polynomials in `x^2` whose quotient is `tanh(x) / x`, highest power first
/// (Eigen, generic_fast_tanh_float).
const TANH_ABOVE: [f32; 7] = [
    -2.760_768_4e-16,
    2.000_188e-13,
    -8.604_672e-11,
    5.122_297e-8,
    1.485_722_4e-5,
    6.372_619_3e-4,
    4.893_524_6e-3,
];
/// See [`TANH_ABOVE`].
const TANH_BELOW: [f32; 4] = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3];

/// Keeps other modules from implementing [`Lanes`].
mod sealed {
    pub trait Sealed {}
}

/// A register of f32 lanes. Sums over lanes add in a fixed tree, so results depend on the
/// instruction set but on nothing else.
///
/// The types of lanes that need CPU features are private to this module. A kernel gets one from
/// [`dispatch`], which has detected the features, so it may use any lanes that it is given.
///
/// # Safety
/// Loads and stores need valid memory for [`Lanes::N`] elements and no alignment.
#[allow(missing_docs, clippy::missing_safety_doc)]
pub trait Lanes: Copy + sealed::Sealed {
    /// Lanes.
    const N: usize;
    /// Whether there are 32 registers instead of 16.
    const MANY: bool;
    fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    /// The first lanes' worth of a slice.
    #[inline(always)]
    fn from_slice(x: &[f32]) -> Self {
        assert!(x.len() >= Self::N, "a register of floats");
        // SAFETY: as many floats.
        unsafe { Self::load(x.as_ptr()) }
    }
    unsafe fn load_f16(p: *const f16) -> Self;
    unsafe fn load_bf16(p: *const bf16) -> Self;
    /// The largest magnitude; a NaN is larger than anything.
    #[inline(always)]
    fn largest_magnitude(x: &[f32; 32]) -> f32 {
        // As integers, for the NaN.
        f32::from_bits(x.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7fff_ffff)))
    }

    /// Whole numbers nearest to `x * by`, ties to even, and their sums; products lie within -127
    /// and 127.
    #[inline(always)]
    fn round_bytes(x: &[f32; 32], by: f32, out: &mut [i8; 32]) -> ByteSums {
        for (x, out) in x.iter().zip(&mut *out) {
            *out = (x * by + TO_BYTE).to_bits() as i8;
        }
        let mut sums = [[0; 2]; 2];
        for (half, sums) in out.as_chunks::<16>().0.iter().zip(&mut sums) {
            for quad in half.as_chunks::<4>().0 {
                sums[0] += i16::from(quad[0]) + i16::from(quad[1]);
                sums[1] += i16::from(quad[2]) + i16::from(quad[3]);
            }
        }
        sums
    }
    unsafe fn store(self, p: *mut f32);
    /// Writes all lanes to the beginning of a slice.
    #[inline(always)]
    fn write_to(self, out: &mut [f32]) {
        assert!(out.len() >= Self::N, "a register of floats");
        // SAFETY: as many floats.
        unsafe { self.store(out.as_mut_ptr()) }
    }
    /// The bits of all lanes, and zeros.
    #[inline(always)]
    fn to_bits(self) -> [u32; MAX_LANES] {
        let mut bits = [0; MAX_LANES];
        self.write_to(bytemuck::cast_slice_mut(&mut bits));
        bits
    }
    /// Lanes of these bits.
    #[inline(always)]
    fn from_bits(bits: [u32; MAX_LANES]) -> Self {
        Self::from_slice(bytemuck::cast_slice(&bits))
    }
    /// The nearest f16, ties to even.
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        for (i, x) in self.to_bits().into_iter().enumerate().take(Self::N) {
            // SAFETY: by the caller.
            unsafe { p.add(i).write_unaligned(f16::from_f32(f32::from_bits(x))) };
        }
    }
    fn add(self, o: Self) -> Self;
    fn sub(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    fn div(self, o: Self) -> Self;
    /// `o` where one of the two is NaN (NEON: NaN).
    fn min(self, o: Self) -> Self;
    /// As [`Lanes::min`].
    fn max(self, o: Self) -> Self;
    /// `self * a + b`, fused where the instruction set can.
    fn fma(self, a: Self, b: Self) -> Self;
    /// `e^x` with a relative error under 2e-7; results below 1.2e-38 may be 0.
    fn exp(self) -> Self;
    /// The same for `x` that is not above 0, with the same bits.
    #[inline(always)]
    fn exp_falling(self) -> Self {
        self.exp()
    }
    /// Sum of the lanes, in a fixed tree.
    fn sum(self) -> f32;
    /// The first `N` registers as rows of a square, turned into its columns. Any bits are kept.
    #[inline(always)]
    fn transpose(rows: [Self; MAX_LANES]) -> [Self; MAX_LANES] {
        let from = rows.map(Self::to_bits);
        std::array::from_fn(|i| Self::from_bits(from.map(|row| row[i])))
    }
    /// The lower halves of the lanes, which are pairs of bf16, as f32.
    #[inline(always)]
    fn bf16_low(self) -> Self {
        Self::from_bits(self.to_bits().map(|x| x << 16))
    }
    /// The upper halves, as [`Lanes::bf16_low`].
    #[inline(always)]
    fn bf16_high(self) -> Self {
        Self::from_bits(self.to_bits().map(|x| x & 0xffff_0000))
    }
    /// Prefetches a cache line; any address will do.
    #[inline(always)]
    fn prefetch(_: *const u8) {}
    /// The place of lane `i` when the lanes are brought into an order in which the tree of
    /// [`Lanes::sum`] adds neighbours, neighbours of these sums, and so forth. By default lane `i`
    /// is added to lane `i + N/2` first, so the bits of its number are reversed.
    #[inline(always)]
    fn place(i: usize) -> usize {
        usize::from(REVERSED[i]) / (MAX_LANES / Self::N)
    }
    /// The sums of eight registers, each added as [`Lanes::sum`] does.
    fn sums(v: [Self; 8]) -> [f32; 8];
    /// The largest lane.
    fn largest(self) -> f32;
    /// The largest lanes of eight registers.
    #[inline(always)]
    fn maxima(v: [Self; 8]) -> [f32; 8] {
        let mut out = [0.0; 8];
        for (out, v) in out.iter_mut().zip(v) {
            *out = v.largest();
        }
        out
    }
    /// Asks for the cache line at `p`, which may lie anywhere, in the second-level cache: keys of
    /// one head lie a power of two apart and would push each other out of the first.
    fn prefetch_l2(p: *const u8);
}

/// Work that runs with the features of an instruction set switched on.
pub trait Kernel {
    /// What it gives.
    type Output;
    /// Runs; implementations must be `#[inline(always)]`.
    fn run<V: Lanes>(self) -> Self::Output;
}

/// Whether the instruction set has products of pairs of bf16 in registers, `vdpbf16ps` (on this
/// machine).
pub fn has_pairs(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    let there = std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let there = false;
    there && matches!(isa, Isa::Avx512 | Isa::Amx(_)) && isa.is_available()
}

/// Runs a kernel over products of pairs of bf16.
///
/// # Panics
/// If the instruction set has none on this machine.
#[cfg(target_arch = "x86_64")]
pub(crate) fn dispatch_pairs<K: PairsKernel>(isa: Isa, kernel: K) {
    assert!(has_pairs(isa), "{} has no products of pairs here", isa.name());
    // SAFETY: detected above.
    unsafe { avx512::run_pairs(kernel) }
}

/// Runs a kernel with the lanes of `isa`.
///
/// # Panics
/// If this build cannot run this instruction set on this machine.
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    assert!(isa.can_run(), "this machine has no {}", isa.name());
    match isa {
        Isa::Scalar => kernel.run::<Portable>(),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => kernel.run::<neon::Neon<arm::Native>>(),
        #[cfg(all(any(test, feature = "emulate"), not(target_arch = "aarch64")))]
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => kernel.run::<neon::Neon<arm::Emulated>>(),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: detected above.
        Isa::Avx2 | Isa::AvxVnni if isa.is_available() => unsafe { avx2::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: detected above.
        Isa::Avx512 | Isa::Amx(_) if isa.is_available() => unsafe { avx512::run(kernel) },
        // Of x86 only products of bytes are emulated.
        #[cfg(any(test, feature = "emulate"))]
        Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Amx(_) => kernel.run::<Portable>(),
        #[allow(unreachable_patterns)]
        _ => unreachable!("{} can run here", isa.name()),
    }
}

/// The first `n < N` floats, zeros in the other lanes.
///
/// # Safety
/// `p` is valid for `n` floats.
#[inline(always)]
pub unsafe fn load_part<V: Lanes>(p: *const f32, n: usize) -> V {
    let mut buf = [0.0f32; MAX_LANES];
    // SAFETY: `n` is below the lanes, which are at most MAX_LANES.
    unsafe {
        // As bytes: `p` may be unaligned.
        let bytes = n.min(MAX_LANES) * 4;
        std::ptr::copy_nonoverlapping(p.cast::<u8>(), buf.as_mut_ptr().cast(), bytes);
        V::load(buf.as_ptr())
    }
}

/// Stores the first `n < N` lanes.
///
/// # Safety
/// `p` is valid for `n` floats.
#[inline(always)]
pub unsafe fn store_part<V: Lanes>(v: V, p: *mut f32, n: usize) {
    let mut buf = [0.0f32; MAX_LANES];
    // SAFETY: as in `load_part`.
    unsafe {
        v.store(buf.as_mut_ptr());
        std::ptr::copy_nonoverlapping(buf.as_ptr(), p, n.min(MAX_LANES));
    }
}

/// The first lanes' worth of a slice, or all of it and zeros.
#[inline(always)]
pub(crate) fn part_of<V: Lanes>(x: &[f32]) -> V {
    match x.len() >= V::N {
        true => V::from_slice(x),
        // SAFETY: so many floats lie there.
        false => unsafe { load_part(x.as_ptr(), x.len()) },
    }
}

/// Writes a register, or as many of its lanes as there is room for.
#[inline(always)]
pub(crate) fn put_part<V: Lanes>(v: V, to: &mut [f32]) {
    match to.len() >= V::N {
        true => v.write_to(to),
        // SAFETY: so many floats lie there.
        false => unsafe { store_part(v, to.as_mut_ptr(), to.len()) },
    }
}

/// `e^r` for `x = n ln 2 + r`, where `n` is a whole number and `r` at most half of `ln 2`.
#[inline(always)]
fn exp_of_rest<V: Lanes>(x: V, n: V) -> V {
    let r = n.fma(V::splat(-LN2_LOW), n.fma(V::splat(-LN2_HIGH), x));
    let mut p = V::splat(EXP_POLY[0]);
    for c in &EXP_POLY[1..] {
        p = p.fma(r, V::splat(*c));
    }
    p.fma(r.mul(r), r).add(V::splat(1.0))
}

/// `tanh x` with a relative error under 5e-7; NaN stays NaN.
#[inline(always)]
pub fn tanh<V: Lanes>(x: V) -> V {
    // min and max give their second operand when one is NaN.
    let x = V::splat(-TANH_ONE).max(V::splat(TANH_ONE).min(x));
    let square = x.mul(x);
    let horner = |c: &[f32]| c.iter().fold(V::splat(0.0), |p, c| p.fma(square, V::splat(*c)));
    x.mul(horner(&TANH_ABOVE)).div(horner(&TANH_BELOW))
}

/// `x * sigmoid(slope * x)`.
#[inline(always)]
pub fn swish<V: Lanes>(x: V, slope: V) -> V {
    let minus = V::splat(0.0).sub(slope.mul(x));
    x.div(V::splat(1.0).add(minus.exp()))
}
