//! The register-blocked products.
//!
//! For each group of 32 columns, in order: an exact integer sum (two, of sixteen columns, for
//! types with a scale per sixteen), times the weight's scale, times the activations' scale, added
//! to the row's sum by a fused multiply-add; then the minimum likewise. Nothing else is rounded.

use std::mem::offset_of;
use std::ops::Range;

use troika_graph::DType;

use super::Product;
use super::format::{Format, Panel, Q4_0, Q4G, Q4K, Q5K, Q6K, Q8_0, Wide};
use super::lanes::{ROWS, Rows};
use super::layout::{GROUP, QUAD};
use super::quantize::{GROUP_FLOATS, Group};

/// A part of a product: some weight rows, some activation rows.
pub(crate) struct Part<'a> {
    pub product: Product<'a>,
    /// Weight rows, from the first row of a panel on.
    pub n: Range<usize>,
    /// Activation rows.
    pub m: Range<usize>,
    /// Weight row that belongs to the first column of the results.
    pub origin: usize,
    /// At least [`SCRATCH`] floats.
    pub scratch: &'a mut [f32],
}

/// Activation rows up to which weights are read as they are.
const DIRECT: usize = 3;
/// Groups of a block of columns whose weights are widened at once.
const CHUNK: usize = 64;
/// Bytes before the values in use that are asked for: about the latency of memory.
const AHEAD: usize = 4096;
/// Floats of a widened panel's values, scales and minima.
const WIDE: [usize; 3] = [CHUNK * 8 * QUAD / 4, CHUNK * 2 * ROWS, CHUNK * ROWS];
/// Floats of two widened panels.
pub(super) const SCRATCH: usize = 2 * (WIDE[0] + WIDE[1] + WIDE[2]);

/// Computes a part of a product.
///
/// # Safety
/// Needs the features of `I`; nobody else writes the part's results.
#[inline(always)]
pub(super) unsafe fn run<I: Rows>(part: Part<'_>) {
    // SAFETY: passed on; the format is the layout's.
    unsafe {
        match part.product.weight.layout.dtype {
            DType::Q8_0 => by_rows::<I, Q8_0>(part),
            DType::Q4_0 => by_rows::<I, Q4_0>(part),
            DType::Q4_K => by_rows::<I, Q4K>(part),
            DType::Q5_K => by_rows::<I, Q5K>(part),
            DType::Q6_K => by_rows::<I, Q6K>(part),
            DType::Q4_G32 => by_rows::<I, Q4G<1>>(part),
            DType::Q4_G64 => by_rows::<I, Q4G<2>>(part),
            DType::Q4_G128 => by_rows::<I, Q4G<4>>(part),
            other => unreachable!("{other} has no integer path"),
        }
    }
}

/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn by_rows<I: Rows, F: Format>(part: Part<'_>) {
    // SAFETY: passed on.
    unsafe {
        match part.m.len() {
            0 => {}
            1 => direct::<I, F, 1>(part),
            2 => direct::<I, F, 2>(part),
            DIRECT => direct::<I, F, DIRECT>(part),
            _ => wide::<I, F>(part),
        }
    }
}

/// Few rows: weights are read as they are.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn direct<I: Rows, F: Format, const M: usize>(part: Part<'_>) {
    let weight = &part.product.weight;
    let groups = weight.layout.cols / GROUP;
    // SAFETY: the panels exist; the rows are checked.
    unsafe {
        let xs = rows::<M>(&part, part.m.start, 0);
        for index in weight.panels(&part.n) {
            let panel = [Panel::new(weight.bytes.as_ptr(), &weight.layout, index)];
            let sums = tile::<I, F, M, 1>(panel, xs, groups, [[I::splat(0.0); 1]; M]);
            put::<I, M, 1>(&part, part.m.start, index, sums, true);
        }
    }
}

/// First groups of `M` activation rows, from group `g` on.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn rows<const M: usize>(part: &Part<'_>, m: usize, g: usize) -> [*const u8; M] {
    let groups = part.product.weight.layout.cols / GROUP;
    std::array::from_fn(|i| {
        let row = part.product.x.row(m + i, groups * GROUP_FLOATS);
        // SAFETY: the row has `groups` groups.
        unsafe { row.add(g * GROUP_FLOATS).cast() }
    })
}

