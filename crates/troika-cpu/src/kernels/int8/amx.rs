//! AMX: products of bytes on tiles, their sums scaled on registers of AVX-512.
//!
//! A quad of sixteen weight rows is a row of a tile as `tdpbssd` wants its second operand, so a
//! group of 32 columns is a tile of eight rows (four for types with a scale per sixteen), loaded
//! as it lies in scratch; the activation rows are the first operand. Both are signed: weights are
//! widened less what stands for zero, and no correction is needed. The sums of a group are stored
//! to memory and scaled and added there, by the same operations in the same order as elsewhere,
//! so results are those of the other instruction sets to the bit.
//!
//! # What to expect
//! A model of cycles on Sapphire Rapids, not a measurement: **this path has been run in plain Rust
//! only, on no machine with AMX.** Per 12 activation rows, 16 weight rows and a group (12,288
//! operations, 6 cycles of the 2,048 a cycle of full tiles):
//! - tiles: 12 cycles, one per activation row; a group fills half of a tile's depth;
//! - loads, two a cycle: 12 rows of sums, 6 scales and 6 rows of activations (both shared by two
//!   panels), 8 rows of weights: 16 cycles;
//! - arithmetic, two a cycle: 36 conversions, products and fused additions: 18 cycles, the bound.
//!
//! So a third of the peak of tiles is the most to be had while each group of 32 is scaled for
//! itself, some 2.7 times what `vpdpbusd` gives. Groups scaled less often (one scale per row and
//! output channel) would let sums stay in the tiles. Whoever has the machine can measure:
//! `cargo bench -p troika-cpu -- linear_int8`.

use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of};

use super::Int8Part;
use super::block::zero_point_correction;
use super::format::Format;
use super::lanes::x86::{Dpbusd, X86};
use super::lanes::{RowLanes, trip_count};
use super::layout::{GROUP, QUAD, ROWS};
use super::quantize::{GROUP_FLOATS, QuantizedGroup};
use super::tile::{self, DIRECT, PanelBlock, get, put, rows, widen_all};
use super::widen::{CHUNK, even};
use crate::machine::instructions::RegisterWork;
use crate::machine::instructions::x86::{Held, TileConfig, TileRegisters, Vector};
#[cfg(target_arch = "x86_64")]
use crate::machine::instructions::x86::{Tmm, Zmm};

/// Activation rows of a step: 24 registers hold their sums with two panels.
const STEP: usize = 12;

/// Sixteen weight rows on a register.
type Sixteen<V> = X86<V, Dpbusd, 1>;

/// Runs a part with the features switched on.
///
/// # Safety
/// As for [`tile::run`]; the machine has AVX-512 F, BW, DQ, VL and VNNI, AMX-TILE and AMX-INT8,
/// and lets this process use tiles.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn run_native<F: Format>(part: Int8Part<'_>) {
    // SAFETY: passed on.
    unsafe { run::<Zmm, Tmm, F>(part) }
}

/// Computes a part of a product with weights of a format; few rows do without tiles.
///
/// # Safety
/// Needs the features of `V` and `T`; nobody else writes the part's results.
#[inline(always)]
pub(super) unsafe fn run<V: Vector, T: TileRegisters, F: Format>(part: Int8Part<'_>) {
    // SAFETY: passed on.
    unsafe {
        if part.m.len() <= DIRECT {
            tile::run::<Sixteen<V>, F>(part);
        } else {
            on_tiles::<V, T, F>(part);
        }
    }
}

/// # Safety
/// As for [`run`].
#[inline(always)]
unsafe fn on_tiles<V: Vector, T: TileRegisters, F: Format>(mut part: Int8Part<'_>) {
    let panels = part.product.weight.panels(&part.n);
    let mut at = panels.start;
    // SAFETY: features by the caller; the panels exist.
    unsafe {
        let mut held = Held::<T>::new();
        while at < panels.end {
            if at + 2 <= panels.end {
                chunks::<V, T, F, 2>(&mut part, held.tiles(), at);
            } else {
                chunks::<V, T, F, 1>(&mut part, held.tiles(), at);
            }
            at += 2;
        }
    }
}

