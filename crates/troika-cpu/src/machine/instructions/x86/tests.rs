//! Tests the plain instructions against the manual's definitions and, where possible, against the
//! machine's.

use super::emulated::V;
use super::{Emulated, EmulatedTiles, TileConfig, TileRegisters, Vector};

type E = Emulated<64>;

fn register<T: bytemuck::Pod>(lanes: T) -> V {
    bytemuck::cast(lanes)
}

fn lanes<T: bytemuck::Pod>(v: V) -> T {
    bytemuck::cast(v)
}

#[test]
fn pairs_of_products_are_limited_to_sixteen_bits() {
    let (low, high, full) = (register([-128i8; 64]), register([127i8; 64]), register([255u8; 64]));
    // SAFETY: plain Rust needs no features.
    unsafe {
        assert_eq!(lanes::<[i16; 32]>(E::vpmaddubsw(full, high)), [i16::MAX; 32]);
        assert_eq!(lanes::<[i16; 32]>(E::vpmaddubsw(full, low)), [i16::MIN; 32]);
        // The largest pairs in the kernels: |w| = 128, |x| = 127.
        let (w, x) = (register([128u8; 64]), E::vpsignb(high, low));
        assert_eq!(lanes::<[i16; 32]>(E::vpmaddubsw(w, x)), [-32512; 32]);
        let negative = E::vpcmpgtb(register([0u8; 64]), low);
        assert_eq!(negative, full);
        for (x, sum) in [(high, -32768), (register([-127i8; 64]), 32256)] {
            let pairs = E::vpmaddubsw(w, E::vpxor(x, negative));
            assert_eq!(lanes::<[i16; 32]>(pairs), [sum; 32]);
        }
        let most = register([i16::MIN; 32]);
        assert_eq!(lanes::<[i32; 16]>(E::vpmaddwd(most, most)), [i32::MIN; 16]);
        // Wrapping, not saturating.
        assert_eq!(lanes::<[i16; 32]>(E::vpaddw(most, most)), [0; 32]);
        let sum = register([i32::MAX; 16]);
        let four = E::vpdpbusd(sum, full, high);
        assert_eq!(lanes::<[i32; 16]>(four), [i32::MIN + 4 * 255 * 127 - 1; 16]);
    }
}

#[test]
fn signs_and_magnitudes_of_the_lowest_byte() {
    let low = register([-128i8; 64]);
    // SAFETY: plain Rust needs no features.
    unsafe {
        assert_eq!(E::vpabsb(low), register([128u8; 64]));
        assert_eq!(E::vpsignb(low, low), low);
        assert_eq!(E::vpsignb(low, register([0u8; 64])), register([0u8; 64]));
    }
}

/// Tiles with one fault.
#[derive(Default)]
struct Faulty<const FAULT: u8>(EmulatedTiles);

/// Products are omitted.
const NOTHING: u8 = 1;
/// Products are added twice.
const TWICE: u8 = 2;
/// The operands are swapped.
const SWAPPED: u8 = 3;
/// The stride between rows is ignored.
const STRIDE: u8 = 4;
/// The configuration loses a row of every tile.
const ROWS: u8 = 5;
/// A product starts from zero.
const ZEROED: u8 = 6;
/// A bit of loaded data is lost, which small whole numbers use.
const BIT: u8 = 7;

impl<const FAULT: u8> Faulty<FAULT> {
    /// Reloads a tile with a fault in its bytes.
    ///
    /// # Safety
    /// As for [`TileRegisters`].
    unsafe fn blur<const T: u8>(&mut self) {
        let mut bytes = [0u8; 1024];
        // SAFETY: room for the largest tile.
        unsafe {
            self.0.tilestored::<T>(bytes.as_mut_ptr(), 64);
            bytes.iter_mut().for_each(|b| *b &= !0x80);
            self.0.tileloadd::<T>(bytes.as_ptr(), 64);
        }
    }
}

