//! Register-blocked dot products of rows, sums over lanes: for attention's scores.

use super::weights::{F32Row, RowLoad};
use crate::kernels::simd::Lanes;

/// `M x N` dot products over `len` columns: `M` rows of floats with `N` rows of weights.
///
/// # Safety
/// Needs the features of `V` and `len` elements behind every pointer.
#[inline(always)]
pub(crate) unsafe fn dots<V: Lanes, R: RowLoad, const M: usize, const N: usize>(
    xs: [*const f32; M],
    ws: [*const u8; N],
    len: usize,
) -> [[f32; N]; M] {
    let mut out = [[0.0; N]; M];
    let whole = len / V::N * V::N;
    let rest = len - whole;
    // SAFETY: every pointer has `len` elements.
    unsafe {
        let mut acc = [[V::splat(0.0); N]; M];
        let mut i = 0;
        while i < whole {
            // The shorter side stays in registers.
            if N <= M {
                let mut w = [V::splat(0.0); N];
                for n in 0..N {
                    w[n] = R::load::<V>(ws[n], i);
                }
                for m in 0..M {
                    let x = V::load(xs[m].add(i));
                    for n in 0..N {
                        acc[m][n] = x.fma(w[n], acc[m][n]);
                    }
                }
            } else {
                let mut x = [V::splat(0.0); M];
                for m in 0..M {
                    x[m] = V::load(xs[m].add(i));
                }
                for n in 0..N {
                    let w = R::load::<V>(ws[n], i);
                    for m in 0..M {
                        acc[m][n] = x[m].fma(w, acc[m][n]);
                    }
                }
            }
            i += V::N;
        }
        if rest > 0 {
            let mut x = [V::splat(0.0); M];
            for m in 0..M {
                x[m] = F32Row::tail::<V>(xs[m].cast(), whole, rest);
            }
            for n in 0..N {
                let w = R::tail::<V>(ws[n], whole, rest);
                for m in 0..M {
                    acc[m][n] = x[m].fma(w, acc[m][n]);
                }
            }
        }
        for m in 0..M {
            for n in 0..N {
                out[m][n] = acc[m][n].sum();
            }
        }
    }
    out
}