/// # Safety
/// As for [`run`]; the panels exist.
#[inline(always)]
unsafe fn chunks<V: Vector, T: TileRegisters, F: Format, const NR: usize>(
    part: &mut Int8Part<'_>,
    tiles: &mut T,
    index: usize,
) {
    let groups = part.product.weight.layout.cols / GROUP;
    let even = even(groups, CHUNK);
    let mut g = 0;
    while g < groups {
        let len = even.min(groups - g);
        // SAFETY: the panels have these groups.
        unsafe {
            let panels = widen_all::<Sixteen<V>, F, NR, true>(part, index, g..g + len);
            let block = PanelBlock { panels, index, g, len, last: g + len == groups };
            let (part, format) = (&*part, PhantomData);
            V::apart_vnni(AllRows::<V, T, F::Wide, NR> { block: &block, part, tiles, format });
        }
        g += len;
    }
}

/// A block with all activation rows of a part. It knows only the widened form: formats that share
/// one share this code.
struct AllRows<'a, 'b, V, T, W, const NR: usize> {
    block: &'a PanelBlock<NR>,
    part: &'a Int8Part<'b>,
    tiles: &'a mut T,
    format: PhantomData<(V, W)>,
}

impl<V: Vector, T: TileRegisters, W: Format, const NR: usize> RegisterWork
    for AllRows<'_, '_, V, T, W, NR>
{
    #[inline(always)]
    unsafe fn run(self) {
        let AllRows { block, part, tiles, .. } = self;
        // SAFETY: by the caller.
        unsafe {
            let m = block.steps::<V, T, W, STEP>(part, tiles, part.m.start);
            let m = block.steps::<V, T, W, 4>(part, tiles, m);
            block.steps::<V, T, W, 1>(part, tiles, m);
        }
    }
}

/// The sums of `M` activation rows with `NR` panels, as tiles are stored.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums<const M: usize, const NR: usize>([[[i32; ROWS]; M]; NR]);

impl<const NR: usize> PanelBlock<NR> {
    /// Activation rows from `m` on, `M` at a time while there are as many; returns the next.
    ///
    /// # Safety
    /// As for [`run`].
    #[inline(always)]
    unsafe fn steps<V: Vector, T: TileRegisters, W: Format, const M: usize>(
        &self,
        part: &Int8Part<'_>,
        tiles: &mut T,
        mut m: usize,
    ) -> usize {
        if m + M > part.m.end {
            return m;
        }
        // Sums with either panel, activations, weights of either panel.
        let config = const {
            let quads = (8 / W::SUBS) as u8;
            let (sums, a, b) = ((M as u8, 64), (M as u8, quads as u16 * 4), (quads, 64));
            TileConfig::new(&[sums, sums, a, b, b])
        };
        // SAFETY: by the caller; rows from `m` on are in range.
        unsafe {
            tiles.ldtilecfg(&config);
            while m + M <= part.m.end {
                self.step::<V, T, W, M>(part, tiles, m);
                m += M;
            }
        }
        m
    }

    /// # Safety
    /// As for [`run`]; the configuration is that of `M` rows.
    #[inline(always)]
    unsafe fn step<V: Vector, T: TileRegisters, W: Format, const M: usize>(
        &self,
        part: &Int8Part<'_>,
        tiles: &mut T,
        m: usize,
    ) {
        let mut copy = MaybeUninit::<Copied<M>>::uninit();
        let mut ints = [MaybeUninit::<Sums<M, NR>>::uninit(); 2];
        // SAFETY: by the caller.
        unsafe {
            let mut xs = rows::<M>(part, m, self.g);
            let mut stride = part.product.x.stride * 4;
            if part.product.x.index.is_some() {
                // Rows that lie anywhere are brought together.
                for (i, x) in xs.iter_mut().enumerate() {
                    let to = copy.as_mut_ptr().cast::<u8>().add(i * COPY);
                    std::ptr::copy_nonoverlapping(*x, to, self.len * GROUP_BYTES);
                    *x = to;
                }
                stride = COPY;
            }
            let mut sums = [[Sixteen::<V>::splat(0.0); NR]; M];
            if self.g > 0 {
                get::<Sixteen<V>, M, NR>(part, m, self.index, &mut sums);
            }
            // The tiles are one scale ahead, so that stored sums are there when they are read.
            let scales = self.len * W::SUBS;
            self.multiply::<T, W, M>(tiles, xs[0], stride, 0, ints[0].as_mut_ptr());
            for i in 0..scales {
                if i + 1 < scales {
                    let next = ints[(i + 1) % 2].as_mut_ptr();
                    self.multiply::<T, W, M>(tiles, xs[0], stride, i + 1, next);
                }
                self.scale::<V, W, M>(xs, i, ints[i % 2].as_ptr(), &mut sums);
            }
            put::<Sixteen<V>, M, NR>(part, m, self.index, sums, self.last);
        }
    }

