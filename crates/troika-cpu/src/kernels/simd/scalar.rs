//! Lanes without intrinsics: arrays the compiler may or may not vectorise.

use half::{bf16, f16};

use super::Lanes;
use super::sealed::Sealed;
use crate::machine::instructions::methods;

/// Lanes of the portable type.
const N: usize = 8;

/// Eight floats.
#[derive(Clone, Copy)]
pub struct Portable([f32; N]);

impl Portable {
    #[inline(always)]
    fn make(f: impl Fn(usize) -> f32) -> Self {
        Portable(std::array::from_fn(f))
    }
}

impl Sealed for Portable {}

// SAFETY (of the unsafe blocks): callers promise `N` valid elements.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl Lanes for Portable {
    const N: usize = N;
    const MANY: bool = false;

    methods! {
        #[inline(always)]
        fn splat(x: f32) -> Self { Portable([x; N]) }
        unsafe fn load(p: *const f32) -> Self { Self::make(|i| p.add(i).read_unaligned()) }
        unsafe fn load_bf16(p: *const bf16) -> Self {
            Self::make(|i| p.add(i).read_unaligned().to_f32())
        }
        unsafe fn store(self, p: *mut f32) {
            for (i, x) in self.0.into_iter().enumerate() {
                p.add(i).write_unaligned(x)
            }
        }
        fn add(self, o: Self) -> Self { Self::make(|i| self.0[i] + o.0[i]) }
        fn sub(self, o: Self) -> Self { Self::make(|i| self.0[i] - o.0[i]) }
        fn mul(self, o: Self) -> Self { Self::make(|i| self.0[i] * o.0[i]) }
        fn div(self, o: Self) -> Self { Self::make(|i| self.0[i] / o.0[i]) }
        fn min(self, o: Self) -> Self { Self::make(|i| if self.0[i] < o.0[i] { self } else { o }.0[i]) }
        fn max(self, o: Self) -> Self { Self::make(|i| if self.0[i] > o.0[i] { self } else { o }.0[i]) }
        fn fma(self, a: Self, b: Self) -> Self { Self::make(|i| self.0[i] * a.0[i] + b.0[i]) }
        fn sum(self) -> f32 {
            let [a, b, c, d, e, f, g, h] = self.0;
            ((a + e) + (c + g)) + ((b + f) + (d + h))
        }
        fn largest(self) -> f32 { self.0.into_iter().fold(f32::NEG_INFINITY, f32::max) }
    }
    // Not inlined, as others of this type: a kernel would be several times as large.
    methods! {
        #[inline(never)]
        unsafe fn load_f16(p: *const f16) -> Self {
            Self::make(|i| p.add(i).read_unaligned().to_f32())
        }
        fn exp(self) -> Self { Self::make(|i| self.0[i].exp()) }
    }
    #[inline(never)]
    fn sums(v: [Self; 8]) -> [f32; 8] {
        v.map(Self::sum)
    }
    #[inline(always)]
    fn prefetch_l2(_: *const u8) {}
}
