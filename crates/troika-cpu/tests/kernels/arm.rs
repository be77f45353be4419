//! The plain instructions, by the manual's own examples and, on ARM, against the machine's.

use troika_cpu::machine::instructions::arm::{Arm, Emulated};

type E = Emulated;
type V = <E as Arm>::V;

fn register<T: bytemuck::Pod>(lanes: T) -> V {
    bytemuck::cast(lanes)
}

fn lanes<T: bytemuck::Pod>(v: V) -> T {
    bytemuck::cast(v)
}

#[test]
fn products_of_bytes_are_exact_at_their_ends() {
    let (low, high) = (register([-128i8; 16]), register([127i8; 16]));
    let full = register([255u8; 16]);
    let sum = register([1i32, -1, i32::MAX, i32::MIN]);
    // SAFETY: plain Rust needs no features.
    unsafe {
        assert_eq!(lanes::<[i32; 4]>(E::sdot(sum, low, low))[..2], [65537, 65535]);
        assert_eq!(lanes::<[i32; 4]>(E::usdot(sum, full, low))[..2], [-130_559, -130_561]);
        assert_eq!(lanes::<[i32; 4]>(E::usmmla(sum, full, high))[..2], [259_081, 259_079]);
        // Sums wrap around.
        assert_eq!(lanes::<[i32; 4]>(E::sdot(sum, high, high))[2], i32::MIN + 64515);
        assert_eq!(lanes::<[i32; 4]>(E::usmmla(sum, full, low))[3], i32::MAX - 261_119);
    }
    assert_eq!(lanes::<[i16; 8]>(E::smull_8h(low, low)), [16384; 8]);
    // Two products of -128 with itself do not fit 16 bits.
    let most = E::smull_8h(low, low);
    assert_eq!(lanes::<[i16; 8]>(E::addp_8h(most, most)), [i16::MIN; 8]);
    assert_eq!(lanes::<[i32; 4]>(E::sadalp_4s(sum, most))[0], 32769);
}

#[test]
fn matrices_are_multiplied_row_by_row() {
    let a: [u8; 16] = std::array::from_fn(|i| i as u8 + 1);
    let b: [i8; 16] = std::array::from_fn(|i| i as i8 - 7);
    let dot = |i: usize, j: usize| -> i32 {
        (0..8).map(|k| i32::from(a[8 * i + k]) * i32::from(b[8 * j + k])).sum()
    };
    // SAFETY: plain Rust needs no features.
    let got = unsafe { E::usmmla(register([0i32; 4]), register(a), register(b)) };
    assert_eq!(lanes::<[i32; 4]>(got), [dot(0, 0), dot(0, 1), dot(1, 0), dot(1, 1)]);
}

#[test]
fn shifts_go_both_ways() {
    let by = register([-1i32, 33, -32, 0x1_01]);
    let v = register([-4i32, -4, -4, 3]);
    assert_eq!(lanes::<[u32; 4]>(E::ushl_4s(v, by)), [0x7fff_fffe, 0, 0, 6]);
    assert_eq!(lanes::<[i32; 4]>(E::sshl_4s(v, by)), [-2, 0, -1, 6]);
    let bytes = E::ushl_16b(E::dup_16b(0x81), E::dup_16b(0u8.wrapping_sub(4)));
    assert_eq!(bytes, E::dup_16b(8));
}

/// Every instruction with the same random operands, natively and in plain Rust.
#[cfg(target_arch = "aarch64")]
mod native {
    use troika_cpu::machine::instructions::arm::Native;

    use super::*;

    /// Registers with interesting lanes among random ones.
    fn random(seed: &mut u64) -> V {
        let ends = [0u32, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 1, 0x3f80_0000, 0x807f_ffff];
        register(std::array::from_fn::<u32, 4, _>(|_| {
            *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let bits = (*seed >> 32) as u32;
            match bits % 16 {
                i @ 0..7 => ends[i as usize],
                // Floats that are neither huge nor tiny.
                7..12 => bits & 0x83ff_ffff | 0x3c00_0000,
                _ => bits,
            }
        }))
    }

    fn native(v: V) -> <Native as Arm>::V {
        // SAFETY: sixteen bytes.
        unsafe { Native::ld1(v.0.as_ptr()) }
    }

