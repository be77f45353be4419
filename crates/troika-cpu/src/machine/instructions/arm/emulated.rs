//! The instructions in plain Rust.

use half::f16;

use super::Arm;

/// Plain Rust, on any machine.
#[derive(Clone, Copy)]
pub struct Emulated;

/// A register as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(16))]
pub struct V(pub [u8; 16]);

/// A register as other lanes.
#[inline(always)]
fn lanes<T: bytemuck::Pod>(v: V) -> T {
    bytemuck::cast(v)
}

#[inline(always)]
fn make<T: bytemuck::NoUninit, const N: usize>(f: impl Fn(usize) -> T) -> V
where
    [T; N]: bytemuck::NoUninit,
{
    bytemuck::cast(std::array::from_fn::<T, N, _>(f))
}

/// A register from the `N` lanes of two.
#[inline(always)]
fn zip<T: bytemuck::Pod, const N: usize>(a: V, b: V, f: impl Fn(T, T) -> T) -> V
where
    [T; N]: bytemuck::Pod,
{
    let (a, b): ([T; N], [T; N]) = (lanes(a), lanes(b));
    make::<T, N>(|i| f(a[i], b[i]))
}

/// The first `N` of `M` lanes, each changed.
#[inline(always)]
fn map<T: bytemuck::Pod, U: bytemuck::Pod, const M: usize, const N: usize>(
    v: V,
    f: impl Fn(T) -> U,
) -> V
where
    [T; M]: bytemuck::Pod,
    [U; N]: bytemuck::Pod,
{
    let v: [T; M] = lanes(v);
    make::<U, N>(|i| f(v[i]))
}

/// Four of the eight words of two registers.
#[inline(always)]
fn pick(a: V, b: V, at: [usize; 4]) -> V {
    let words: [u32; 8] = bytemuck::cast([a, b]);
    bytemuck::cast(at.map(|i| words[i]))
}

/// Adds four products of bytes to each sum; the bytes of `a` are widened by `wide`.
#[inline(always)]
fn dot(sum: V, a: V, b: V, wide: impl Fn(u8) -> i32) -> V {
    let sum: [i32; 4] = lanes(sum);
    let product = |i: usize| wide(a.0[i]) * i32::from(b.0[i] as i8);
    make::<i32, 4>(|i| sum[i].wrapping_add((4 * i..4 * i + 4).map(product).sum()))
}

/// The shift of a lane: the lowest byte of its count, signed.
#[inline(always)]
fn count(by: u32) -> i32 {
    i32::from(by as i8)
}

/// The smaller value, with -0 below 0; NaN if one is.
#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else if a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

