//! Packed weights and activations in floats.
//!
//! A weight's value has the bits that [`troika_graph::blocks`] gives it. Products are added in the
//! order of [`crate::kernels::linear`].

use std::ops::Range;

use super::dispatch::{PanelWork, run_floats};
use super::format::Format;
use super::lanes::{RowLanes, trip_count};
use super::layout::PackedView;
use super::shape::{BLOCK, GROUP, Panel, ROWS};
use crate::Isa;
use crate::runtime::prefetch;

/// Bytes before those in use that are asked for: about the latency of memory.
const PREFETCH_DISTANCE: usize = 4096;

/// The product of one activation row with some weight rows. Who runs it promises that the pointers
/// are valid for what they say, and that nobody else accesses the results meanwhile.
#[derive(Clone)]
pub(crate) struct OneRow<'a> {
    pub weight: PackedView<'a>,
    /// The weight rows, from the first one of a panel on.
    pub n: Range<usize>,
    /// As many floats as the weight has columns.
    pub x: *const f32,
    /// Where the results are, from weight row 0 on; those of `n` are written.
    pub y: *mut f32,
    /// Added to each row.
    pub bias: Option<&'a [f32]>,
}

impl PanelWork for OneRow<'_> {
    #[inline(always)]
    unsafe fn run<I: RowLanes, F: Format>(self) {
        let mut left = self.weight.panels(&self.n);
        // SAFETY: by the caller; the weight has the panels.
        unsafe {
            // Four chains of sums hide their latency: a panel has one, two or four.
            while const { I::PANELS >= 3 } && left.len() >= 4 {
                self.panels::<I, F, 4>(left.start);
                left.start += 4;
            }
            while I::ROLLED && left.len() >= 2 {
                self.panels::<I, F, 2>(left.start);
                left.start += 2;
            }
            for index in left {
                self.panels::<I, F, 1>(index);
            }
        }
    }
}

impl OneRow<'_> {
    /// `NR` panels from `index` on.
    ///
    /// # Safety
    /// As for [`PanelWork::run`]; the weight has the panels.
    #[inline(always)]
    unsafe fn panels<I: RowLanes, F: Format, const NR: usize>(&self, index: usize) {
        let groups = self.weight.layout.cols / GROUP;
        // SAFETY: by the caller.
        unsafe {
            let mut panels = [self.weight.panel(index); NR];
            for (i, panel) in panels.iter_mut().enumerate() {
                *panel = self.weight.panel(index + i);
            }
            let mut all = [I::splat(0.0); NR];
            for start in (0..groups).step_by(BLOCK / GROUP) {
                let mut sums = [I::splat(0.0); NR];
                for g in start..(start + BLOCK / GROUP).min(groups) {
                    add_group::<I, F, NR>(&panels, g, self.x.add(g * GROUP), &mut sums);
                }
                for n in 0..trip_count::<I>(NR) {
                    all[n] = if start == 0 { sums[n] } else { I::add(all[n], sums[n]) };
                }
            }
            for (i, sums) in all.into_iter().enumerate() {
                self.put::<I>((index + i) * ROWS, sums);
            }
        }
    }

    /// # Safety
    /// As for [`PanelWork::run`]; `n` is a panel's first row.
    #[inline(always)]
    unsafe fn put<I: RowLanes>(&self, n: usize, sums: I::Floats) {
        let (len, mut buf) = (ROWS.min(self.n.end - n), [0.0f32; ROWS]);
        // SAFETY: by the caller.
        unsafe {
            let mut sums = sums;
            if let Some(bias) = self.bias {
                buf[..len].copy_from_slice(&bias[n..n + len]);
                sums = I::add(sums, I::load_f32(buf.as_ptr()));
            }
            I::store(sums, buf.as_mut_ptr());
            std::ptr::copy_nonoverlapping(buf.as_ptr(), self.y.add(n), len);
        }
    }
}

/// Weights of a panel as floats, for several activation rows: those of column `k` of the groups at
/// `to[k * width..]`. Who runs it promises that the weight has the panel and the groups, and `to`
/// room for their columns.
pub(crate) struct Unpack<'a> {
    pub weight: PackedView<'a>,
    /// Panel of the weight.
    pub panel: usize,
    pub groups: Range<usize>,
    pub to: *mut f32,
    pub width: usize,
}

impl PackedView<'_> {
    /// The weights of a group of columns of a panel as floats, column by column.
    pub(crate) fn unpack(self, isa: Isa, panel: usize, group: usize, to: &mut [f32]) {
        let rows = panel * ROWS..self.layout.rows.min((panel + 1) * ROWS);
        assert!(self.panels(&rows) == (panel..panel + 1), "a panel of a weight");
        assert!((group + 1) * GROUP <= self.layout.cols, "a group of columns");
        assert!(to.len() >= GROUP * ROWS, "room for them");
        let groups = group..group + 1;
        let all = Unpack { weight: self, panel, groups, to: to.as_mut_ptr(), width: ROWS };
        // SAFETY: the weight has the panel and the group, and there is room.
        unsafe { run_floats(isa, self.layout.dtype, all) };
    }
}

