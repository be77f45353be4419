//! The instructions on registers in plain Rust.

use half::f16;

use super::super::RegisterWork;
use super::vector::Vector;
use crate::machine::instructions::apart;

/// Plain Rust, on any machine: registers of `BYTES` bytes.
#[derive(Clone, Copy)]
pub(crate) struct Emulated<const BYTES: usize>;

/// A register of up to 512 bits as bytes; those beyond its width are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
pub(crate) struct V(pub [u8; 64]);

/// A register as other lanes.
fn lanes<T: bytemuck::Pod>(v: V) -> T {
    bytemuck::cast(v)
}

impl<const BYTES: usize> Emulated<BYTES> {
    /// A register from `N` lanes of `T`; those beyond its width are dropped.
    fn make<T: bytemuck::Pod, const N: usize>(f: impl Fn(usize) -> T) -> V
    where
        [T; N]: bytemuck::Pod,
    {
        let mut v: V = bytemuck::cast(std::array::from_fn::<T, N, _>(f));
        v.0[BYTES..].fill(0);
        v
    }

    /// A register from the `N` lanes of two.
    fn zip<T: bytemuck::Pod, const N: usize>(a: V, b: V, f: impl Fn(T, T) -> T) -> V
    where
        [T; N]: bytemuck::Pod,
    {
        let (a, b): ([T; N], [T; N]) = (lanes(a), lanes(b));
        Self::make::<T, N>(|i| f(a[i], b[i]))
    }
}

/// Bytes at `p`, then zeros.
///
/// # Safety
/// `len` bytes at `p`.
unsafe fn read(p: *const u8, len: usize) -> [u8; 64] {
    let mut bytes = [0; 64];
    // SAFETY: by the caller; at most 64.
    unsafe { std::ptr::copy_nonoverlapping(p, bytes.as_mut_ptr(), len.min(64)) };
    bytes
}