// SAFETY (of the unsafe blocks): passed on to the emulation.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const FAULT: u8> TileRegisters for Faulty<FAULT> {
    unsafe fn ldtilecfg(&mut self, config: &TileConfig) {
        let mut config = *config;
        if FAULT == ROWS {
            config.rows.iter_mut().for_each(|rows| *rows = rows.saturating_sub(1));
        }
        unsafe { self.0.ldtilecfg(&config) }
    }
    unsafe fn tilerelease(&mut self) {
        unsafe { self.0.tilerelease() }
    }
    unsafe fn tilezero<const T: u8>(&mut self) {
        unsafe { self.0.tilezero::<T>() }
    }
    unsafe fn tileloadd<const T: u8>(&mut self, p: *const u8, stride: usize) {
        unsafe {
            // Half of a stride stays inside the source.
            self.0.tileloadd::<T>(p, if FAULT == STRIDE { stride / 2 } else { stride });
            if FAULT == BIT {
                self.blur::<T>();
            }
        }
    }
    unsafe fn tilestored<const T: u8>(&mut self, p: *mut u8, stride: usize) {
        unsafe { self.0.tilestored::<T>(p, stride) }
    }
    unsafe fn tdpbf16ps<const C: u8, const A: u8, const B: u8>(&mut self) {
        unsafe {
            match FAULT {
                NOTHING => return,
                TWICE => self.0.tdpbf16ps::<C, A, B>(),
                ZEROED => self.0.tilezero::<C>(),
                SWAPPED => return self.0.tdpbf16ps::<C, B, A>(),
                _ => {}
            }
            self.0.tdpbf16ps::<C, A, B>();
        }
    }
}

/// The result of the check. Tiles of mismatched shapes may panic.
fn check<T: TileRegisters>() -> bool {
    // SAFETY: plain Rust needs no features.
    std::panic::catch_unwind(|| unsafe { super::tiles_multiply_pairs::<T>() }).unwrap_or(false)
}

#[test]
fn the_check_of_tiles_finds_every_fault() {
    assert!(check::<EmulatedTiles>() && check::<Faulty<0>>());
    assert!(!check::<Faulty<NOTHING>>() && !check::<Faulty<TWICE>>());
    assert!(!check::<Faulty<SWAPPED>>() && !check::<Faulty<STRIDE>>());
    assert!(!check::<Faulty<ROWS>>() && !check::<Faulty<ZEROED>>());
    assert!(!check::<Faulty<BIT>>());
}

/// One product of `K` pairs on tiles of one element.
fn pairs<const K: usize>(sum: f32, a: [[f32; 2]; K], b: [[f32; 2]; K]) -> f32 {
    let bits = |v: [[f32; 2]; K]| v.map(|p| p.map(|x| (x.to_bits() >> 16) as u16));
    let (a, b, mut c) = (bits(a), bits(b), [sum]);
    let k = K as u8;
    let none = (0, 0);
    let config = TileConfig::new(&[(1, 4), none, none, none, (1, 4 * k as u16), none, (k, 4)]);
    let mut tiles = EmulatedTiles::default();
    // SAFETY: plain Rust needs no features; the arrays are as large as the tiles.
    unsafe {
        tiles.ldtilecfg(&config);
        tiles.tileloadd::<0>(c.as_ptr().cast(), 4);
        tiles.tileloadd::<4>(a.as_ptr().cast(), 4 * K);
        tiles.tileloadd::<6>(b.as_ptr().cast(), 4);
        tiles.tdpbf16ps::<0, 4, 6>();
        tiles.tilestored::<0>(c.as_mut_ptr().cast(), 4);
    }
    c[0]
}

#[test]
fn tiles_add_lower_and_upper_products_apart() {
    let one = [[1.0; 2]; 3];
    let big = 16_777_216.0;
    // The lower sum loses its 1 beside 2^24; the upper sum and the earlier value are exact.
    assert_eq!(pairs(0.5, [[big, 1.0], [1.0, 1.0], [-big, 1.0]], one), 3.5);
    assert_eq!(pairs(0.5, [[big, 1.0], [-big, 1.0], [1.0, 1.0]], one), 4.5);
    // The earlier value is added last, not first.
    assert_eq!(pairs(big, [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]], one), big + 2.0);
    // Ties to even.
    assert_eq!(pairs(big, [[1.0, 0.0]], [[1.0, 1.0]]), big);
    assert_eq!(pairs(big + 2.0, [[1.0, 0.0]], [[1.0, 1.0]]), big + 4.0);
}