impl PanelWork for Unpack<'_> {
    #[inline(always)]
    unsafe fn run<I: RowLanes, F: Format>(self) {
        // SAFETY: by the caller.
        unsafe {
            let panel = self.weight.panel(self.panel);
            for (i, g) in self.groups.enumerate() {
                for j in 0..trip_count::<I>(8) {
                    let factors = Factors::<I>::new::<F>(&panel, g, j / (8 / F::SUBS));
                    let quad = F::quad::<I>(&panel, g, j);
                    for c in 0..trip_count::<I>(4) {
                        let k = i * GROUP + 4 * j + c;
                        let w = factors.weigh::<F>(I::column(quad, c));
                        I::store(w, self.to.add(k * self.width));
                    }
                }
            }
        }
    }
}

/// What makes levels values.
#[derive(Clone, Copy)]
struct Factors<I: RowLanes> {
    scale: I::Floats,
    /// What is added: the minimum, or what makes up for the level that stands for zero.
    more: I::Floats,
}

impl<I: RowLanes> Factors<I> {
    /// # Safety
    /// As for [`PanelWork::run`]; the panel has the group.
    #[inline(always)]
    unsafe fn new<F: Format>(panel: &Panel, g: usize, sub: usize) -> Self {
        // SAFETY: by the caller.
        unsafe {
            let scale = F::scale::<I>(panel, g, sub);
            let (of, factor) = match F::MIN {
                true => (F::min::<I>(panel, g, sub), -1.0),
                false => (scale, -(F::ZERO as f32)),
            };
            Factors { scale, more: I::mul(of, I::splat(factor)) }
        }
    }

    /// # Safety
    /// Needs the features of `I`.
    #[inline(always)]
    unsafe fn weigh<F: Format>(&self, levels: I::Floats) -> I::Floats {
        // SAFETY: by the caller.
        unsafe {
            match F::MIN {
                // Rounded twice, as in `blocks`.
                true => I::add(I::mul(self.scale, levels), self.more),
                // `scale * zero` is exact, so this is `scale * (level - zero)` rounded once.
                false => I::fma(self.scale, levels, self.more),
            }
        }
    }
}

/// Adds the products of a group of columns.
///
/// # Safety
/// As for [`PanelWork::run`]; the panels have the group, and `x` as many floats.
#[inline(always)]
unsafe fn add_group<I: RowLanes, F: Format, const NR: usize>(
    panels: &[Panel; NR],
    g: usize,
    x: *const f32,
    sums: &mut [I::Floats; NR],
) {
    for line in 0..trip_count::<I>(F::LINES) {
        for panel in panels {
            let ahead = F::at(g) + line * 64 + PREFETCH_DISTANCE / NR;
            prefetch::once(panel.base.wrapping_add(ahead));
        }
    }
    // SAFETY: by the caller.
    unsafe {
        let mut tables = [F::levels::<I>(&panels[0]); NR];
        for n in 1..trip_count::<I>(NR) {
            tables[n] = F::levels::<I>(&panels[n]);
        }
        let mut factors = factors_of::<I, F, NR>(panels, g, 0);
        if I::COMPACT {
            for j in 0..trip_count::<I>(8) {
                if F::SUBS == 2 && j == 4 {
                    factors = factors_of::<I, F, NR>(panels, g, 1);
                }
                add_quad::<I, F, NR>(panels, &factors, &tables, [g, j], x, sums);
            }
            return;
        }
        // Unrolled by hand: shifts are to be constants.
        macro_rules! quads {
            ($($j:literal)*) => {$(
                add_quad::<I, F, NR>(panels, &factors, &tables, [g, $j], x, sums);
            )*};
        }
        quads!(0 1 2 3);
        if F::SUBS == 2 {
            factors = factors_of::<I, F, NR>(panels, g, 1);
        }
        quads!(4 5 6 7);
    }
}

/// The factors of some panels. They are taken once for all their quads: those of some types take as
/// long as the products of a quad.
///
/// # Safety
/// As for [`add_group`].
#[inline(always)]
unsafe fn factors_of<I: RowLanes, F: Format, const NR: usize>(
    panels: &[Panel; NR],
    g: usize,
    sub: usize,
) -> [Factors<I>; NR] {
    // SAFETY: by the caller.
    unsafe {
        let mut all = [Factors::<I>::new::<F>(&panels[0], g, sub); NR];
        for n in 1..trip_count::<I>(NR) {
            all[n] = Factors::new::<F>(&panels[n], g, sub);
        }
        all
    }
}

/// Adds the products of quad `j` of group `g`. `tables` have what values of at most four bits are.
///
/// # Safety
/// As for [`add_group`].
#[inline(always)]
unsafe fn add_quad<I: RowLanes, F: Format, const NR: usize>(
    panels: &[Panel; NR],
    factors: &[Factors<I>; NR],
    tables: &[I::Floats; NR],
    [g, j]: [usize; 2],
    x: *const f32,
    sums: &mut [I::Floats; NR],
) {
    let picked = I::PICKS && F::BITS <= 4;
    // SAFETY: by the caller.
    unsafe {
        for n in 0..trip_count::<I>(NR) {
            let quad = match picked {
                true => F::codes::<I>(&panels[n], g, j),
                false => F::quad::<I>(&panels[n], g, j),
            };
            for c in 0..trip_count::<I>(4) {
                let levels = match picked {
                    true => I::pick(tables[n], quad, 8 * c as u32 + F::code_shift(j)),
                    false => I::column(quad, c),
                };
                let w = factors[n].weigh::<F>(levels);
                sums[n] = I::fma(I::splat(*x.add(4 * j + c)), w, sums[n]);
            }
        }
    }
}
