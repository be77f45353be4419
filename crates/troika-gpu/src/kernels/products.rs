//! Products with weights, and looking rows up.

use troika_graph::Activation;

use super::Binding::{Value, Weight};
use super::elements::activation;
use super::format::WeightFormat;
use super::spec::{Dispatch, KernelError, KernelSpec, Loc, MAX_GROUPS, unsupported};

/// A weight matrix, or the part of it that a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The layout.
    pub format: WeightFormat,
    /// Rows in the binding.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// The number, in the whole weight, of the binding's first row.
    pub first: u32,
}

impl Matrix {
    pub(super) fn check(&self) -> Result<(), KernelError> {
        let blocks = self.cols > 0 && self.cols.is_multiple_of(self.format.block());
        if !blocks || self.cols > 1 << 24 {
            return unsupported(format!("{:?} weights of {} columns", self.format, self.cols));
        }
        Ok(())
    }

    /// Whether rows of a value are read in units of four elements: they begin at such units, and
    /// steps of 32 columns are whole.
    pub(super) fn aligned(&self, x: Loc) -> bool {
        x.offset.is_multiple_of(4) && x.stride.is_multiple_of(4) && self.cols.is_multiple_of(32)
    }
}

/// The specs of a kernel for every format of weights. Each source is that of the format, then those
/// given, in one string.
macro_rules! by_format {
    ($table:ident, $name:literal, $matrices:literal, $bindings:expr, $bytes:expr, $($part:literal),*) => {
        static $table: [KernelSpec; 13] = by_format!(@all [
            "f32", "f16", "bf16", "q8_0", "q8_1", "q4_0", "q4_1", "q4z", "mxfp4", "q4k", "q5k",
            "q6k", "q8g16"
        ], $name, $matrices, $bindings, $bytes, ($($part),*));
    };
    (@all [$($format:literal),*], $name:literal, $matrices:literal, $bindings:expr, $bytes:expr, $parts:tt) => {
        [$(by_format!(@one $format, $name, $matrices, $bindings, $bytes, $parts)),*]
    };
    (@one $format:literal, $name:literal, $matrices:literal, $bindings:expr, $bytes:expr, ($($part:literal),*)) => {
        KernelSpec {
            name: concat!($name, "_", $format),
            source: concat!(
                include_str!(concat!("wgsl/", $matrices)),
                include_str!("wgsl/weights.wgsl"),
                include_str!(concat!("wgsl/format/", $format, ".wgsl")),
                $(include_str!(concat!("wgsl/", $part)),)*
            ),
            bindings: $bindings,
            workgroup_bytes: $bytes,
        }
    };
}
pub(super) use by_format;

by_format!(EMBED, "embed", "one_weight.wgsl", &[Weight, Value, Value], 0, "embed.wgsl");
by_format!(
    FEW_ROWS,
    "few_rows",
    "one_weight.wgsl",
    &[Weight, Weight, Value, Value],
    16 * 1024,
    "x_units.wgsl",
    "team.wgsl",
    "product.wgsl",
    "few_rows.wgsl"
);
by_format!(
    FEW_ROWS_ANY,
    "few_rows_any",
    "one_weight.wgsl",
    &[Weight, Weight, Value, Value],
    16 * 1024,
    "x_any.wgsl",
    "team.wgsl",
    "product.wgsl",
    "few_rows.wgsl"
);
by_format!(
    TILES,
    "tiles",
    "one_weight.wgsl",
    &[Weight, Weight, Value, Value],
    16 * 1024,
    "x_units.wgsl",
    "product.wgsl",
    "tiles.wgsl"
);
by_format!(
    TILES_ANY,
    "tiles_any",
    "one_weight.wgsl",
    &[Weight, Weight, Value, Value],
    16 * 1024,
    "x_any.wgsl",
    "product.wgsl",
    "tiles.wgsl"
);

by_format!(
    THREE,
    "three_products",
    "three_weights.wgsl",
    &[Weight, Weight, Weight, Value, Value, Value, Value],
    16 * 1024,
    "x_units.wgsl",
    "team.wgsl",
    "three_products.wgsl"
);
by_format!(
    GATE_UP,
    "gate_up",
    "two_weights.wgsl",
    &[Weight, Weight, Weight, Weight, Value, Value],
    16 * 1024,
    "x_units.wgsl",
    "activation.wgsl",
    "team.wgsl",
    "gate_up.wgsl"
);