/// Many rows: weights are widened to bytes, a pair of panels and a block of columns at a time.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn wide<I: Rows, F: Format>(part: Part<'_>) {
    let panels = part.product.weight.panels(&part.n);
    let mut part = part;
    let mut at = panels.start;
    // SAFETY: the panels exist.
    unsafe {
        while at < panels.end {
            if I::PANELS == 2 && at + 2 <= panels.end {
                chunks::<I, F, 2>(&mut part, at);
            } else {
                chunks::<I, F, 1>(&mut part, at);
            }
            at += I::PANELS;
        }
    }
}

/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn chunks<I: Rows, F: Format, const NR: usize>(part: &mut Part<'_>, index: usize) {
    let weight = part.product.weight;
    let groups = weight.layout.cols / GROUP;
    assert!(part.scratch.len() >= SCRATCH, "scratch of a product");
    let mut g = 0;
    while g < groups {
        let len = CHUNK.min(groups - g);
        // SAFETY: the panels exist and have these groups; scratch has room for two.
        unsafe {
            let to = part.scratch.as_mut_ptr();
            let panels = std::array::from_fn(|i| {
                let panel = Panel::new(weight.bytes.as_ptr(), &weight.layout, index + i);
                (panel, to.add(i * SCRATCH / 2))
            });
            let panels = widen_all::<I, F, NR>(panels, g..g + len);
            let block = Block { panels, index, g, len, last: g + len == groups };
            let mut m = part.m.start;
            let end = part.m.end;
            while I::WIDE && m + 6 <= end {
                block.rows::<I, F, 6>(part, m);
                m += 6;
            }
            while m + 4 <= end {
                block.rows::<I, F, 4>(part, m);
                m += 4;
            }
            while m < end {
                block.rows::<I, F, 1>(part, m);
                m += 1;
            }
        }
        g += len;
    }
}

/// Widens some groups of panels, each to its room.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn widen_all<I: Rows, F: Format, const NR: usize>(
    panels: [(Panel, *mut f32); NR],
    g: Range<usize>,
) -> [Panel; NR] {
    let mut out = panels.map(|(panel, _)| panel);
    for (out, (panel, to)) in out.iter_mut().zip(&panels) {
        // SAFETY: by the caller.
        *out = unsafe { widen::<I, F>(panel, g.clone(), *to) };
    }
    out
}

/// Widens some groups of a panel; `to` has room for a block's.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn widen<I: Rows, F: Format>(p: &Panel, g: Range<usize>, to: *mut f32) -> Panel {
    // SAFETY: by the caller.
    unsafe {
        let (scales, mins) = (to.add(WIDE[0]), to.add(WIDE[0] + WIDE[1]));
        for (i, g) in g.clone().enumerate() {
            if !F::PLAIN {
                for j in 0..8 {
                    I::store_bytes(F::quad::<I>(p, g, j), to.cast::<u8>().add((i * 8 + j) * QUAD));
                }
            }
            for sub in 0..F::SUBS {
                I::store(F::scale::<I>(p, g, sub), scales.add((i * F::SUBS + sub) * ROWS));
            }
            if F::MIN {
                I::store(F::min::<I>(p, g), mins.add(i * ROWS));
            }
        }
        let quants = if F::PLAIN { p.quants.add(g.start * 8 * QUAD) } else { to.cast() };
        Panel { quants, high: quants, scales: scales.cast(), supers: mins.cast() }
    }
}

/// Some groups of one or two widened panels.
struct Block<const NR: usize> {
    panels: [Panel; NR],
    /// Of the first panel.
    index: usize,
    /// First group.
    g: usize,
    /// Groups.
    len: usize,
    /// Whether these are a row's last groups.
    last: bool,
}

