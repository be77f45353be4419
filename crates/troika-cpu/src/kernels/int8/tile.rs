//! The register-blocked products.
//!
//! For each group of 32 columns, in order: an exact integer sum (two, of sixteen columns, for
//! types with a scale per sixteen), times the weight's scale, times the activations' scale, added
//! to the row's sum by a fused multiply-add; then the minimum likewise. Nothing else is rounded.

use std::marker::PhantomData;
use std::ops::Range;

use super::Int8Part;
use super::block::{blocks, tile};
use super::quantize::GROUP_FLOATS;
use super::widen::{even_chunk, widen};
use crate::kernels::quantized::format::Format;
use crate::kernels::quantized::lanes::{RowLanes, trip_count};
use crate::kernels::quantized::wide::panel_floats;
use crate::kernels::quantized::{GROUP, Panel, ROWS};
use crate::machine::instructions::RegisterWork;
use crate::runtime::prefetch;

/// Activation rows up to which weights are read as they are.
const DIRECT: usize = 3;
/// Activation rows up to which weights are read as they are, several times: the weights of a group
/// while the first-level cache has them. Not where widened weights are multiplied with two rows at
/// once.
pub(super) const AGAIN: usize = 32;
const _: () = assert!(AGAIN.is_multiple_of(2));
/// Panels that are read at a time where memory is faster so: the integer sums of four rows fit
/// registers.
const TOGETHER: usize = 4;
/// The same for four rows and more of narrower weights, which need registers to be unpacked in.
const NARROW_TOGETHER: usize = 3;

/// Panels of a format that are read at a time with `rows` activation rows, where several may be.
pub(super) fn together<F: Format>(rows: usize) -> usize {
    if rows <= DIRECT || F::FULL { TOGETHER } else { NARROW_TOGETHER }
}

/// Computes a part of a product with weights of a format.
///
/// # Safety
/// Needs the features of `I`; the weight is of this format.
#[inline(always)]
pub(super) unsafe fn run<I: RowLanes, F: Format>(part: Int8Part<'_>) {
    // SAFETY: passed on; `Int8Part::new` checked panels, rows and lengths, and had the promise that
    // nobody else writes the results.
    unsafe {
        match part.m.len() {
            0 => {}
            1 => direct::<I, F, 1>(part),
            // By constants: what does not run is not compiled.
            _ if F::FEW_WIDENED => wide::<I, F>(part),
            2 => direct::<I, F, 2>(part),
            DIRECT => direct::<I, F, DIRECT>(part),
            rows if I::PAIRED || rows > AGAIN => wide::<I, F>(part),
            _ => by_groups::<I, F>(part),
        }
    }
}

/// Few rows: weights are read as they are, several panels at a time where memory is faster so.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn direct<I: RowLanes, F: Format, const M: usize>(part: Int8Part<'_>) {
    let mut panels = part.product.weight.panels(&part.n);
    // SAFETY: the panels exist.
    unsafe {
        if const { I::PANELS >= 3 } && streams::<I>() {
            few_rows::<I, F, M, TOGETHER>(&part, &mut panels);
        }
        few_rows::<I, F, M, 1>(&part, &mut panels);
    }
}

/// Few rows with `NR` panels at a time, until fewer are left.
///
/// # Safety
/// As for [`direct`].
#[inline(always)]
unsafe fn few_rows<I: RowLanes, F: Format, const M: usize, const NR: usize>(
    part: &Int8Part<'_>,
    left: &mut Range<usize>,
) {
    let groups = part.product.weight.layout.cols / GROUP;
    while left.len() >= NR {
        // SAFETY: the panels exist; the rows are checked.
        unsafe {
            let (panels, xs) = (panels(part, left.start), rows::<M>(part, part.m.start, 0));
            let sums = tile::<I, F, M, NR>(panels, [xs, xs], groups, [[I::splat(0.0); NR]; M]);
            put::<I, M, NR>(part, part.m.start, left.start, sums, true);
        }
        left.start += NR;
    }
}

/// More rows than a register block has: weights are read as they are, several panels at a time
/// where memory is faster so.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn by_groups<I: RowLanes, F: Format>(part: Int8Part<'_>) {
    let mut panels = part.product.weight.panels(&part.n);
    let mut xs = [std::ptr::null(); AGAIN];
    let m = part.m.len();
    // The last row is there twice where they are odd.
    let xs = &mut xs[..m.next_multiple_of(2)];
    // SAFETY: the panels exist; the rows are checked.
    unsafe {
        for (i, x) in xs.iter_mut().enumerate() {
            [*x] = rows::<1>(&part, part.m.start + i.min(m - 1), 0);
        }
        if const { I::PANELS >= 3 } && streams::<I>() {
            if F::FULL {
                group_by_group::<I, F, TOGETHER>(&part, &mut panels, xs);
            } else {
                group_by_group::<I, F, NARROW_TOGETHER>(&part, &mut panels, xs);
            }
        }
        group_by_group::<I, F, 1>(&part, &mut panels, xs);
    }
}