    /// The sums of a group or half of one.
    ///
    /// # Safety
    /// As for [`PanelBlock::step`]; `to` is valid for writes.
    #[inline(always)]
    unsafe fn multiply<T: TileRegisters, W: Format, const M: usize>(
        &self,
        tiles: &mut T,
        x: *const u8,
        stride: usize,
        i: usize,
        to: *mut Sums<M, NR>,
    ) {
        let quads = 8 / W::SUBS;
        // SAFETY: by the caller; widened panels hold eight quads per group.
        unsafe {
            let x = x.add(i / W::SUBS * GROUP_BYTES + i % W::SUBS * quads * 4);
            tiles.tileloadd::<2>(x, stride);
            tiles.tilezero::<0>();
            tiles.tileloadd::<3>(self.panels[0].quants.add(i * quads * QUAD), QUAD);
            tiles.tdpbssd::<0, 2, 3>();
            tiles.tilestored::<0>(to.cast(), 4 * ROWS);
            if NR == 2 {
                tiles.tilezero::<1>();
                tiles.tileloadd::<4>(self.panels[NR - 1].quants.add(i * quads * QUAD), QUAD);
                tiles.tdpbssd::<1, 2, 4>();
                tiles.tilestored::<1>(to.cast::<u8>().add(M * 4 * ROWS), 4 * ROWS);
            }
        }
    }

    /// Scales the sums of a group or half of one and adds them.
    ///
    /// # Safety
    /// As for [`PanelBlock::step`]; `ints` were stored.
    #[inline(always)]
    unsafe fn scale<V: Vector, W: Format, const M: usize>(
        &self,
        xs: [*const u8; M],
        i: usize,
        ints: *const Sums<M, NR>,
        sums: &mut [[<Sixteen<V> as RowLanes>::Floats; NR]; M],
    ) {
        let (g, sub) = (i / W::SUBS, i % W::SUBS);
        // SAFETY: by the caller.
        unsafe {
            let mut scales = [W::scale::<Sixteen<V>>(&self.panels[0], g, sub); NR];
            let mut mins = [Sixteen::<V>::splat(0.0); NR];
            for n in 0..trip_count::<Sixteen<V>>(NR) {
                scales[n] = W::scale::<Sixteen<V>>(&self.panels[n], g, sub);
                if W::MIN {
                    mins[n] = W::min::<Sixteen<V>>(&self.panels[n], g);
                }
            }
            for m in 0..trip_count::<Sixteen<V>>(M) {
                let group = xs[m].add(g * GROUP_BYTES);
                let scale = group.add(offset_of!(QuantizedGroup, scale));
                let x = Sixteen::<V>::splat(*scale.cast::<f32>());
                for n in 0..trip_count::<Sixteen<V>>(NR) {
                    let sum = <Sixteen<V> as RowLanes>::load_sums(
                        ints.cast::<i32>().add((n * M + m) * ROWS),
                    );
                    let scaled = Sixteen::<V>::mul(Sixteen::<V>::to_floats(sum), scales[n]);
                    sums[m][n] = Sixteen::<V>::fma(scaled, x, sums[m][n]);
                }
                if W::MIN {
                    let x = Sixteen::<V>::splat(*zero_point_correction(group, 0).cast::<f32>());
                    for n in 0..trip_count::<Sixteen<V>>(NR) {
                        sums[m][n] = Sixteen::<V>::fma(mins[n], x, sums[m][n]);
                    }
                }
            }
        }
    }
}

/// Bytes of a quantized group.
const GROUP_BYTES: usize = GROUP_FLOATS * 4;
/// Bytes of a row's groups in one block of columns.
const COPY: usize = CHUNK * GROUP_BYTES;

/// Rows brought together.
#[repr(C, align(64))]
struct Copied<const M: usize>([[u8; COPY]; M]);
