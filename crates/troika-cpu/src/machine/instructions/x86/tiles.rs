//! The instructions on tiles in plain Rust.

use super::vector::{TileConfig, TileRegisters};

/// Rows of a tile register.
const ROWS: usize = 16;
/// Bytes of its rows.
const COLSB: usize = 64;

/// Tile registers in plain Rust. Machine faults become panics: no configuration, an unknown tile,
/// or mismatched shapes.
#[derive(Default)]
pub(crate) struct EmulatedTiles {
    config: Option<TileConfig>,
    tiles: Vec<[[u8; COLSB]; ROWS]>,
}

impl EmulatedTiles {
    /// Rows of a tile, and bytes per row.
    #[allow(clippy::expect_used, reason = "the processor would refuse it as well")]
    fn shape(&self, tile: u8) -> (usize, usize) {
        let config = self.config.as_ref().expect("ldtilecfg comes first");
        let (rows, colsb) = (config.rows[tile as usize], config.colsb[tile as usize]);
        assert!(rows > 0 && colsb > 0, "tile {tile} is not in the configuration");
        (rows.into(), colsb.into())
    }

    /// Rows and bytes per row of a product's sums `c`; bytes per row of `a`.
    fn product_shape(&self, c: u8, a: u8, b: u8) -> (usize, usize, usize) {
        let ((m, n), (a_rows, k)) = (self.shape(c), self.shape(a));
        assert!(c != a && a != b && c != b, "three different tiles");
        assert!(a_rows == m && self.shape(b) == (k / 4, n) && k % 4 == 0 && n % 4 == 0);
        (m, n, k)
    }
}

/// Turns denormals into zeros of the same sign.
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// `a * b + c`, rounded once.
fn fma(a: f32, b: f32, c: f32) -> f32 {
    flush(flush(a).mul_add(flush(b), flush(c)))
}

/// A pair of bf16 from four bytes, the lower one first.
fn pair(bytes: &[u8]) -> [f32; 2] {
    let number = |i: usize| f32::from_bits(u32::from_le_bytes([0, 0, bytes[i], bytes[i + 1]]));
    [number(0), number(2)]
}

// SAFETY (of the unsafe blocks): callers promise valid memory; no features are needed.
#[allow(clippy::undocumented_unsafe_blocks)]
impl TileRegisters for EmulatedTiles {
    #[inline(never)]
    unsafe fn ldtilecfg(&mut self, config: &TileConfig) {
        assert!(config.palette == 1 && config.reserved == [0; 14] && config.start_row == 0);
        for (rows, colsb) in config.rows.into_iter().zip(config.colsb) {
            assert!(usize::from(rows) <= ROWS && usize::from(colsb) <= COLSB);
            assert_eq!(rows == 0, colsb == 0, "a tile has rows and columns or neither");
        }
        assert!(config.rows[8..].iter().all(|r| *r == 0), "palette 1 has eight tiles");
        self.config = Some(*config);
        self.tiles = vec![[[0; COLSB]; ROWS]; 8];
    }
    #[inline(never)]
    unsafe fn tilerelease(&mut self) {
        *self = Self::default();
    }
    #[inline(never)]
    unsafe fn tilezero<const T: u8>(&mut self) {
        self.shape(T);
        self.tiles[T as usize] = [[0; COLSB]; ROWS];
    }
    #[inline(never)]
    unsafe fn tileloadd<const T: u8>(&mut self, p: *const u8, stride: usize) {
        let (rows, colsb) = self.shape(T);
        let mut tile = [[0; COLSB]; ROWS];
        for (r, row) in tile[..rows].iter_mut().enumerate() {
            unsafe { std::ptr::copy_nonoverlapping(p.add(r * stride), row.as_mut_ptr(), colsb) };
        }
        self.tiles[T as usize] = tile;
    }
    #[inline(never)]
    unsafe fn tilestored<const T: u8>(&mut self, p: *mut u8, stride: usize) {
        let (rows, colsb) = self.shape(T);
        for (r, row) in self.tiles[T as usize][..rows].iter().enumerate() {
            unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), p.add(r * stride), colsb) };
        }
    }
    #[inline(never)]
    unsafe fn tdpbf16ps<const C: u8, const A: u8, const B: u8>(&mut self) {
        let (m, n, k) = self.product_shape(C, A, B);
        let (a, b) = (self.tiles[A as usize], self.tiles[B as usize]);
        for (c, a) in self.tiles[C as usize][..m].iter_mut().zip(&a) {
            for (i, c) in c[..n].chunks_exact_mut(4).enumerate() {
                let mut sums = [0.0; 2];
                for (a, b) in a[..k].chunks_exact(4).zip(&b) {
                    let (a, b) = (pair(a), pair(&b[4 * i..]));
                    sums = [fma(a[0], b[0], sums[0]), fma(a[1], b[1], sums[1])];
                }
                let sum = f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
                let sum = flush(flush(sum) + flush(sums[0] + sums[1]));
                c.copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
}