#[test]
fn tiles_take_denormals_for_zeros() {
    let (denormal, small, large) = (1e-39, 1.5e-38, 2f32.powi(100));
    // As operands, as earlier value, as a product, and as a sum of two.
    assert_eq!(pairs(0.0, [[denormal, denormal]], [[large, large]]), 0.0);
    assert_eq!(pairs(denormal, [[0.0, 0.0]], [[1.0, 1.0]]), 0.0);
    assert_eq!(pairs(0.0, [[small, -small]], [[0.25, 0.25]]).to_bits(), 0);
    let lower = small.to_bits() & 0xffff_0000;
    let sum = pairs(0.0, [[f32::from_bits(lower), -f32::MIN_POSITIVE]], [[1.0, 1.0]]);
    assert_eq!(sum, 0.0);
    assert_eq!(pairs(0.0, [[small, 0.0]], [[1.0, 1.0]]), f32::from_bits(lower));
}

#[test]
#[should_panic(expected = "ldtilecfg comes first")]
fn tiles_without_a_configuration_fault() {
    // SAFETY: plain Rust needs no features.
    unsafe { EmulatedTiles::default().tilezero::<0>() }
}

/// Compares every instruction on equal random operands, native and plain.
#[cfg(target_arch = "x86_64")]
mod native {
    use std::arch::is_x86_feature_detected as has;

    use super::super::{Ymm, Zmm};
    use super::*;