/// Looks up the rows of a table and multiplies them by `scale`. Ids that are not among the table's
/// rows in the binding are left to other dispatches; ids beyond the whole table write nothing.
///
/// Bindings: the table; ids (i32; one a row); results.
///
/// # Errors
/// Columns that are not whole blocks; more rows than a dispatch may have.
pub fn embed(
    table: Matrix,
    scale: f32,
    rows: u32,
    ids: Loc,
    y: Loc,
) -> Result<Dispatch, KernelError> {
    table.check()?;
    Dispatch {
        spec: &EMBED[table.format as usize],
        overrides: vec![],
        params: vec![
            table.first,
            table.rows,
            table.cols,
            table.format.row_units(table.cols),
            ids.offset,
            ids.stride,
            y.offset,
            y.stride,
            rows,
            scale.to_bits(),
        ],
        grid: [table.cols.div_ceil(16).div_ceil(64), rows.min(MAX_GROUPS), 1],
    }
    .checked()
}

/// Rows of activations for which a weight is read once; more go through tiles.
pub(super) const FEW: u32 = 8;

/// `y = x * weight^T + bias` for `rows` rows. Results go to the columns of y that belong to the
/// binding's rows of the weight: from `weight.first` on.
///
/// Bindings: the weight; the bias (f32, of the whole weight; the weight again if there is none); x;
/// results, which may not overlap x.
///
/// # Errors
/// Columns that are not whole blocks; more rows than a dispatch may have.
pub fn linear(
    weight: Matrix,
    bias: bool,
    rows: u32,
    x: Loc,
    y: Loc,
) -> Result<Dispatch, KernelError> {
    product(weight, [1, weight.rows], bias, rows, [x, y])
}

/// `y[:, h] = x[:, h] * w[h]^T` for `rows` rows and `heads` heads, whose weights lie one after
/// another in one binding (`weights.rows` is that of all heads, `weights.first` 0).
///
/// Bindings: the weights; the weights again; x; results, which may not overlap x.
///
/// # Errors
/// As for [`linear`]; weights that are not of whole heads.
pub fn head_linear(
    weights: Matrix,
    heads: u32,
    rows: u32,
    x: Loc,
    y: Loc,
) -> Result<Dispatch, KernelError> {
    if heads == 0 || !weights.rows.is_multiple_of(heads) || weights.first != 0 {
        return unsupported(format!("{} weight rows of {heads} heads", weights.rows));
    }
    product(weights, [heads, weights.rows / heads], false, rows, [x, y])
}

fn product(
    w: Matrix,
    [heads, head_rows]: [u32; 2],
    bias: bool,
    rows: u32,
    [x, y]: [Loc; 2],
) -> Result<Dispatch, KernelError> {
    w.check()?;
    // The second head must begin at a unit, too.
    let aligned = w.aligned(x);
    let params = vec![
        head_rows,
        w.cols,
        w.format.row_units(w.cols),
        w.first,
        rows,
        x.offset,
        x.stride,
        y.offset,
        y.stride,
    ];
    let format = w.format as usize;
    let bias = ("BIAS", f64::from(u8::from(bias)));
    if rows > FEW {
        return Dispatch {
            spec: if aligned { &TILES[format] } else { &TILES_ANY[format] },
            overrides: vec![bias],
            params,
            grid: [head_rows.div_ceil(64), rows.div_ceil(64), heads],
        }
        .checked();
    }
    let few = rows.next_power_of_two();
    let split = split(w.cols);
    Dispatch {
        spec: if aligned { &FEW_ROWS[format] } else { &FEW_ROWS_ANY[format] },
        overrides: vec![
            ("ROWS", f64::from(few)),
            ("SLOTS", f64::from(few.max(2))),
            ("LANES", f64::from(split.lanes)),
            ("TEAMS", f64::from(split.teams)),
            ("WG", f64::from(split.lanes * split.teams)),
            bias,
        ],
        params,
        grid: [head_rows.div_ceil(split.teams * team_rows(few)), u32::from(rows > 0), heads],
    }
    .checked()
}