// SAFETY (of the unsafe blocks): callers promise valid memory; no features are needed.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl Arm for Emulated {
    const NATIVE: bool = false;
    type V = V;

    methods! {
        #[inline(never)]
        unsafe fn ld1(p: *const u8) -> V { V(p.cast::<[u8; 16]>().read_unaligned()) }
        unsafe fn ldr_d(p: *const u8) -> V { bytemuck::cast([p.cast::<u64>().read_unaligned(), 0]) }
        unsafe fn ldr_s(p: *const u8) -> V {
            bytemuck::cast([p.cast::<u32>().read_unaligned(), 0, 0, 0])
        }
        unsafe fn st1(v: V, p: *mut u8) { p.cast::<[u8; 16]>().write_unaligned(v.0) }
        fn prfm(_: *const u8) {}
        fn dup_16b(x: u8) -> V { V([x; 16]) }
        fn dup_4s(x: u32) -> V { bytemuck::cast([x; 4]) }
        fn dup_2d(x: u64) -> V { bytemuck::cast([x; 2]) }
        fn umov_s(v: V) -> u32 { lanes::<[u32; 4]>(v)[0] }
        fn and(a: V, b: V) -> V { zip::<u64, 2>(a, b, |a, b| a & b) }
        fn orr(a: V, b: V) -> V { zip::<u64, 2>(a, b, |a, b| a | b) }
        fn eor(a: V, b: V) -> V { zip::<u64, 2>(a, b, |a, b| a ^ b) }
        fn bic(a: V, b: V) -> V { zip::<u64, 2>(a, b, |a, b| a & !b) }
        fn bsl(mask: V, a: V, b: V) -> V { Self::orr(Self::and(a, mask), Self::bic(b, mask)) }
        fn ushl_16b(v: V, by: V) -> V {
            make::<u8, 16>(|i| match by.0[i] as i8 {
                n @ 0..8 => v.0[i] << n,
                n @ -7..0 => v.0[i] >> -n,
                _ => 0,
            })
        }
        fn ushl_4s(v: V, by: V) -> V {
            zip::<u32, 4>(v, by, |v, by| match count(by) {
                n @ 0..32 => v << n,
                n @ -31..0 => v >> -n,
                _ => 0,
            })
        }
        fn sshl_4s(v: V, by: V) -> V {
            zip::<u32, 4>(v, by, |v, by| match count(by) {
                n @ 0..32 => v << n,
                32.. => 0,
                n => (v as i32 >> (-n).min(31)) as u32,
            })
        }
        fn zip1_4s(a: V, b: V) -> V { pick(a, b, [0, 4, 1, 5]) }
        fn zip2_4s(a: V, b: V) -> V { pick(a, b, [2, 6, 3, 7]) }
        fn zip1_2d(a: V, b: V) -> V { pick(a, b, [0, 1, 4, 5]) }
        fn zip2_2d(a: V, b: V) -> V { pick(a, b, [2, 3, 6, 7]) }
        fn uzp1_4s(a: V, b: V) -> V { pick(a, b, [0, 2, 4, 6]) }
        fn uzp2_4s(a: V, b: V) -> V { pick(a, b, [1, 3, 5, 7]) }
        fn uxtl_8h(v: V) -> V { map::<u8, u16, 16, 8>(v, u16::from) }
        fn uxtl_4s(v: V) -> V { map::<u16, u32, 8, 4>(v, u32::from) }
        fn sxtl_8h(v: V) -> V { map::<i8, i16, 16, 8>(v, i16::from) }
        fn sxtl_4s(v: V) -> V { map::<i16, i32, 8, 4>(v, i32::from) }
        fn shll_4s(v: V) -> V { map::<u16, u32, 8, 4>(v, |x| u32::from(x) << 16) }
        fn add_4s(a: V, b: V) -> V { zip::<u32, 4>(a, b, u32::wrapping_add) }
        fn umax_4s(a: V, b: V) -> V { zip::<u32, 4>(a, b, u32::max) }
        fn sub_4s(a: V, b: V) -> V { zip::<u32, 4>(a, b, u32::wrapping_sub) }
        fn smull_8h(a: V, b: V) -> V {
            make::<i16, 8>(|i| i16::from(a.0[i] as i8) * i16::from(b.0[i] as i8))
        }
        fn smull2_8h(a: V, b: V) -> V {
            make::<i16, 8>(|i| i16::from(a.0[8 + i] as i8) * i16::from(b.0[8 + i] as i8))
        }
        fn addp_8h(a: V, b: V) -> V {
            let (a, b): ([i16; 8], [i16; 8]) = (lanes(a), lanes(b));
            let sum = |v: [i16; 8], i: usize| v[2 * i].wrapping_add(v[2 * i + 1]);
            make::<i16, 8>(|i| if i < 4 { sum(a, i) } else { sum(b, i - 4) })
        }
        fn sadalp_4s(sum: V, v: V) -> V {
            let (sum, v): ([i32; 4], [i16; 8]) = (lanes(sum), lanes(v));
            make::<i32, 4>(|i| sum[i].wrapping_add(i32::from(v[2 * i]) + i32::from(v[2 * i + 1])))
        }
        unsafe fn sdot(sum: V, a: V, b: V) -> V { dot(sum, a, b, |a| (a as i8).into()) }
        unsafe fn usdot(sum: V, a: V, b: V) -> V { dot(sum, a, b, i32::from) }
        unsafe fn usmmla(sum: V, a: V, b: V) -> V {
            let sum: [i32; 4] = lanes(sum);
            let product = |i: usize, j: usize| i32::from(a.0[i]) * i32::from(b.0[j] as i8);
            let dot = |i: usize, j: usize| (0..8).map(|k| product(8 * i + k, 8 * j + k)).sum();
            make::<i32, 4>(|i| sum[i].wrapping_add(dot(i / 2, i % 2)))
        }
        fn fcvtl(v: V) -> V { map::<f16, f32, 8, 4>(v, f16::to_f32) }
        fn scvtf(v: V) -> V { map::<i32, f32, 4, 4>(v, |x| x as f32) }
        fn fcvtns(v: V) -> V { map::<f32, i32, 4, 4>(v, |x| x.round_ties_even() as i32) }
        fn frintn(v: V) -> V { map::<f32, f32, 4, 4>(v, f32::round_ties_even) }
        fn fadd(a: V, b: V) -> V { zip::<f32, 4>(a, b, |a, b| a + b) }
        fn fsub(a: V, b: V) -> V { zip::<f32, 4>(a, b, |a, b| a - b) }
        fn fmul(a: V, b: V) -> V { zip::<f32, 4>(a, b, |a, b| a * b) }
        fn fdiv(a: V, b: V) -> V { zip::<f32, 4>(a, b, |a, b| a / b) }
        fn fmin(a: V, b: V) -> V { zip::<f32, 4>(a, b, smaller) }
        fn fmax(a: V, b: V) -> V { zip::<f32, 4>(a, b, |a, b| -smaller(-a, -b)) }
        fn fmla(sum: V, a: V, b: V) -> V {
            let sum: [f32; 4] = lanes(sum);
            let (a, b): ([f32; 4], [f32; 4]) = (lanes(a), lanes(b));
            make::<f32, 4>(|i| a[i].mul_add(b[i], sum[i]))
        }
        fn faddp(a: V, b: V) -> V {
            let (a, b): ([f32; 4], [f32; 4]) = (lanes(a), lanes(b));
            bytemuck::cast([a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3]])
        }
        fn fcmgt(a: V, b: V) -> V {
            let (a, b): ([f32; 4], [f32; 4]) = (lanes(a), lanes(b));
            make::<u32, 4>(|i| if a[i] > b[i] { u32::MAX } else { 0 })
        }
        fn tbl(table: V, index: V) -> V {
            make::<u8, 16>(|i| table.0.get(usize::from(index.0[i])).map_or(0, |b| *b))
        }
        fn prfm_l2(_: *const u8) {}
    }
}