    fn random(seed: &mut u64) -> V {
        V(std::array::from_fn(|_| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Extreme values are frequent.
            match *seed >> 60 {
                0 => 0x80,
                1 => 0x7f,
                2 => 0xff,
                3 => 0,
                _ => (*seed >> 33) as u8,
            }
        }))
    }

    /// # Safety
    /// The machine has the features of `N`.
    #[inline(always)]
    unsafe fn compare<N: Vector, const BYTES: usize>(vnni: bool) {
        type E<const BYTES: usize> = Emulated<BYTES>;
        let mut seed = 3;
        for _ in 0..300 {
            let [a, b, c] = std::array::from_fn(|_| random(&mut seed));
            // Small numbers, so that sums of products are exact in both.
            let f = |v: V| register(lanes::<[i32; 16]>(v).map(|x| (x >> 20) as f32 * 0.37));
            let (fa, fb, fc) = (f(a), f(b), f(c));
            // SAFETY: by the caller; registers are as long as the loads.
            unsafe {
                let load = |v: V| N::vmovdqu(v.0.as_ptr());
                let float = |v: V| N::vmovups(v.0.as_ptr().cast());
                let same = |name: &str, plain: V, native: N::I| {
                    let mut out = V([0; 64]);
                    N::vmovdqu_store(native, out.0.as_mut_ptr());
                    assert!(plain == out, "{name}: {plain:?} is not {out:?}");
                };
                let same_floats = |name: &str, plain: V, native: N::F| {
                    let mut out = V([0; 64]);
                    N::vmovups_store(native, out.0.as_mut_ptr().cast());
                    assert!(plain == out, "{name}: {plain:?} is not {out:?}");
                };
                macro_rules! check {
                    ($($op:ident)*) => {
                        $(same(stringify!($op), E::<BYTES>::$op(a, b), N::$op(load(a), load(b)));)*
                    };
                }
                check!(vpand vpor vpxor vpsubb vpmaddubsw vpmaddwd vpaddw vpaddd vpmaxsd vpshufb);
                for count in [0, 1, 4, 7, 15, 16, 40] {
                    let (a1, native) = (E::<BYTES>::vpsrlw(a, count), N::vpsrlw(load(a), count));
                    same("vpsrlw", a1, native);
                    let (a1, native) = (E::<BYTES>::vpsllw(a, count), N::vpsllw(load(a), count));
                    same("vpsllw", a1, native);
                    let (a1, native) = (E::<BYTES>::vpsrld(a, count), N::vpsrld(load(a), count));
                    same("vpsrld", a1, native);
                    let (a1, native) = (E::<BYTES>::vpslld(a, count), N::vpslld(load(a), count));
                    same("vpslld", a1, native);
                }
                same("vpabsb", E::<BYTES>::vpabsb(a), N::vpabsb(load(a)));
                if BYTES == 32 {
                    same("vpsignb", E::<BYTES>::vpsignb(a, b), N::vpsignb(load(a), load(b)));
                    same("vpcmpgtb", E::<BYTES>::vpcmpgtb(a, b), N::vpcmpgtb(load(a), load(b)));
                }
                if vnni {
                    let native = N::vpdpbusd(load(c), load(a), load(b));
                    same("vpdpbusd", E::<BYTES>::vpdpbusd(c, a, b), native);
                }
                same("pin", E::<BYTES>::vpor(a, a), N::pin(load(a)));
                same_floats("as_floats", E::<BYTES>::as_floats(a), N::as_floats(load(a)));
                if BYTES == 64 {
                    same_floats(
                        "vpermps",
                        E::<BYTES>::vpermps(a, fb),
                        N::vpermps(load(a), float(fb)),
                    );
                }
                let p = b.0.as_ptr().add(1);
                same("vbroadcasti128", E::<BYTES>::vbroadcasti128(p), N::vbroadcasti128(p));
                same("vpmovzxbd", E::<BYTES>::vpmovzxbd(p), N::vpmovzxbd(p));
                same("vpmovsxbd", E::<BYTES>::vpmovsxbd(p), N::vpmovsxbd(p));
                same("vpbroadcastb", E::<BYTES>::vpbroadcastb(a.0[0]), N::vpbroadcastb(a.0[0]));
                same("vpbroadcastw", E::<BYTES>::vpbroadcastw(777), N::vpbroadcastw(777));
                same("vpbroadcastd", E::<BYTES>::vpbroadcastd(1 << 31), N::vpbroadcastd(1 << 31));
                same_floats("vbroadcastss", E::<BYTES>::vbroadcastss(0.1), N::vbroadcastss(0.1));
                same_floats("vcvtdq2ps", E::<BYTES>::vcvtdq2ps(a), N::vcvtdq2ps(load(a)));
                let halves: [u16; 32] = std::array::from_fn(|i| 0x3c00 + 31 * i as u16);
                let p = halves.as_ptr().cast();
                same_floats("vcvtph2ps", E::<BYTES>::vcvtph2ps(p), N::vcvtph2ps(p));
                let (na, nb, nc) = (float(fa), float(fb), float(fc));
                same_floats("vmulps", E::<BYTES>::vmulps(fa, fb), N::vmulps(na, nb));
                same_floats("vaddps", E::<BYTES>::vaddps(fa, fb), N::vaddps(na, nb));
                let fused = E::<BYTES>::vfmaddps(fa, fb, fc);
                same_floats("vfmaddps", fused, N::vfmaddps(na, nb, nc));
                N::prefetcht0(p.wrapping_add(1 << 40));
            }
        }
    }

    /// # Safety
    /// The machine has the features.
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn ymm() {
        // SAFETY: by the caller.
        unsafe { compare::<Ymm, 32>(false) }
    }

    /// # Safety
    /// The machine has the features.
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn ymm_vnni() {
        // SAFETY: by the caller.
        unsafe { compare::<Ymm, 32>(true) }
    }

    /// # Safety
    /// The machine has the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn zmm() {
        // SAFETY: by the caller.
        unsafe { compare::<Zmm, 64>(true) }
    }

    #[test]
    fn plain_instructions_are_the_machines() {
        let avx2 = has!("avx2") && has!("fma") && has!("f16c");
        let avx512 = has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        let mut compared = Vec::new();
        // SAFETY: detected.
        unsafe {
            if avx2 {
                ymm();
                compared.push("avx2");
            }
            if avx2 && has!("avxvnni") {
                ymm_vnni();
                compared.push("avx_vnni");
            }
            if avx2 && avx512 && has!("avx512vnni") {
                zmm();
                compared.push("avx512_vnni");
            }
        }
        println!("compared with the machine's instructions: {compared:?}");
        assert_eq!(compared, reported(), "sets that the processor reports were not compared");
    }

    /// The instruction sets that the processor reports (Intel's manual, volume 2, CPUID).
    fn reported() -> Vec<&'static str> {
        use std::arch::x86_64::__cpuid_count;
        let (all, more) = (__cpuid_count(7, 0), __cpuid_count(7, 1));
        let sets = [
            ("avx2", all.ebx & 1 << 5 != 0),
            ("avx_vnni", more.eax & 1 << 4 != 0),
            ("avx512_vnni", all.ecx & 1 << 11 != 0),
        ];
        sets.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
    }
}
