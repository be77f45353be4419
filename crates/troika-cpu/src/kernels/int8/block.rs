//! Register blocks: some activation rows times one to four panels, group by group.

use std::hint::black_box;
use std::mem::offset_of;
use std::ops::Range;

use super::quantize::QuantizedGroup;
use crate::kernels::quantized::format::Format;
use crate::kernels::quantized::lanes::{RowLanes, trip_count};
use crate::kernels::quantized::{Panel, QUAD, ROWS, joined, wide};
use crate::runtime::prefetch;

/// Bytes from the values in use to those that are prefetched, of all panels together: about the
/// latency of memory.
const PREFETCH_DISTANCE: usize = 4096;

/// Asks for some cache lines of each panel, some groups behind group `g`. Only processors that do not
/// bypass caches read several panels; for them the kind of prefetch is known.
#[inline(always)]
fn prefetch_lines<I: RowLanes, F: Format, const NR: usize>(
    panels: &[Panel; NR],
    g: usize,
    lines: Range<usize>,
) {
    for line in lines {
        for panel in panels {
            let at = panel.base.wrapping_add(F::at(g) + line * 64 + PREFETCH_DISTANCE / NR);
            if NR == 1 {
                prefetch::once(at);
            } else {
                // SAFETY: any address is allowed.
                unsafe { I::prefetch(at) };
            }
        }
    }
}

/// The zero-point correction of a group, as an integer.
///
/// # Safety
/// `x` points at a group.
#[inline(always)]
pub(super) unsafe fn zero_point_correction(x: *const u8, sub: usize) -> *const i32 {
    // SAFETY: by the caller.
    unsafe { x.add(offset_of!(QuantizedGroup, zero_point_correction)).cast::<i32>().add(sub) }
}

/// The products of `M` activation rows with `NR` panels over some groups, added to `sums`; the
/// rows to come are asked for meanwhile.
///
/// # Safety
/// Needs the features of `I`, and the groups behind every pointer.
#[inline(always)]
pub(super) unsafe fn tile<I: RowLanes, F: Format, const M: usize, const NR: usize>(
    panels: [Panel; NR],
    [xs, next]: [[*const u8; M]; 2],
    groups: usize,
    mut sums: [[I::Floats; NR]; M],
) -> [[I::Floats; NR]; M] {
    let columns = Columns::new::<I, F>(NR > 1);
    for g in 0..groups {
        let at = g * size_of::<QuantizedGroup>();
        // SAFETY: by the caller.
        unsafe {
            if !columns.prefetch {
                prefetch_lines::<I, F, NR>(&panels, g, 0..trip_count::<I>(F::LINES));
            }
            if F::WIDE {
                for next in next {
                    I::prefetch(next.wrapping_add(at));
                }
            }
            let mut groups = xs;
            for m in 0..trip_count::<I>(M) {
                groups[m] = xs[m].add(at);
            }
            let xs = groups;
            add_group::<I, F, M, NR>(&panels, xs, g, columns, &mut sums);
        }
    }
    sums
}

/// Activation rows at a time of [`blocks`].
const BLOCK_ROWS: usize = 4;

/// Where blocks of eight rows, and then of six, end, so that those left of an even number of rows, four
/// or more, are a block of four or none.
fn ends_of_long_blocks(rows: usize) -> [usize; 2] {
    match rows % 8 {
        0 => [rows, rows],
        2 => [rows - 10, rows - 4],
        4 => [rows - 4, rows - 4],
        _ => [rows - 6, rows],
    }
}

/// As [`tile`], for an even number of rows, four or more: each group of the weight is multiplied with
/// all of them while the first-level cache has it, and memory brings the next ones meanwhile.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
pub(super) unsafe fn blocks<I: RowLanes, F: Format, const NR: usize>(
    panels: [Panel; NR],
    xs: &[*const u8],
    groups: usize,
    sums: &mut [[I::Floats; NR]],
) {
    let [first, columns] = [NR > 1 && F::FULL, false].map(Columns::new::<I, F>);
    // Several panels are unpacked for each block: the fewer, the better.
    let long = const { NR > 1 && !F::FULL };
    let [eights, sixes] = if long { ends_of_long_blocks(xs.len()) } else { [0, 0] };
    let fours = if long { xs.len() } else { xs.len() / BLOCK_ROWS * BLOCK_ROWS };
    for g in 0..groups {
        if !first.prefetch {
            prefetch_lines::<I, F, NR>(&panels, g, 0..trip_count::<I>(F::LINES));
        }
        macro_rules! add {
            ($rows:expr, $first:expr, $range:expr) => {
                add_rows::<I, F, { $rows }, NR>(
                    &panels,
                    &xs[$range],
                    g,
                    [$first, columns],
                    &mut sums[$range],
                )
            };
        }
        // SAFETY: by the caller.
        unsafe {
            if const { NR > 1 && !F::FULL } {
                add!(8, columns, ..eights);
                add!(6, columns, eights..sixes);
            }
            add!(BLOCK_ROWS, first, sixes..fours);
            if const { NR == 1 || F::FULL } {
                add!(2, columns, fours..);
            }
        }
    }
}