/// Rows with `NR` panels at a time, until fewer are left.
///
/// # Safety
/// As for [`by_groups`].
#[inline(always)]
unsafe fn group_by_group<I: RowLanes, F: Format, const NR: usize>(
    part: &Int8Part<'_>,
    left: &mut Range<usize>,
    xs: &[*const u8],
) {
    let groups = part.product.weight.layout.cols / GROUP;
    // SAFETY: features by the caller.
    let mut sums = unsafe { [[I::splat(0.0); NR]; AGAIN] };
    // Only as many are cleared and read as there are rows: with four rows, to clear and copy all of
    // them took 8 % of the time.
    let sums = &mut sums[..xs.len()];
    while left.len() >= NR {
        // SAFETY: the panels exist; the rows are checked.
        unsafe {
            for sums in &mut *sums {
                *sums = [I::splat(0.0); NR];
            }
            blocks::<I, F, NR>(panels(part, left.start), xs, groups, sums);
            for (i, sums) in sums.iter().enumerate().take(part.m.len()) {
                put::<I, 1, NR>(part, part.m.start + i, left.start, [*sums], true);
            }
        }
        left.start += NR;
    }
}

/// `NR` panels from `index` on.
///
/// # Safety
/// The weight has them.
#[inline(always)]
unsafe fn panels<const NR: usize>(part: &Int8Part<'_>, index: usize) -> [Panel; NR] {
    let weight = &part.product.weight;
    // SAFETY: by the caller.
    unsafe {
        let mut panels = [weight.panel(index); NR];
        for (i, panel) in panels.iter_mut().enumerate().skip(1) {
            *panel = weight.panel(index + i);
        }
        panels
    }
}

/// Whether registers that hold the sums of several panels read them at a time: where memory is faster
/// so, or they are emulated.
#[inline(always)]
fn streams<I: RowLanes>() -> bool {
    I::COMPACT || prefetch::gains_from_streams()
}

/// First groups of `M` activation rows, from group `g` on.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn rows<const M: usize>(part: &Int8Part<'_>, m: usize, g: usize) -> [*const u8; M] {
    let groups = part.product.weight.layout.cols / GROUP;
    let mut rows = [std::ptr::null(); M];
    for (i, to) in rows.iter_mut().enumerate() {
        let row = part.product.x.row(m + i, groups * GROUP_FLOATS);
        // SAFETY: the row has `groups` groups.
        *to = unsafe { row.add(g * GROUP_FLOATS).cast() };
    }
    rows
}

/// Many rows: weights are widened to bytes, a pair of panels and a block of columns at a time.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn wide<I: RowLanes, F: Format>(part: Int8Part<'_>) {
    let panels = part.product.weight.panels(&part.n);
    let mut part = part;
    let mut at = panels.start;
    // SAFETY: the panels exist.
    unsafe {
        while at < panels.end {
            let left = panels.end - at;
            if const { I::PANELS >= 3 } && left >= 3 {
                chunks::<I, F, 3>(&mut part, at);
                at += 3;
            } else if const { I::PANELS >= 2 } && left >= 2 {
                chunks::<I, F, 2>(&mut part, at);
                at += 2;
            } else {
                chunks::<I, F, 1>(&mut part, at);
                at += 1;
            }
        }
    }
}

/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn chunks<I: RowLanes, F: Format, const NR: usize>(part: &mut Int8Part<'_>, index: usize) {
    let groups = part.product.weight.layout.cols / GROUP;
    let even = even_chunk::<I, F>(groups);
    let mut g = 0;
    while g < groups {
        let len = even.min(groups - g);
        // SAFETY: the panels exist and have these groups.
        unsafe {
            let panels = widen_all::<I, F, NR>(part, index, g..g + len);
            let block = PanelBlock { panels, index, g, len, last: g + len == groups };
            I::apart(AllRows::<I, F::Wide, NR>(&block, part, PhantomData));
        }
        g += len;
    }
}

/// Widens some groups of panels from `index` on.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn widen_all<I: RowLanes, F: Format, const NR: usize>(
    part: &mut Int8Part<'_>,
    index: usize,
    g: Range<usize>,
) -> [Panel; NR] {
    let weight = &part.product.weight;
    // SAFETY: the panels exist and have these groups; scratch has room for three.
    unsafe {
        let to = part.scratch.as_mut_ptr();
        let mut out = [weight.panel(index); NR];
        for (i, out) in out.iter_mut().enumerate() {
            let to = to.add(i * panel_floats::<I>());
            *out = widen::<I, F>(&weight.panel(index + i), g.clone(), to);
        }
        out
    }
}

