//! Products with weights, and looking rows up.

use troika_graph::{Activation, ActivationFormat};

use super::Binding::{self, Value, Weight};
use super::elements::activation;
use super::format::WeightFormat;
use super::spec::{
    Dispatch, KernelError, KernelResult, KernelSpec, Loc, MAX_GROUPS, flag, unsupported, words,
};

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
    /// Whether activations are rounded to eight bits ([`ActivationFormat::INT8`]) on their way.
    pub eight_bits: bool,
}

impl Matrix {
    pub(super) fn check(&self) -> Result<(), KernelError> {
        let blocks = self.cols > 0 && self.cols.is_multiple_of(self.format.block());
        if !blocks || self.cols > 1 << 24 {
            return unsupported(format!("{:?} weights of {} columns", self.format, self.cols));
        }
        if self.eight_bits && !self.format.is_whole_numbers() {
            return unsupported(format!("{:?} weights and activations in eight bits", self.format));
        }
        Ok(())
    }

    /// The constant that says how activations are rounded.
    pub(super) fn rounding(&self) -> (&'static str, f64) {
        ("EIGHT_BITS", flag(self.eight_bits))
    }

    /// The kernel for its format. Rows of a value are read in units of four elements where they begin
    /// at such units, and steps of 32 columns are whole.
    pub(super) fn kernel(&self, of: &'static ByAccess, x: Loc) -> &'static KernelSpec {
        let steps = [x.offset.is_multiple_of(4), x.stride.is_multiple_of(4)];
        let is_aligned = steps == [true; 2] && self.cols.is_multiple_of(32);
        &of[usize::from(!is_aligned)][self.format as usize]
    }
}

/// Whether a product's activations are rounded to eight bits.
///
/// # Errors
/// They are in another format that is not f32.
pub(crate) fn is_eight_bits(format: ActivationFormat) -> Result<bool, KernelError> {
    match format {
        ActivationFormat::INT8 => Ok(true),
        ActivationFormat::F32 => Ok(false),
        _ => unsupported(format!("activations in {format}: it takes f32 and int8")),
    }
}

/// A kernel for every format of weights.
pub(super) type ByFormat = [KernelSpec; 21];
/// The same where activations are read in units of four, and where they are read anywhere.
pub(super) type ByAccess = [ByFormat; 2];

/// The specs of a kernel for every format of weights. Its parts are the first ones given, those of the
/// format, then the others. In a [`ByAccess`], those of `$access` come before the others.
macro_rules! by_format {
    ($name:tt, $bindings:tt, $bytes:tt, $first:tt, $rest:tt) => {
        [
            by_format!(@one "f32" ["f32" "halves" "floats" "other_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "f16" ["f16" "halves" "floats" "other_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "bf16" ["bf16" "halves" "floats" "other_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "q8_0" ["q8_0" "bytes" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "q8_1" ["q8_1" "bytes" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "q4_0" ["q4_0" "nibbles" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "q4_1" ["q4_1" "nibbles" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "q4z" ["q4z" "nibbles" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "mxfp4" ["mxfp4" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "q4k" ["group_scales" "q4k" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "q5k" ["group_scales" "q5k" "halves" "packed_halves" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "q6k" ["q6k" "halves" "packed_halves" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "q2k" ["q2k" "halves" "packed_halves" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "codes16" ["codes16" "codes" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "codes256" ["codes256" "codes" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "twobits" ["twobits" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "onebit" ["onebit" "halves" "packed_halves" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "grid16" ["grid16" "few_bits" "halves" "packed_halves" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "grid32" ["grid32" "few_bits" "halves" "packed_halves" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "shift16" ["shift16" "few_bits" "halves" "packed_halves" "whole_numbers"] $name $bindings $bytes $first $rest),
            by_format!(@one "shift32" ["shift32" "few_bits" "halves" "packed_halves" "whole_numbers"] $name $bindings $bytes $first $rest),
        ]
    };
    (
        @one $format:literal [$($own:literal)+] [$($name:literal),+] $bindings:tt $bytes:tt
        [$($first:literal),*] [$($($part:literal)+),*]
    ) => {
        KernelSpec {
            name: concat!($($name,)+ "_", $format),
            parts: &[
                $(include_str!(concat!("wgsl/", $first, ".wgsl")),)*
                include_str!("wgsl/weights.wgsl"),
                $(include_str!(concat!("wgsl/format/", $own, ".wgsl")),)+
                $(include_str!(concat!("wgsl/", $($part,)+ ".wgsl")),)*
            ],
            bindings: &$bindings,
            workgroup_bytes: $bytes * 1024,
        }
    };
}
pub(super) use by_format;

/// A [`ByAccess`].
macro_rules! by_access {
    ($name:literal, $bindings:tt, $weights:tt, [$($access:literal),*], [$($part:literal),*]) => {
        [
            by_format!([$name], $bindings, 16, [$weights], [$($access "_units",)* $($part),*]),
            by_format!([$name, "_any"], $bindings, 16, [$weights], [$($access "_any",)* $($part),*]),
        ]
    };
}
pub(super) use by_access;

static EMBED: ByFormat =
    by_format!(["embed"], [Weight, Value, Value], 0, ["one_weight"], ["embed"]);

static OUTLIERS: ByFormat =
    by_format!(["outliers"], [Weight, Weight, Value, Value], 5, ["one_weight"], ["outliers"]);

/// What products of one weight are bound to.
const PRODUCT: [Binding; 8] = [Weight, Weight, Value, Value, Value, Value, Value, Value];
static FEW_ROWS: ByAccess = by_access!(
    "few_rows",
    PRODUCT,
    "one_weight",
    ["x", "vectors"],
    ["team_sizes", "activation", "product", "few_rows", "row_norm", "team"]
);
static TILES: ByAccess = by_access!(
    "tiles",
    PRODUCT,
    "one_weight",
    ["x", "vectors"],
    ["activation", "product", "tiles"]
);
static MATRIX_TILES: ByFormat = by_format!(
    ["matrix_tiles"],
    PRODUCT,
    44,
    ["matrix_units", "one_weight"],
    ["x_units", "vectors_units", "activation", "product", "matrix_tiles"]
);
static THREE: ByAccess = by_access!(
    "three_products",
    [Weight, Weight, Weight, Weight, Value, Value, Value, Value],
    "three_weights",
    ["x", "vectors"],
    ["team_sizes", "three_products", "row_norm", "team"]
);
static GATE_UP: ByAccess = by_access!(
    "gate_up",
    [Weight, Weight, Weight, Value, Value],
    "two_weights",
    ["x", "vectors"],
    ["team_sizes", "activation", "gate_up", "row_norm", "team"]
);

/// Looks up the rows of a table and multiplies them by `scale`. Ids that are not among the table's
/// rows in the binding are left to other dispatches; ids beyond the whole table write nothing.
///
/// Bindings: the table; ids (i32; one a row); results.
///
/// # Errors
/// Columns that are not whole blocks; more rows than a dispatch may have.
pub fn embed(table: Matrix, scale: f32, rows: u32, ids: Loc, y: Loc) -> KernelResult {
    table.check()?;
    let units = table.format.row_units(table.cols);
    let mut params = vec![table.first, table.rows, table.cols, units];
    params.extend(words(&[ids, y]));
    params.extend([rows, scale.to_bits()]);
    let (spec, overrides) = (&EMBED[table.format as usize], vec![]);
    let grid = [table.cols.div_ceil(16).div_ceil(64), rows.min(MAX_GROUPS), 1];
    Dispatch { spec, overrides, params, grid }.checked()
}

/// The product of what clipping takes from `rows` rows of activations: sixteen columns without any
/// are left out. Results go to the columns of y as in [`linear`].
///
/// Bindings: the weight; the step of numbers, the largest of them, and what each column is divided by
/// (f32); x; results, which may not overlap x.
///
/// # Errors
/// Columns that are not whole blocks; more rows than a dispatch may have.
pub fn outliers(weight: Matrix, rows: u32, x: Loc, y: Loc) -> KernelResult {
    weight.check()?;
    let mut params = vec![weight.first, weight.rows, weight.cols];
    params.extend([weight.format.row_units(weight.cols), rows]);
    params.extend(words(&[x, y]));
    let (spec, overrides) = (&OUTLIERS[weight.format as usize], vec![]);
    let grid = [weight.rows.div_ceil(64), rows.min(MAX_GROUPS), 1];
    Dispatch { spec, overrides, params, grid }.checked()
}

/// Rows of activations for which a weight is read once; more go through tiles.
pub(crate) const FEW: u32 = 8;

/// The norm of rows of activations on their way to products of at most eight rows. Its weight is the
/// first of the vectors that are bound, its bias the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowNorm {
    /// Whether the mean is subtracted.
    pub layer: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// Added to the mean square or the variance.
    pub eps: f32,
    /// Added to the weights.
    pub offset: f32,
}

/// The constant and the numbers of a norm in the kernels.
fn norm_numbers(norm: Option<RowNorm>) -> (f64, [u32; 2]) {
    let Some(norm) = norm else { return (0.0, [0, 0]) };
    let kind = match (norm.layer, norm.bias) {
        (false, _) => 1.0,
        (true, false) => 2.0,
        (true, true) => 3.0,
    };
    (kind, [norm.eps.to_bits(), norm.offset.to_bits()])
}

/// What a product of a few or many rows takes, and what becomes of its results: a bias is added, they
/// are activated, multiplied by the sigmoid of a number of their row, and added to other values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Around {
    /// The norm of x.
    pub norm: Option<RowNorm>,
    /// Where the normalised rows are kept.
    pub normed: Option<Loc>,
    /// Where biases begin among the vectors.
    pub bias: Option<u32>,
    /// The activation.
    pub act: Option<Activation>,
    /// The numbers of rows.
    pub gate: Option<Loc>,
    /// Values to add, the first ones first.
    pub addends: [Option<Loc>; 2],
}

/// `y = x * weight^T` for `rows` rows, with what is around it. Results go to the columns of y that
/// belong to the binding's rows of the weight: from `weight.first` on. So do addends.
///
/// Bindings: the weight; vectors (f32: those of the norm, biases of the whole weight; the weight
/// again if there are none); x; results; gates; the first and the second value to add; normalised
/// rows (x again for each of these that is not there). Results may be the rows of a value to add
/// themselves, and overlap no other.
///
/// # Errors
/// Columns that are not whole blocks; more rows than a dispatch may have; a norm and more than eight
/// rows; an activation that takes a gate and an up.
pub fn linear(weight: Matrix, rows: u32, around: &Around, x: Loc, y: Loc) -> KernelResult {
    product(weight, 1, rows, around, [x, y])
}

/// `y[:, h] = x[:, h] * w[h]^T` for `rows` rows and `heads` heads, whose weights lie one after
/// another in one binding (`weights.rows` counts the rows of all heads, `weights.first` is 0).
///
/// Bindings: the weights; the weights again; x; results, which may not overlap x; x four times.
///
/// # Errors
/// As for [`linear`]; weights that are not of whole heads.
pub fn head_linear(weights: Matrix, heads: u32, rows: u32, x: Loc, y: Loc) -> KernelResult {
    if heads == 0 || !weights.rows.is_multiple_of(heads) || weights.first != 0 {
        return unsupported(format!("{} weight rows of {heads} heads", weights.rows));
    }
    product(weights, heads, rows, &Around::default(), [x, y])
}

fn product(w: Matrix, heads: u32, rows: u32, around: &Around, [x, y]: [Loc; 2]) -> KernelResult {
    w.check()?;
    let head_rows = w.rows / heads;
    if matches!(around.act, Some(Activation::ClampedSwiglu { .. })) {
        return unsupported("an activation of a gate and an up, and no up");
    }
    let (act, numbers) = activation(around.act.unwrap_or(Activation::Silu));
    let (norm, norm_numbers) = norm_numbers(around.norm);
    let [a, b] = around.addends.map(|a| a.unwrap_or(x));
    let (gate, normed) = (around.gate.unwrap_or(x), around.normed.unwrap_or(x));
    let mut params = vec![head_rows, w.cols, w.format.row_units(w.cols), w.first, rows];
    params.extend([x.offset, x.stride, y.offset, y.stride, around.bias.unwrap_or(0) + w.first]);
    params.extend(numbers);
    params.extend(words(&[gate, a, b]));
    params.extend(norm_numbers);
    params.extend(words(&[normed]));
    let mut overrides = vec![
        ("BIAS", flag(around.bias.is_some())),
        ("ACTIVATE", flag(around.act.is_some())),
        ("ACT", act),
        ("GATED", flag(around.gate.is_some())),
        ("ADDENDS", around.addends.iter().flatten().count() as f64),
        w.rounding(),
    ];
    if rows > FEW {
        if around.norm.is_some() {
            return unsupported("a norm and a product at once of many rows");
        }
        let grid = [head_rows.div_ceil(64), rows.div_ceil(64), heads];
        return Dispatch { spec: w.kernel(&TILES, x), overrides, params, grid }.checked();
    }
    overrides.push(("KEEP", flag(around.normed.is_some())));
    let team = Team::new(rows, lanes(w.cols)).for_rows(head_rows, &w);
    overrides.extend(team.overrides(norm));
    let grid = [head_rows.div_ceil(team.rows), u32::from(rows > 0), heads];
    Dispatch { spec: w.kernel(&FEW_ROWS, x), overrides, params, grid }.checked()
}

/// What matrix units of a device must multiply: matrices of 16 x 16 f16 numbers, summed in f32.
pub(crate) const MATRIX_SIZE: u32 = 16;
/// Threads of a subgroup, which use a matrix unit together.
pub(crate) const MATRIX_THREADS: u32 = 32;
/// Workgroup memory of the kernels that use matrix units.
pub(crate) const MATRIX_BYTES: u32 = MATRIX_TILES[0].workgroup_bytes;

/// Makes a dispatch one for matrix units, if it multiplies many rows of activations in eight bits.
/// These and the weights are then rounded to f16.
pub fn with_matrix_units(of: &mut Dispatch) {
    let format = TILES[0].iter().position(|spec| std::ptr::eq(spec, of.spec));
    if let Some(format) = format.filter(|_| of.overrides.contains(&("EIGHT_BITS", 1.0))) {
        let (rows, x_rows) = (of.params[0], of.params[4]);
        of.spec = &MATRIX_TILES[format];
        of.grid = [rows.div_ceil(128), x_rows.div_ceil(128), of.grid[2]];
    }
}

/// Products of a few rows with several weights at once.
#[derive(Clone, Copy, Debug)]
pub struct FewRows {
    /// Rows of x, at most eight.
    pub rows: u32,
    /// The norm of x.
    pub norm: Option<RowNorm>,
    /// Where biases begin among the vectors: those of all weights, one after another.
    pub bias: Option<u32>,
}

/// [`linear`] with three weights of one format and one width at once, for at most eight rows. With
/// two weights the third has no rows, and the second is bound again.
///
/// Bindings: the weights; vectors (f32: those of the norm, biases; the first weight again if there
/// are none); x; their results, which may not overlap x. `at` has x and the results.
///
/// # Errors
/// More rows; weights that differ, or that are parts: there [`linear`] serves.
pub fn linear_three(weights: [Matrix; 3], of: FewRows, at: [Loc; 4]) -> KernelResult {
    let [a, b, c] = weights;
    a.check()?;
    let kind = |w: &Matrix| (w.format, w.cols, w.eight_bits, w.first);
    let same = |w: &Matrix| kind(w) == (a.format, a.cols, a.eight_bits, 0);
    if !weights.iter().all(same) || of.rows > FEW {
        return unsupported("three products at once of such weights or rows");
    }
    let team = Team::new(of.rows, lanes(a.cols));
    let groups = [a, b, c].map(|w| w.rows.div_ceil(team.rows));
    let (norm, norm_numbers) = norm_numbers(of.norm);
    let mut params = vec![a.cols, a.format.row_units(a.cols), of.rows, at[0].offset, at[0].stride];
    params.extend([a.rows, b.rows, c.rows, groups[0], groups[0] + groups[1]]);
    params.extend(words(&at[1..]));
    params.push(of.bias.unwrap_or(0));
    params.extend(norm_numbers);
    let mut overrides = vec![("BIAS", flag(of.bias.is_some())), a.rounding()];
    overrides.extend(team.overrides(norm));
    let grid = [groups.iter().sum(), u32::from(of.rows > 0), 1];
    Dispatch { spec: a.kernel(&THREE, at[0]), overrides, params, grid }.checked()
}

/// `act(x * gate^T + bias) * (x * up^T + bias)` for at most eight rows. `gate` describes both
/// weights, or the parts of both that are bound; `all` are the rows of each whole weight.
///
/// Bindings: gate; up; vectors (f32: those of the norm, biases of the gate, those of up; the gate
/// again if there are none); x; results, which may not overlap x.
///
/// # Errors
/// Columns that are not whole blocks; more rows.
pub fn gate_up(
    gate: Matrix,
    all: u32,
    act: Activation,
    of: FewRows,
    [x, y]: [Loc; 2],
) -> KernelResult {
    gate.check()?;
    if of.rows > FEW {
        return unsupported("a gate and up at once of many rows");
    }
    // A thread has at most one result, so that few columns have threads without any.
    let lanes = lanes(gate.cols).max(of.rows.next_power_of_two());
    let team = Team::new(of.rows, lanes).for_rows(gate.rows, &gate);
    let (act, numbers) = activation(act);
    let (norm, norm_numbers) = norm_numbers(of.norm);
    let bias = of.bias.unwrap_or(0) + gate.first;
    let mut params = vec![gate.rows, gate.cols, gate.format.row_units(gate.cols), gate.first];
    params.extend([of.rows, numbers[0], numbers[1], x.offset, x.stride, y.offset, y.stride]);
    params.extend([bias, bias + all]);
    params.extend(norm_numbers);
    let mut overrides = vec![("BIAS", flag(of.bias.is_some())), ("ACT", act), gate.rounding()];
    overrides.extend(team.overrides(norm));
    let grid = [gate.rows.div_ceil(team.rows), u32::from(of.rows > 0), 1];
    Dispatch { spec: gate.kernel(&GATE_UP, x), overrides, params, grid }.checked()
}

/// How a workgroup multiplies a few rows.
struct Team {
    /// Rows of activations that the kernel is made for.
    made_for: u32,
    split: Split,
    /// How often a workgroup computes products of some weight rows.
    rounds: u32,
    /// Weight rows of a workgroup.
    rows: u32,
}

/// Weight rows of a team.
const TEAM_ROWS: u32 = 4;
/// Units of workgroup memory that threads share: `POOL` of the kernels.
const POOL: u32 = 896;
/// Workgroups that keep a large device busy: rounds leave at least this number.
const BUSY_GROUPS: u32 = 256;

impl Team {
    /// One for some rows of activations; `lanes` threads share weight rows.
    fn new(rows: u32, lanes: u32) -> Team {
        let made_for = rows.next_power_of_two();
        // Sums of all threads fit in the workgroup's memory.
        let threads = 512 / made_for.max(2);
        let split = Split { lanes, teams: threads / lanes };
        Team { made_for, split, rounds: 1, rows: split.teams * TEAM_ROWS }
    }

    /// One whose workgroups compute several rounds of weight rows, where there are many of them: what
    /// is done once a workgroup takes as long as a round. All activations must fit in its memory.
    fn for_rows(mut self, rows: u32, weight: &Matrix) -> Team {
        let bytes = 3 * self.made_for * weight.cols.div_ceil(32);
        let sums = self.split.lanes * self.split.teams * self.made_for;
        if weight.eight_bits && bytes + sums <= POOL {
            self.rounds = (rows / (self.rows * BUSY_GROUPS)).max(1);
            self.rows *= self.rounds;
        }
        self
    }

    fn overrides(&self, norm: f64) -> [(&'static str, f64); 6] {
        let Split { lanes, teams } = self.split;
        [
            ("ROWS", f64::from(self.made_for)),
            ("LANES", f64::from(lanes)),
            ("TEAMS", f64::from(teams)),
            ("WG", f64::from(lanes * teams)),
            ("ROUNDS", f64::from(self.rounds)),
            ("NORM", norm),
        ]
    }
}

/// How a workgroup shares out weight rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Split {
    /// Threads that share weight rows.
    pub lanes: u32,
    /// Teams of `lanes` threads, each with some weight rows.
    pub teams: u32,
}

/// Weight rows of a team of experts' products.
pub(super) const EACH: u32 = 4;

/// The split for rows of `cols` columns.
pub(super) fn split(cols: u32) -> Split {
    let lanes = lanes(cols);
    Split { lanes, teams: (64 / lanes).max(2) }
}

/// Threads that share rows of `cols` columns: a lane takes 32 of them at a time.
fn lanes(cols: u32) -> u32 {
    cols.div_ceil(32).next_power_of_two().clamp(1, 32)
}