/// Adds the products of a group of columns with a multiple of `M` rows; the first `M` take the columns
/// as `first` says.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn add_rows<I: RowLanes, F: Format, const M: usize, const NR: usize>(
    panels: &[Panel; NR],
    xs: &[*const u8],
    g: usize,
    [first, columns]: [Columns; 2],
    sums: &mut [[I::Floats; NR]],
) {
    let (xs, sums) = (xs.as_chunks::<M>().0, sums.as_chunks_mut::<M>().0);
    for (i, (xs, sums)) in xs.iter().zip(sums).enumerate() {
        // SAFETY: by the caller.
        unsafe {
            let xs = at_group(xs, g);
            // Two calls, so that the compiler knows what the first one does besides.
            if const { NR > 1 && F::FULL } && first.prefetch && i == 0 {
                add_group::<I, F, M, NR>(panels, xs, g, first, sums);
            } else {
                add_group::<I, F, M, NR>(panels, xs, g, columns, sums);
            }
        }
    }
}

/// Where rows have group `g`.
///
/// # Safety
/// The rows have it.
#[inline(always)]
unsafe fn at_group<const M: usize>(xs: &[*const u8; M], g: usize) -> [*const u8; M] {
    let mut at = *xs;
    for x in &mut at {
        // SAFETY: by the caller.
        *x = unsafe { x.add(g * size_of::<QuantizedGroup>()) };
    }
    at
}

/// Adds the products of a group of columns.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn add_group<I: RowLanes, F: Format, const M: usize, const NR: usize>(
    panels: &[Panel; NR],
    xs: [*const u8; M],
    g: usize,
    columns: Columns,
    sums: &mut [[I::Floats; NR]; M],
) {
    // SAFETY: by the caller.
    unsafe {
        add_scaled::<I, F, M, NR>(panels, xs, g, 0, columns, sums);
        if const { F::SUBS == 2 } {
            add_scaled::<I, F, M, NR>(panels, xs, g, 1, columns, sums);
        }
        if F::MIN {
            for sub in 0..F::SUBS {
                for n in 0..trip_count::<I>(NR) {
                    let min = F::min::<I>(&panels[n], g, sub);
                    for m in 0..trip_count::<I>(M) {
                        let x = I::splat(*zero_point_correction(xs[m], sub).cast::<f32>());
                        sums[m][n] = I::fma(min, x, sums[m][n]);
                    }
                }
            }
        }
    }
}

/// Adds the products of the quads that share a scale.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn add_scaled<I: RowLanes, F: Format, const M: usize, const NR: usize>(
    panels: &[Panel; NR],
    xs: [*const u8; M],
    g: usize,
    sub: usize,
    columns: Columns,
    sums: &mut [[I::Floats; NR]; M],
) {
    // SAFETY: by the caller.
    unsafe {
        let ints = integers::<I, F, M, NR>(panels, xs, g, sub, columns);
        // No closure: one that is not inlined is compiled without the features.
        let mut scales = [F::scale::<I>(&panels[0], g, sub); NR];
        for n in 1..trip_count::<I>(NR) {
            scales[n] = F::scale::<I>(&panels[n], g, sub);
        }
        for m in 0..trip_count::<I>(M) {
            let x = I::splat(*xs[m].add(offset_of!(QuantizedGroup, scale)).cast::<f32>());
            for n in 0..trip_count::<I>(NR) {
                let scaled = I::mul(I::to_floats(ints[m][n]), scales[n]);
                sums[m][n] = I::fma(scaled, x, sums[m][n]);
            }
        }
    }
}

