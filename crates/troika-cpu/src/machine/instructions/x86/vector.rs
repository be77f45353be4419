//! The instructions by name, on registers of any width and on tiles.

use super::super::RegisterWork;

/// Instructions on registers of one width, named as in Intel's manual (volume 2) without operand
/// suffixes. Lane 0 is the lowest.
///
/// # Safety
/// All need the CPU features of the implementing type, and `vpdpbusd` also needs VNNI; loads and
/// stores need valid memory for their size and no alignment.
#[allow(missing_docs, clippy::missing_safety_doc)]
pub(crate) trait Vector: Copy {
    /// Integers of any width.
    type I: Copy;
    /// f32.
    type F: Copy;
    /// Bytes of a register.
    const BYTES: usize;
    /// Whether these are the machine's instructions. Kernels on others are not unrolled, since
    /// compiling that would take minutes.
    const NATIVE: bool = true;

    /// Runs work in a separate function with all features except VNNI.
    unsafe fn apart<W: RegisterWork>(work: W);
    /// The same with VNNI.
    unsafe fn apart_vnni<W: RegisterWork>(work: W);

    unsafe fn vmovdqu(p: *const u8) -> Self::I;
    unsafe fn vmovdqu_store(v: Self::I, p: *mut u8);
    unsafe fn vpbroadcastb(x: u8) -> Self::I;
    unsafe fn vpbroadcastw(x: u16) -> Self::I;
    unsafe fn vpbroadcastd(x: u32) -> Self::I;
    /// 16 bytes, again and again.
    unsafe fn vbroadcasti128(p: *const u8) -> Self::I;
    unsafe fn vpand(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn vpor(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn vpxor(a: Self::I, b: Self::I) -> Self::I;
    /// All bits set in bytes where `a > b`, signed. AVX2 only.
    unsafe fn vpcmpgtb(a: Self::I, b: Self::I) -> Self::I;
    /// Shifts words right, with zeros from the left.
    unsafe fn vpsrlw(v: Self::I, count: u32) -> Self::I;
    /// Shifts words left.
    unsafe fn vpsllw(v: Self::I, count: u32) -> Self::I;
    /// Shifts i32 right, with zeros from the left.
    unsafe fn vpsrld(v: Self::I, count: u32) -> Self::I;
    /// Shifts i32 left.
    unsafe fn vpslld(v: Self::I, count: u32) -> Self::I;
    /// The larger i32.
    unsafe fn vpmaxsd(a: Self::I, b: Self::I) -> Self::I;
    /// Bytes of each 16 of `table` at the indices in the 16 at the same place; 0 at negative ones,
    /// and only four bits of the others count.
    unsafe fn vpshufb(table: Self::I, index: Self::I) -> Self::I;
    /// `a - b` of bytes, wrapping.
    unsafe fn vpsubb(a: Self::I, b: Self::I) -> Self::I;
    /// Absolute values of bytes, unsigned: -128 becomes 128.
    unsafe fn vpabsb(v: Self::I) -> Self::I;
    /// Bytes of `a`, negated where the byte of `b` is negative, and 0 where it is 0. -128 stays
    /// -128. AVX2 only.
    unsafe fn vpsignb(a: Self::I, b: Self::I) -> Self::I;
    /// Sums of two products of unsigned bytes of `a` with signed ones of `b`, each sum **limited**
    /// to the range of i16.
    unsafe fn vpmaddubsw(a: Self::I, b: Self::I) -> Self::I;
    /// Sums of two products of i16, as i32.
    unsafe fn vpmaddwd(a: Self::I, b: Self::I) -> Self::I;
    /// Sums of words, wrapping.
    unsafe fn vpaddw(a: Self::I, b: Self::I) -> Self::I;
    /// Sums of i32, wrapping.
    unsafe fn vpaddd(a: Self::I, b: Self::I) -> Self::I;
    /// Adds four products of unsigned bytes of `a` with signed ones of `b` to an i32, wrapping.
    unsafe fn vpdpbusd(sum: Self::I, a: Self::I, b: Self::I) -> Self::I;

    /// The same bits. Not an instruction.
    unsafe fn as_floats(v: Self::I) -> Self::F;
    /// Floats of `v` at the lowest four bits of the i32 of `index`. AVX-512 only.
    unsafe fn vpermps(index: Self::I, v: Self::F) -> Self::F;
    /// From i32, to the nearest, ties to even.
    unsafe fn vcvtdq2ps(v: Self::I) -> Self::F;
    /// From f16.
    unsafe fn vcvtph2ps(p: *const u8) -> Self::F;
    /// Bytes as i32.
    unsafe fn vpmovzxbd(p: *const u8) -> Self::I;
    /// Signed bytes as i32.
    unsafe fn vpmovsxbd(p: *const u8) -> Self::I;
    unsafe fn vbroadcastss(x: f32) -> Self::F;
    unsafe fn vmovups(p: *const f32) -> Self::F;
    unsafe fn vmovups_store(v: Self::F, p: *mut f32);
    unsafe fn vmulps(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn vaddps(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn vfmaddps(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Prefetches a cache line; any address is allowed.
    unsafe fn prefetcht0(p: *const u8);
    /// Returns `v` unchanged. Not an instruction: it orders `v` before values pinned later.
    unsafe fn pin(v: Self::I) -> Self::I;
}

/// The memory operand of `ldtilecfg`, palette 1: eight tiles of up to 16 rows of up to 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
pub(crate) struct TileConfig {
    pub palette: u8,
    pub start_row: u8,
    pub reserved: [u8; 14],
    /// Bytes of a tile's rows.
    pub colsb: [u16; 16],
    /// Rows of a tile.
    pub rows: [u8; 16],
}

const _: () = assert!(
    size_of::<TileConfig>() == 64
        && std::mem::offset_of!(TileConfig, colsb) == 16
        && std::mem::offset_of!(TileConfig, rows) == 48
);

impl TileConfig {
    /// Tiles by rows and bytes per row, from tile 0 on.
    pub const fn new(tiles: &[(u8, u16)]) -> TileConfig {
        let (mut colsb, mut rows) = ([0; 16], [0; 16]);
        let mut i = 0;
        while i < tiles.len() {
            assert!(tiles[i].0 <= 16 && tiles[i].1 <= 64 && i < 8, "tiles of palette 1");
            (rows[i], colsb[i]) = tiles[i];
            i += 1;
        }
        TileConfig { palette: 1, start_row: 0, reserved: [0; 14], colsb, rows }
    }
}

/// Instructions on tiles. A value stands for the tile registers of the current thread.
///
/// # Safety
/// All need AMX-TILE (and AMX-BF16 for products), permission by the system, and, but
/// for `ldtilecfg`, a configuration that has the tiles; loads and stores need valid memory:
/// rows of the tile, `stride` bytes apart.
#[allow(missing_docs, clippy::missing_safety_doc)]
pub(crate) trait TileRegisters: Default {
    /// Loads a configuration and zeroes all tiles.
    unsafe fn ldtilecfg(&mut self, config: &TileConfig);
    /// Releases the tiles: there are none until the next `ldtilecfg`.
    unsafe fn tilerelease(&mut self);
    unsafe fn tilezero<const T: u8>(&mut self);
    unsafe fn tileloadd<const T: u8>(&mut self, p: *const u8, stride: usize);
    unsafe fn tilestored<const T: u8>(&mut self, p: *mut u8, stride: usize);
    /// `C[m][n] +=` the products of pairs of bf16 of `A[m]` and of `B` per row `k` of `B`. The
    /// lower products `A[m][2k] * B[k][2n]` are added up from zero in the order of `k`, the upper
    /// ones `A[m][2k + 1] * B[k][2n + 1]` likewise; the two sums are added, then their sum to `C`.
    /// Every step is f32, fused products, rounded to nearest even; denormals count as zeros, as
    /// operands and as results (SDM, volume 2, TDPBF16PS).
    unsafe fn tdpbf16ps<const C: u8, const A: u8, const B: u8>(&mut self);
}

/// The tiles of a thread, given back at the end, also when a kernel panics.
pub(crate) struct Held<T: TileRegisters>(T);

impl<T: TileRegisters> Held<T> {
    /// The tiles of this thread.
    ///
    /// # Safety
    /// As for [`TileRegisters`].
    pub unsafe fn new() -> Held<T> {
        Held(T::default())
    }

    /// The tiles.
    pub fn tiles(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: TileRegisters> Drop for Held<T> {
    fn drop(&mut self) {
        // SAFETY: promised when this was made.
        unsafe { self.0.tilerelease() }
    }
}

/// Multiplies pairs of bf16 once and checks the result: whole numbers, whose sums are exact in any
/// order.
///
/// # Safety
/// As for [`TileRegisters`].
#[cfg(any(target_arch = "x86_64", test))]
pub(crate) unsafe fn tiles_multiply_pairs<T: TileRegisters>() -> bool {
    const M: usize = 5;
    let config =
        TileConfig::new(&[(M as u8, 64), (0, 0), (0, 0), (0, 0), (M as u8, 32), (0, 0), (8, 64)]);
    let value = |i: usize| (i * 89 % 31) as f32 - 15.0;
    let bits = |i: usize| (value(i).to_bits() >> 16) as u16;
    let a: [[u16; 16]; M] = std::array::from_fn(|m| std::array::from_fn(|k| bits(16 * m + k)));
    let b: [[u16; 32]; 8] = std::array::from_fn(|k| std::array::from_fn(|n| bits(32 * k + n + 7)));
    let mut c = [[3f32; 16]; M];
    // SAFETY: features by the caller; the arrays are as large as the tiles.
    unsafe {
        let mut held = Held::<T>::new();
        let tiles = held.tiles();
        tiles.ldtilecfg(&config);
        tiles.tileloadd::<0>(c.as_ptr().cast(), 64);
        tiles.tileloadd::<4>(a.as_ptr().cast(), 32);
        tiles.tileloadd::<6>(b.as_ptr().cast(), 64);
        tiles.tdpbf16ps::<0, 4, 6>();
        tiles.tilestored::<0>(c.as_mut_ptr().cast(), 64);
    }
    let product =
        |m: usize, n: usize, k: usize| value(16 * m + k) * value(32 * (k / 2) + 2 * n + k % 2 + 7);
    let want = |m: usize, n: usize| 3.0 + (0..16).map(|k| product(m, n, k)).sum::<f32>();
    c.iter().enumerate().all(|(m, c)| c.iter().enumerate().all(|(n, c)| *c == want(m, n)))
}