    fn plain(v: <Native as Arm>::V) -> V {
        let mut out = register([0u8; 16]);
        // SAFETY: sixteen bytes.
        unsafe { Native::st1(v, out.0.as_mut_ptr()) };
        out
    }

    /// Equal bits, or both NaN where lanes are floats.
    fn same(name: &str, want: V, got: V, floats: bool) {
        let (w, g): ([u32; 4], [u32; 4]) = (lanes(want), lanes(got));
        let nan = |a: u32| floats && f32::from_bits(a).is_nan();
        let equal = w.iter().zip(&g).all(|(w, g)| w == g || (nan(*w) && nan(*g)));
        assert!(equal, "{name}: {g:x?} is not {w:x?}");
    }

    macro_rules! check {
        ($seed:expr, $floats:literal: $($name:ident($($a:ident),*)),* $(,)?) => {$({
            $(let $a = random($seed);)*
            // SAFETY: the features of those that need some are detected.
            #[allow(unused_unsafe)]
            let (want, got) = unsafe { (E::$name($($a),*), Native::$name($(native($a)),*)) };
            same(stringify!($name), want, plain(got), $floats);
        })*};
    }

    #[test]
    fn plain_instructions_are_the_machines() {
        use std::arch::is_aarch64_feature_detected as has;
        let seed = &mut 1u64;
        for _ in 0..4000 {
            check!(seed, false:
                and(a, b), orr(a, b), eor(a, b), bic(a, b), bsl(a, b, c),
                ushl_16b(a, b), ushl_4s(a, b), sshl_4s(a, b),
                zip1_4s(a, b), zip2_4s(a, b), zip1_2d(a, b), zip2_2d(a, b),
                uzp1_4s(a, b), uzp2_4s(a, b),
                uxtl_8h(a), uxtl_4s(a), sxtl_8h(a), sxtl_4s(a), shll_4s(a),
                add_4s(a, b), umax_4s(a, b), sub_4s(a, b),
                smull_8h(a, b), smull2_8h(a, b), addp_8h(a, b), sadalp_4s(a, b),
                fcvtns(a), fcmgt(a, b),
            );
            check!(seed, true:
                fcvtl(a), scvtf(a), frintn(a), fadd(a, b), fsub(a, b), fmul(a, b), fdiv(a, b),
                fmin(a, b), fmax(a, b), fmla(a, b, c), faddp(a, b),
            );
            if has!("dotprod") {
                check!(seed, false: sdot(a, b, c));
            }
            if has!("i8mm") {
                check!(seed, false: usdot(a, b, c), usmmla(a, b, c));
            }
            let (table, few) = (random(seed), E::and(random(seed), E::dup_16b(31)));
            let got = Native::tbl(native(table), native(few));
            same("tbl", E::tbl(table, few), plain(got), false);
        }
    }

    #[test]
    fn halves_widen_exactly() {
        for bits in 0..=u32::from(u16::MAX) {
            let twice = bits << 16 | bits;
            let got = plain(Native::fcvtl(Native::dup_4s(twice)));
            same("fcvtl", E::fcvtl(E::dup_4s(twice)), got, true);
        }
    }

    #[test]
    fn loads_stores_and_constants() {
        let bytes: [u8; 16] = std::array::from_fn(|i| 0xf0 ^ i as u8);
        let p = bytes.as_ptr();
        // SAFETY: sixteen bytes.
        unsafe {
            same("ld1", E::ld1(p), plain(Native::ld1(p)), false);
            same("ldr_d", E::ldr_d(p), plain(Native::ldr_d(p)), false);
            same("ldr_s", E::ldr_s(p), plain(Native::ldr_s(p)), false);
        }
        Native::prfm(p.wrapping_add(1 << 40));
        same("dup_16b", E::dup_16b(7), plain(Native::dup_16b(7)), false);
        same("dup_4s", E::dup_4s(77_777), plain(Native::dup_4s(77_777)), false);
        same("dup_2d", E::dup_2d(1 << 40 | 7), plain(Native::dup_2d(1 << 40 | 7)), false);
        assert_eq!(Native::umov_s(native(register(bytes))), E::umov_s(register(bytes)));
    }
}