/// The integer sums of the quads that share a scale, in the way that suits the registers.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn integers<I: RowLanes, F: Format, const M: usize, const NR: usize>(
    panels: &[Panel; NR],
    xs: [*const u8; M],
    g: usize,
    sub: usize,
    columns: Columns,
) -> [[I::Sums; NR]; M] {
    // SAFETY: by the caller.
    unsafe {
        if F::WIDE && F::FULL && I::SIGNED {
            return signed::<I, F, M, NR>(panels, xs, g, sub, columns);
        }
        if F::WIDE && I::PAIRED && M.is_multiple_of(2) {
            return paired::<I, F, M, NR>(panels, xs, g, sub);
        }
        let first = sub * (8 / F::SUBS);
        let mut part = [[begin::<I, F>(xs[0], sub); NR]; M];
        let mut ints = [[I::begin(F::FULL, 0); NR]; M];
        for m in 0..trip_count::<I>(M) {
            part[m] = [begin::<I, F>(xs[m], sub); NR];
            if !F::SPLIT {
                ints[m] = [I::begin(F::FULL, correction::<F>(xs[m], sub)); NR];
            }
        }
        quads::<I, F, M, NR>(panels, xs, g, first, columns, &mut part);
        if const { F::FOLDS == 2 } {
            for m in 0..trip_count::<I>(M) {
                for n in 0..trip_count::<I>(NR) {
                    ints[m][n] = I::fold(F::FULL, ints[m][n], part[m][n]);
                    part[m][n] = I::part(F::FULL, ints[m][n]);
                }
            }
            quads::<I, F, M, NR>(panels, xs, g, first + F::QUADS, columns, &mut part);
        }
        for m in 0..trip_count::<I>(M) {
            for n in 0..trip_count::<I>(NR) {
                ints[m][n] = I::fold(F::FULL, ints[m][n], part[m][n]);
            }
        }
        ints
    }
}

/// What partial sums begin with.
///
/// # Safety
/// Needs the features of `I`; `x` points at a group.
#[inline(always)]
unsafe fn begin<I: RowLanes, F: Format>(x: *const u8, sub: usize) -> I::Partial {
    // SAFETY: by the caller.
    unsafe {
        if F::SPLIT {
            I::part_split(*zero_point_correction(x, sub) as u32)
        } else {
            I::part(F::FULL, I::begin(F::FULL, correction::<F>(x, sub)))
        }
    }
}

/// The correction of integer sums.
///
/// # Safety
/// `x` points at a group.
#[inline(always)]
unsafe fn correction<F: Format>(x: *const u8, sub: usize) -> i32 {
    if F::MIN {
        return 0;
    }
    // SAFETY: by the caller.
    let correction = unsafe { *zero_point_correction(x, sub) };
    if F::SPLIT { joined(correction as u32) } else { correction }
}

/// How the columns of a group are taken. Where code is to be small, and with few registers, the
/// compiler must not know trip counts: it would unroll the loops, order the products by rows instead
/// of by columns, and then keep the weights in memory.
#[derive(Clone, Copy)]
struct Columns {
    /// Pairs of quads before a fold.
    pairs: usize,
    /// Whether each quad asks for some lines that lie ahead. A core waits for as few as 16 lines at
    /// a time, so that it stops when the lines of several panels are asked for at once.
    prefetch: bool,
}

impl Columns {
    #[inline(always)]
    fn new<I: RowLanes, F: Format>(prefetch: bool) -> Columns {
        let pairs = F::QUADS / 2;
        Columns { pairs: if I::ROLLED || I::COMPACT { black_box(pairs) } else { pairs }, prefetch }
    }
}

/// Adds the products of quad `j` of group `g`.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn quad<I: RowLanes, F: Format, const M: usize, const NR: usize>(
    panels: &[Panel; NR],
    xs: [*const u8; M],
    g: usize,
    j: usize,
    columns: Columns,
    part: &mut [[I::Partial; NR]; M],
) {
    if const { NR > 1 } && columns.prefetch {
        // The last of eight quads asks for all that is left.
        let end = if j == 7 { F::LINES } else { F::LINES.min(j + 1) };
        prefetch_lines::<I, F, NR>(panels, g, j..end);
    }
    // SAFETY: by the caller.
    unsafe {
        let mut w = [weight::<I, F>(&panels[0], g, j); NR];
        for n in 1..trip_count::<I>(NR) {
            w[n] = weight::<I, F>(&panels[n], g, j);
        }
        for m in 0..trip_count::<I>(M) {
            let x = I::quad(xs[m].add(4 * j));
            for n in 0..trip_count::<I>(NR) {
                part[m][n] = I::dot(F::FULL, part[m][n], w[n], x);
                if F::WIDE || M >= BLOCK_ROWS {
                    part[m][n] = I::pin(part[m][n]);
                }
            }
        }
    }
}