/// Some groups of some widened panels.
struct PanelBlock<const NR: usize> {
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

/// A block with all activation rows of a part. It knows only the widened form: formats that share
/// one share this code.
struct AllRows<'a, 'b, I, W, const NR: usize>(
    &'a PanelBlock<NR>,
    &'a Int8Part<'b>,
    PhantomData<(I, W)>,
);

impl<I: RowLanes, W: Format, const NR: usize> RegisterWork for AllRows<'_, '_, I, W, NR> {
    #[inline(always)]
    unsafe fn run(self) {
        let AllRows(block, part, _) = self;
        // SAFETY: by the caller.
        unsafe {
            let mut m = part.m.start;
            if const { I::WIDE && NR < 3 } {
                m = block.rows::<I, W, 6>(part, m);
            }
            m = block.rows::<I, W, 4>(part, m);
            block.rows::<I, W, 1>(part, m);
        }
    }
}

impl<const NR: usize> PanelBlock<NR> {
    /// Activation rows from `m` on, `M` at a time; returns the first that is left.
    ///
    /// # Safety
    /// As for [`run`]; panels, rows and groups are in range.
    #[inline(always)]
    unsafe fn rows<I: RowLanes, W: Format, const M: usize>(
        &self,
        part: &Int8Part<'_>,
        m: usize,
    ) -> usize {
        let (mut m, end) = (m, part.m.end);
        if m + M > end {
            return m;
        }
        // SAFETY: by the caller.
        unsafe {
            let mut xs = rows::<M>(part, m, self.g);
            while m + M <= end {
                let next = if m + 2 * M <= end { rows::<M>(part, m + M, self.g) } else { xs };
                let mut sums = [[I::splat(0.0); NR]; M];
                if self.g > 0 {
                    get::<I, M, NR>(part, m, self.index, &mut sums);
                }
                let sums = tile::<I, W, M, NR>(self.panels, [xs, next], self.len, sums);
                put::<I, M, NR>(part, m, self.index, sums, self.last);
                (xs, m) = (next, m + M);
            }
        }
        m
    }
}

/// Where the results of panels go that have all their rows.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn whole<const NR: usize>(part: &Int8Part<'_>, m: usize, index: usize) -> Option<*mut f32> {
    // SAFETY: as in `place`.
    unsafe { ((index + NR) * ROWS <= part.n.end).then(|| place(part, m, index).0) }
}

/// Where the results of a panel go, and how many of its rows are some.
///
/// # Safety
/// As for [`run`]; panels, rows and groups are in range.
#[inline(always)]
unsafe fn place(part: &Int8Part<'_>, m: usize, index: usize) -> (*mut f32, usize) {
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
unsafe fn get<I: RowLanes, const M: usize, const NR: usize>(
    part: &Int8Part<'_>,
    m: usize,
    index: usize,
    sums: &mut [[I::Floats; NR]; M],
) {
    for (i, row) in sums.iter_mut().enumerate().take(trip_count::<I>(M)) {
        // SAFETY: these results are this part's.
        if let Some(y) = unsafe { whole::<NR>(part, m + i, index) } {
            for (j, sum) in row.iter_mut().enumerate().take(trip_count::<I>(NR)) {
                // SAFETY: as above.
                *sum = unsafe { I::load_f32(y.add(j * ROWS)) };
            }
            continue;
        }
        for (j, sum) in row.iter_mut().enumerate().take(trip_count::<I>(NR)) {
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
unsafe fn put<I: RowLanes, const M: usize, const NR: usize>(
    part: &Int8Part<'_>,
    m: usize,
    index: usize,
    sums: [[I::Floats; NR]; M],
    last: bool,
) {
    let bias = if last { part.product.bias } else { None };
    for (i, row) in sums.iter().enumerate().take(trip_count::<I>(M)) {
        // SAFETY: these results are this part's.
        if let (None, Some(y)) = (bias, unsafe { whole::<NR>(part, m + i, index) }) {
            for (j, sum) in row.iter().enumerate().take(trip_count::<I>(NR)) {
                // SAFETY: as above.
                unsafe { I::store(*sum, y.add(j * ROWS)) };
            }
            continue;
        }
        for (j, sum) in row.iter().enumerate().take(trip_count::<I>(NR)) {
            let mut buf = [0.0f32; ROWS];
            // SAFETY: as in `get`.
            unsafe {
                let (y, len) = place(part, m + i, index + j);
                let mut sum = *sum;
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