impl<const NR: usize> Block<NR> {
    /// # Safety
    /// As for [`run`]; panels, rows and groups are in range.
    #[inline(always)]
    unsafe fn rows<I: Rows, F: Format, const M: usize>(&self, part: &Part<'_>, m: usize) {
        // SAFETY: by the caller.
        unsafe {
            let xs = rows::<M>(part, m, self.g);
            let mut sums = [[I::splat(0.0); NR]; M];
            if self.g > 0 {
                get::<I, M, NR>(part, m, self.index, &mut sums);
            }
            let sums = tile::<I, Wide<F>, M, NR>(self.panels, xs, self.len, sums);
            put::<I, M, NR>(part, m, self.index, sums, self.last);
        }
    }
}

/// Where the results of a panel go, and how many of its rows are some.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn place(part: &Part<'_>, m: usize, index: usize) -> (*mut f32, usize) {
    let n = index * ROWS;
    let rows = ROWS.min(part.n.end - n);
    let y = part.product.y.at(m, part.n.end - part.origin);
    // SAFETY: the row reaches to the part's last weight row.
    unsafe { (y.add(n - part.origin), rows) }
}

/// Sums of the groups before.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn get<I: Rows, const M: usize, const NR: usize>(
    part: &Part<'_>,
    m: usize,
    index: usize,
    sums: &mut [[I::Floats; NR]; M],
) {
    for (i, row) in sums.iter_mut().enumerate() {
        for (j, sum) in row.iter_mut().enumerate() {
            let mut buf = [0.0f32; ROWS];
            // SAFETY: these results are this part's; the buffer has sixteen.
            unsafe {
                let (y, len) = place(part, m + i, index + j);
                if len == ROWS {
                    *sum = I::load_f32(y);
                } else {
                    std::ptr::copy_nonoverlapping(y, buf.as_mut_ptr(), len);
                    *sum = I::load_f32(buf.as_ptr());
                }
            }
        }
    }
}

/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn put<I: Rows, const M: usize, const NR: usize>(
    part: &Part<'_>,
    m: usize,
    index: usize,
    sums: [[I::Floats; NR]; M],
    last: bool,
) {
    let bias = if last { part.product.bias } else { None };
    for (i, row) in sums.into_iter().enumerate() {
        for (j, sum) in row.into_iter().enumerate() {
            let mut buf = [0.0f32; ROWS];
            // SAFETY: as in `get`.
            unsafe {
                let (y, len) = place(part, m + i, index + j);
                let mut sum = sum;
                if let Some(bias) = bias {
                    buf[..len].copy_from_slice(&bias[(index + j) * ROWS..][..len]);
                    sum = I::add(sum, I::load_f32(buf.as_ptr()));
                }
                if len == ROWS {
                    I::store(sum, y);
                } else {
                    I::store(sum, buf.as_mut_ptr());
                    std::ptr::copy_nonoverlapping(buf.as_ptr(), y, len);
                }
            }
        }
    }
}

/// The extra sum of a group, as an integer.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn extra(x: *const u8, sub: usize) -> *const i32 {
    // SAFETY: `x` points at a group.
    unsafe { x.add(offset_of!(Group, extra)).cast::<i32>().add(sub) }
}

/// The products of `M` activation rows with `NR` panels over some groups, added to `sums`.
///
/// # Safety
/// Needs the features of `I`, and the groups behind every pointer.
#[inline(always)]
unsafe fn tile<I: Rows, F: Format, const M: usize, const NR: usize>(
    panels: [Panel; NR],
    xs: [*const u8; M],
    groups: usize,
    mut sums: [[I::Floats; NR]; M],
) -> [[I::Floats; NR]; M] {
    for g in 0..groups {
        let at = g * size_of::<Group>();
        // SAFETY: by the caller.
        unsafe {
            for i in 0..F::LINES {
                I::prefetch(panels[0].quants.wrapping_add((g * F::LINES + i) * 64 + AHEAD));
            }
            let xs: [_; M] = std::array::from_fn(|m| xs[m].add(at));
            if F::SUBS == 1 {
                half::<I, F, M, NR, 8>(&panels, xs, g, 0, &mut sums);
            } else {
                half::<I, F, M, NR, 4>(&panels, xs, g, 0, &mut sums);
                half::<I, F, M, NR, 4>(&panels, xs, g, 1, &mut sums);
            }
            if F::MIN {
                for n in 0..NR {
                    let min = F::min::<I>(&panels[n], g);
                    for m in 0..M {
                        let x = I::splat(*extra(xs[m], 0).cast::<f32>());
                        sums[m][n] = I::fma(min, x, sums[m][n]);
                    }
                }
            }
        }
    }
    sums
}

