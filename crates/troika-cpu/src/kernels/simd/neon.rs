//! NEON: four lanes.

use half::{bf16, f16};

use super::sealed::Sealed;
use super::{EXP_MAX, EXP_MIN, Lanes, MAX_LANES, exp_of_rest};
use crate::machine::instructions::arm::Arm;
use crate::machine::instructions::methods;

/// Four floats in a register of `A`.
#[derive(Clone, Copy)]
pub(super) struct Neon<A: Arm>(A::V);

impl<A: Arm> Neon<A> {
    /// `2^n` for `-126 <= n <= 127`.
    #[inline(always)]
    fn power_of_two(n: A::V) -> A::V {
        A::ushl_4s(A::add_4s(n, A::dup_4s(127)), A::dup_4s(23))
    }

    #[inline(always)]
    fn constant(x: f32) -> A::V {
        A::dup_4s(x.to_bits())
    }
}

impl<A: Arm> Sealed for Neon<A> {}

// SAFETY (of the unsafe blocks): callers promise valid memory, and arrays are as long.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl<A: Arm> Lanes for Neon<A> {
    const N: usize = 4;
    const MANY: bool = true;

    methods! {
        #[inline(always)]
        fn splat(x: f32) -> Self { Neon(Self::constant(x)) }
        unsafe fn load(p: *const f32) -> Self { Neon(A::ld1(p.cast())) }
        unsafe fn load_f16(p: *const f16) -> Self { Neon(A::fcvtl(A::ldr_d(p.cast()))) }
        unsafe fn load_bf16(p: *const bf16) -> Self { Neon(A::shll_4s(A::ldr_d(p.cast()))) }
        unsafe fn store(self, p: *mut f32) { A::st1(self.0, p.cast()) }
        fn add(self, o: Self) -> Self { Neon(A::fadd(self.0, o.0)) }
        fn sub(self, o: Self) -> Self { Neon(A::fsub(self.0, o.0)) }
        fn mul(self, o: Self) -> Self { Neon(A::fmul(self.0, o.0)) }
        fn div(self, o: Self) -> Self { Neon(A::fdiv(self.0, o.0)) }
        fn min(self, o: Self) -> Self { Neon(A::fmin(self.0, o.0)) }
        fn max(self, o: Self) -> Self { Neon(A::fmax(self.0, o.0)) }
        fn fma(self, a: Self, b: Self) -> Self { Neon(A::fmla(b.0, self.0, a.0)) }
        fn exp(self) -> Self {
            let x = Self::splat(EXP_MIN).max(Self::splat(89.0).min(self));
            let n = A::frintn(x.mul(Self::splat(std::f32::consts::LOG2_E)).0);
            let y = exp_of_rest(x, Neon(n)).0;
            // Two factors: 2^128 alone does not exist.
            let n = A::fcvtns(n);
            let half = A::sshl_4s(n, A::dup_4s(u32::MAX));
            let y = A::fmul(y, Self::power_of_two(half));
            let y = A::fmul(y, Self::power_of_two(A::sub_4s(n, half)));
            let tiny = A::fcmgt(Self::constant(EXP_MIN), self.0);
            let huge = A::fcmgt(self.0, Self::constant(EXP_MAX));
            Neon(A::bic(A::bsl(huge, Self::constant(f32::INFINITY), y), tiny))
        }
        fn sum(self) -> f32 {
            let two = A::faddp(self.0, self.0);
            f32::from_bits(A::umov_s(A::faddp(two, two)))
        }
        fn place(i: usize) -> usize { i }
        fn largest(self) -> f32 {
            let mut all = [0.0; 4];
            self.store(all.as_mut_ptr());
            all.into_iter().fold(f32::NEG_INFINITY, f32::max)
        }
        fn bf16_low(self) -> Self { Neon(A::ushl_4s(self.0, A::dup_4s(16))) }
        fn bf16_high(self) -> Self { Neon(A::and(self.0, A::dup_4s(0xffff_0000))) }
        fn prefetch(p: *const u8) { A::prfm(p) }
        fn prefetch_l2(p: *const u8) { A::prfm_l2(p) }
    }
    #[inline(always)]
    fn sums(v: [Self; 8]) -> [f32; 8] {
        let mut out = [0.0; 8];
        let [a, b, c, d, e, f, g, h] = v;
        unsafe {
            Neon::<A>(A::faddp(A::faddp(a.0, b.0), A::faddp(c.0, d.0))).store(out.as_mut_ptr());
            let high = A::faddp(A::faddp(e.0, f.0), A::faddp(g.0, h.0));
            Neon::<A>(high).store(out.as_mut_ptr().add(4));
        }
        out
    }
    #[inline(always)]
    fn transpose(mut rows: [Self; MAX_LANES]) -> [Self; MAX_LANES] {
        let [a, b, c, d, ..] = rows;
        let (ac, bd) = (A::zip1_4s(a.0, c.0), A::zip1_4s(b.0, d.0));
        let (ac2, bd2) = (A::zip2_4s(a.0, c.0), A::zip2_4s(b.0, d.0));
        rows[0] = Neon(A::zip1_4s(ac, bd));
        rows[1] = Neon(A::zip2_4s(ac, bd));
        rows[2] = Neon(A::zip1_4s(ac2, bd2));
        rows[3] = Neon(A::zip2_4s(ac2, bd2));
        rows
    }
}