/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn weight<I: RowLanes, F: Format>(p: &Panel, g: usize, j: usize) -> I::Weight {
    // SAFETY: by the caller.
    unsafe { I::weight(F::FULL, F::quad::<I>(p, g, j)) }
}

/// The integer sums of a group of weights of all eight bits, widened to [`RowLanes::Signed`].
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn signed<I: RowLanes, F: Format, const M: usize, const NR: usize>(
    panels: &[Panel; NR],
    xs: [*const u8; M],
    g: usize,
    sub: usize,
    columns: Columns,
) -> [[I::Sums; NR]; M] {
    // SAFETY: by the caller; widened panels have what sums begin with.
    unsafe {
        let at = (g * F::SUBS + sub) * ROWS;
        let mut starts = [I::begin(true, 0); NR];
        let mut part = [I::part(true, starts[0]); NR];
        for n in 0..trip_count::<I>(NR) {
            starts[n] = I::load_sums(wide::more::<I>(panels[n].base).add(at).cast());
            part[n] = I::part(true, starts[n]);
        }
        let mut part = [part; M];
        let mut j = sub * F::QUADS;
        for _ in 0..columns.pairs {
            for _ in 0..2 {
                let at = (g * 8 + j) * I::SIGNED_QUAD;
                let mut w = [I::load_signed(panels[0].base.add(at)); NR];
                for n in 1..trip_count::<I>(NR) {
                    w[n] = I::load_signed(panels[n].base.add(at));
                }
                for m in 0..trip_count::<I>(M) {
                    let x = I::quad(xs[m].add(4 * j));
                    for n in 0..trip_count::<I>(NR) {
                        part[m][n] = I::dot_signed(part[m][n], w[n], x);
                    }
                }
                j += 1;
            }
        }
        let mut ints = [starts; M];
        for m in 0..trip_count::<I>(M) {
            for n in 0..trip_count::<I>(NR) {
                ints[m][n] = I::fold(true, starts[n], part[m][n]);
            }
        }
        ints
    }
}

/// Adds the products of the quads up to a fold, from quad `first` on, in the way that suits the
/// registers.
///
/// # Safety
/// As for [`tile`].
#[inline(always)]
unsafe fn quads<I: RowLanes, F: Format, const M: usize, const NR: usize>(
    panels: &[Panel; NR],
    xs: [*const u8; M],
    g: usize,
    first: usize,
    columns: Columns,
    part: &mut [[I::Partial; NR]; M],
) {
    // SAFETY: by the caller.
    unsafe {
        if F::WIDE && I::ROLLED && !I::PINNED || I::COMPACT {
            let mut j = first;
            for _ in 0..columns.pairs {
                quad::<I, F, M, NR>(panels, xs, g, j, columns, part);
                quad::<I, F, M, NR>(panels, xs, g, j + 1, columns, part);
                j += 2;
            }
            return;
        }
        // Unrolled by hand: shifts by `j` are to be constants.
        macro_rules! quads {
            ($($j:literal)*) => {$(
                if const { $j < F::QUADS } {
                    quad::<I, F, M, NR>(panels, xs, g, first + $j, columns, part);
                }
            )*};
        }
        quads!(0 1 2 3 4 5 6 7);
    }
}

/// As [`integers`], two activation rows at a time.
///
/// # Safety
/// As for [`tile`]; the panels are widened.
#[inline(always)]
unsafe fn paired<I: RowLanes, F: Format, const M: usize, const NR: usize>(
    panels: &[Panel; NR],
    xs: [*const u8; M],
    g: usize,
    sub: usize,
) -> [[I::Sums; NR]; M] {
    // SAFETY: by the caller; widened panels hold eight quads of bytes per group.
    unsafe {
        let mut begin = [0; M];
        for m in 0..trip_count::<I>(M) {
            begin[m] = correction::<F>(xs[m], sub);
        }
        let first = sub * (8 / F::SUBS);
        let xs = xs.map(|x| x.add(4 * first));
        let mut ints = [[I::begin(false, 0); NR]; M];
        for n in 0..trip_count::<I>(NR) {
            let w = panels[n].base.add((g * 8 + first) * QUAD);
            let sums = if F::SUBS == 1 {
                I::pairs::<M, 8>(w, xs, begin)
            } else {
                I::pairs::<M, 4>(w, xs, begin)
            };
            for (ints, sums) in ints.iter_mut().zip(sums) {
                ints[n] = sums;
            }
        }
        ints
    }
}