/// [`linear`] with three weights of one format and one width at once, without biases, for at most
/// eight rows. With two weights the third has no rows, and the second is bound again.
///
/// Bindings: the weights; x; their results, which may not overlap x. `at` has x and the results.
///
/// # Errors
/// More rows; weights that differ, or that are parts; x whose rows do not begin at multiples of four
/// elements, or columns that are no multiple of 32: there [`linear`] serves.
pub fn linear_three(
    weights: [Matrix; 3],
    rows: u32,
    at: [Loc; 4],
) -> Result<Dispatch, KernelError> {
    let [a, b, c] = weights;
    a.check()?;
    let same = |w: &Matrix| w.format == a.format && w.cols == a.cols && w.first == 0;
    if !weights.iter().all(same) || rows > FEW || !a.aligned(at[0]) {
        return unsupported("three products at once of such weights or rows");
    }
    let few = rows.next_power_of_two();
    let split = split(a.cols);
    let each = split.teams * team_rows(few);
    let groups = [a, b, c].map(|w| w.rows.div_ceil(each));
    let mut params = vec![
        a.cols,
        a.format.row_units(a.cols),
        rows,
        at[0].offset,
        at[0].stride,
        a.rows,
        b.rows,
        c.rows,
        groups[0],
        groups[0] + groups[1],
    ];
    params.extend(at[1..].iter().flat_map(|l| [l.offset, l.stride]));
    Dispatch {
        spec: &THREE[a.format as usize],
        overrides: vec![
            ("ROWS", f64::from(few)),
            ("SLOTS", f64::from(few.max(2))),
            ("LANES", f64::from(split.lanes)),
            ("TEAMS", f64::from(split.teams)),
            ("WG", f64::from(split.lanes * split.teams)),
        ],
        params,
        grid: [groups.iter().sum(), u32::from(rows > 0), 1],
    }
    .checked()
}

/// `act(x * gate^T + bias) * (x * up^T + bias)` for at most eight rows. `gate` describes both
/// weights, or the parts of both that are bound.
///
/// Bindings: gate; up; bias of the gate (f32, of the whole weight; the gate again if there is none);
/// bias of up (likewise); x; results, which may not overlap x.
///
/// # Errors
/// As for [`linear_three`].
pub fn gate_up(
    gate: Matrix,
    act: Activation,
    bias: bool,
    rows: u32,
    [x, y]: [Loc; 2],
) -> Result<Dispatch, KernelError> {
    gate.check()?;
    let few = rows.next_power_of_two();
    let Split { lanes, teams } = split(gate.cols);
    // A thread has at most one result.
    if rows > FEW || !gate.aligned(x) || few.max(2) > lanes {
        return unsupported("a gate and up at once of such rows");
    }
    let (act, numbers) = activation(act);
    Dispatch {
        spec: &GATE_UP[gate.format as usize],
        overrides: vec![
            ("ROWS", f64::from(few)),
            ("SLOTS", f64::from(few.max(2))),
            ("LANES", f64::from(lanes)),
            ("TEAMS", f64::from(teams)),
            ("WG", f64::from(lanes * teams)),
            ("BIAS", f64::from(u8::from(bias))),
            ("ACT", act),
        ],
        params: vec![
            gate.rows,
            gate.cols,
            gate.format.row_units(gate.cols),
            gate.first,
            rows,
            numbers[0],
            numbers[1],
            x.offset,
            x.stride,
            y.offset,
            y.stride,
        ],
        grid: [gate.rows.div_ceil(teams * team_rows(few)), u32::from(rows > 0), 1],
    }
    .checked()
}

/// How a workgroup shares out weight rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// Threads that share weight rows.
    pub lanes: u32,
    /// Teams of so many threads, each with some weight rows.
    pub teams: u32,
}

/// Weight rows of a team of experts' products.
pub(super) const EACH: u32 = 4;

/// Weight rows of a team, for so many rows of activations.
fn team_rows(few: u32) -> u32 {
    if few == 1 { 8 } else { 4 }
}

/// The split for rows of `cols` columns.
pub(super) fn split(cols: u32) -> Split {
    // A lane takes 32 columns at a time.
    let lanes = cols.div_ceil(32).next_power_of_two().clamp(1, 32);
    Split { lanes, teams: (64 / lanes).max(2) }
}