/// The `QUADS` quads of a group that share a scale.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn half<I: Rows, F: Format, const M: usize, const NR: usize, const QUADS: usize>(
    panels: &[Panel; NR],
    xs: [*const u8; M],
    g: usize,
    sub: usize,
    sums: &mut [[I::Floats; NR]; M],
) {
    // SAFETY: by the caller.
    unsafe {
        let ints = if I::PAIRED && F::WIDE && M.is_multiple_of(2) {
            by_pairs::<I, F, M, NR, QUADS>(panels, xs, g, sub)
        } else {
            by_quads::<I, F, M, NR, QUADS>(panels, xs, g, sub)
        };
        let scales: [_; NR] = std::array::from_fn(|n| F::scale::<I>(&panels[n], g, sub));
        for m in 0..M {
            let x = I::splat(*xs[m].add(offset_of!(Group, scale)).cast::<f32>());
            for n in 0..NR {
                let scaled = I::mul(I::to_floats(ints[m][n]), scales[n]);
                sums[m][n] = I::fma(scaled, x, sums[m][n]);
            }
        }
    }
}

/// Their integer sums, two activation rows at a time.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range; the panels are widened.
#[inline(always)]
unsafe fn by_pairs<I: Rows, F: Format, const M: usize, const NR: usize, const QUADS: usize>(
    panels: &[Panel; NR],
    xs: [*const u8; M],
    g: usize,
    sub: usize,
) -> [[I::Sums; NR]; M] {
    // SAFETY: by the caller; widened panels hold eight quads of bytes per group.
    unsafe {
        let mut begin = [0; M];
        if !F::MIN {
            begin = std::array::from_fn(|m| *extra(xs[m], sub));
        }
        let xs = xs.map(|x| x.add(4 * sub * QUADS));
        let mut ints = [[I::begin(false, 0); NR]; M];
        for n in 0..NR {
            let w = panels[n].quants.add((g * 8 + sub * QUADS) * QUAD);
            for (ints, sums) in ints.iter_mut().zip(I::pairs::<M, QUADS>(w, xs, begin)) {
                ints[n] = sums;
            }
        }
        ints
    }
}

/// Their integer sums.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn by_quads<I: Rows, F: Format, const M: usize, const NR: usize, const QUADS: usize>(
    panels: &[Panel; NR],
    xs: [*const u8; M],
    g: usize,
    sub: usize,
) -> [[I::Sums; NR]; M] {
    // SAFETY: by the caller.
    unsafe {
        let mut ints = [[I::begin(F::FULL, 0); NR]; M];
        if !F::MIN {
            for m in 0..M {
                ints[m] = [I::begin(F::FULL, *extra(xs[m], sub)); NR];
            }
        }
        let mut part = [[I::part(ints[0][0]); NR]; M];
        macro_rules! quad {
            ($j:literal) => {
                if $j < QUADS {
                    let j = sub * QUADS + $j;
                    if $j % F::SPAN == 0 {
                        for m in 0..M {
                            for n in 0..NR {
                                part[m][n] = I::part(ints[m][n]);
                            }
                        }
                    }
                    let mut w = [I::weight(F::FULL, F::quad::<I>(&panels[0], g, j)); NR];
                    for n in 1..NR {
                        w[n] = I::weight(F::FULL, F::quad::<I>(&panels[n], g, j));
                    }
                    for m in 0..M {
                        let x = I::quad(xs[m].add(4 * j));
                        for n in 0..NR {
                            part[m][n] = I::dot(F::FULL, part[m][n], w[n], x);
                        }
                    }
                    if $j % F::SPAN == F::SPAN - 1 {
                        for m in 0..M {
                            for n in 0..NR {
                                ints[m][n] = I::fold(F::FULL, ints[m][n], part[m][n]);
                            }
                        }
                    }
                }
            };
        }
        quad!(0);
        quad!(1);
        quad!(2);
        quad!(3);
        quad!(4);
        quad!(5);
        quad!(6);
        quad!(7);
        ints
    }
}