// Never inlined: the kernels are unrolled, and compiling them would take minutes.
// SAFETY (of the unsafe blocks): callers promise valid memory; no features are needed.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl<const BYTES: usize> Vector for Emulated<BYTES> {
    type I = V;
    type F = V;
    const BYTES: usize = BYTES;
    const NATIVE: bool = false;

    unsafe fn apart<W: RegisterWork>(work: W) {
        unsafe { apart(work) }
    }
    unsafe fn apart_vnni<W: RegisterWork>(work: W) {
        unsafe { apart(work) }
    }

    methods! {
        #[inline(never)]
        unsafe fn vmovdqu(p: *const u8) -> V { V(read(p, BYTES)) }
        unsafe fn vmovdqu_store(v: V, p: *mut u8) {
            std::ptr::copy_nonoverlapping(v.0.as_ptr(), p, BYTES)
        }
        unsafe fn vpbroadcastb(x: u8) -> V { Self::make::<u8, 64>(|_| x) }
        unsafe fn vpbroadcastw(x: u16) -> V { Self::make::<u16, 32>(|_| x) }
        unsafe fn vpbroadcastd(x: u32) -> V { Self::make::<u32, 16>(|_| x) }
        unsafe fn vbroadcasti128(p: *const u8) -> V {
            let bytes = read(p, 16);
            Self::make::<u8, 64>(|i| bytes[i % 16])
        }
        unsafe fn vpand(a: V, b: V) -> V { Self::zip::<u8, 64>(a, b, |a, b| a & b) }
        unsafe fn vpor(a: V, b: V) -> V { Self::zip::<u8, 64>(a, b, |a, b| a | b) }
        unsafe fn vpxor(a: V, b: V) -> V { Self::zip::<u8, 64>(a, b, |a, b| a ^ b) }
        unsafe fn vpcmpgtb(a: V, b: V) -> V {
            Self::zip::<u8, 64>(a, b, |a, b| if a as i8 > b as i8 { 0xff } else { 0 })
        }
        unsafe fn vpsrlw(v: V, count: u32) -> V {
            Self::zip::<i16, 32>(v, v, |v, _| (v as u16).checked_shr(count).unwrap_or(0) as i16)
        }
        unsafe fn vpsllw(v: V, count: u32) -> V {
            Self::zip::<i16, 32>(v, v, |v, _| v.checked_shl(count).unwrap_or(0))
        }
        unsafe fn vpsrld(v: V, count: u32) -> V {
            Self::zip::<u32, 16>(v, v, |v, _| v.checked_shr(count).unwrap_or(0))
        }
        unsafe fn vpslld(v: V, count: u32) -> V {
            Self::zip::<u32, 16>(v, v, |v, _| v.checked_shl(count).unwrap_or(0))
        }
        unsafe fn vpmaxsd(a: V, b: V) -> V { Self::zip::<i32, 16>(a, b, i32::max) }
        unsafe fn vpshufb(table: V, index: V) -> V {
            let byte = |i: usize, at: u8| if at > 127 { 0 } else { table.0[i / 16 * 16 + usize::from(at & 15)] };
            Self::make::<u8, 64>(|i| byte(i, index.0[i]))
        }
        unsafe fn vpermps(index: V, v: V) -> V {
            let (index, v): ([u32; 16], [f32; 16]) = (lanes(index), lanes(v));
            Self::make::<f32, 16>(|i| v[index[i] as usize % 16])
        }
        unsafe fn as_floats(v: V) -> V { Self::zip::<u8, 64>(v, v, |v, _| v) }
        unsafe fn vpsubb(a: V, b: V) -> V { Self::zip::<u8, 64>(a, b, u8::wrapping_sub) }
        unsafe fn vpabsb(v: V) -> V { Self::zip::<u8, 64>(v, v, |v, _| (v as i8).unsigned_abs()) }
        unsafe fn vpsignb(a: V, b: V) -> V {
            Self::zip::<u8, 64>(a, b, |a, b| match (b as i8).signum() {
                -1 => a.wrapping_neg(),
                0 => 0,
                _ => a,
            })
        }
        unsafe fn vpmaddubsw(a: V, b: V) -> V {
            Self::make::<i16, 32>(|i| {
                let product = |i: usize| i32::from(a.0[i]) * i32::from(b.0[i] as i8);
                let sum = product(2 * i) + product(2 * i + 1);
                sum.clamp(i16::MIN.into(), i16::MAX.into()) as i16
            })
        }
        unsafe fn vpmaddwd(a: V, b: V) -> V {
            let (a, b): ([i16; 32], [i16; 32]) = (lanes(a), lanes(b));
            Self::make::<i32, 16>(|i| {
                let product = |i: usize| i32::from(a[i]) * i32::from(b[i]);
                // Both pairs of -32768: 2^31, which wraps.
                product(2 * i).wrapping_add(product(2 * i + 1))
            })
        }
        unsafe fn vpaddw(a: V, b: V) -> V { Self::zip::<i16, 32>(a, b, i16::wrapping_add) }
        unsafe fn vpaddd(a: V, b: V) -> V { Self::zip::<i32, 16>(a, b, i32::wrapping_add) }
        unsafe fn vpdpbusd(sum: V, a: V, b: V) -> V {
            let sums: [i32; 16] = lanes(sum);
            Self::make::<i32, 16>(|i| {
                let product = |i: usize| i32::from(a.0[i]) * i32::from(b.0[i] as i8);
                let four: i32 = (4 * i..4 * i + 4).map(product).sum();
                sums[i].wrapping_add(four)
            })
        }
        unsafe fn vcvtdq2ps(v: V) -> V {
            let v: [i32; 16] = lanes(v);
            Self::make::<f32, 16>(|i| v[i] as f32)
        }
        unsafe fn vcvtph2ps(p: *const u8) -> V {
            let halves: [u16; 32] = bytemuck::cast(read(p, BYTES / 2));
            Self::make::<f32, 16>(|i| f16::from_bits(halves[i]).to_f32())
        }
        unsafe fn vpmovzxbd(p: *const u8) -> V {
            let bytes = read(p, BYTES / 4);
            Self::make::<i32, 16>(|i| i32::from(bytes[i]))
        }
        unsafe fn vpmovsxbd(p: *const u8) -> V {
            let bytes = read(p, BYTES / 4);
            Self::make::<i32, 16>(|i| i32::from(bytes[i] as i8))
        }
        unsafe fn vbroadcastss(x: f32) -> V { Self::make::<f32, 16>(|_| x) }
        unsafe fn vmovups(p: *const f32) -> V { V(read(p.cast(), BYTES)) }
        unsafe fn vmovups_store(v: V, p: *mut f32) {
            std::ptr::copy_nonoverlapping(v.0.as_ptr(), p.cast(), BYTES)
        }
        unsafe fn vmulps(a: V, b: V) -> V { Self::zip::<f32, 16>(a, b, |a, b| a * b) }
        unsafe fn vaddps(a: V, b: V) -> V { Self::zip::<f32, 16>(a, b, |a, b| a + b) }
        unsafe fn vfmaddps(a: V, b: V, c: V) -> V {
            let (a, b, c): ([f32; 16], [f32; 16], [f32; 16]) = (lanes(a), lanes(b), lanes(c));
            Self::make::<f32, 16>(|i| a[i].mul_add(b[i], c[i]))
        }
        unsafe fn prefetcht0(_: *const u8) {}
    }

    #[inline(always)]
    unsafe fn pin(v: V) -> V {
        v
    }
}
