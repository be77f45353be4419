//! Experts: choosing them, and their feed-forwards.

use troika_graph::{Activation, Router, Score};

use super::Binding::{Value, Weight};
use super::elements::activation;
use super::products::{ByAccess, EACH, Matrix, Split, by_access, by_format, split};
use super::spec::{
    Dispatch, KernelResult, KernelSpec, Loc, MAX_GROUPS, TOTAL, flag, unsupported, words,
};

static ROUTER: KernelSpec = KernelSpec {
    name: "router",
    parts: &[TOTAL, include_str!("wgsl/router.wgsl")],
    bindings: &[Value, Value, Value, Weight, Weight],
    workgroup_bytes: 14 * 1024,
};

/// Chooses experts for `rows` rows. Among equal scores the expert with the lower number is chosen.
///
/// Bindings: logits; ids (i32); weights; the bias and the scales of experts, if there are any. `at` has the first three in this
/// order.
///
/// # Errors
/// More than 1024 experts, 64 chosen ones or 128 groups; a sparse mixer that does not choose two.
pub fn router(op: &Router, rows: u32, at: [Loc; 3]) -> KernelResult {
    let (groups, kept) = op.groups.unwrap_or((1, 1));
    let fits = op.experts <= 1024 && op.top_k <= 64 && op.top_k <= op.experts && groups <= 128;
    if !fits || groups == 0 || op.experts == 0 {
        return unsupported(format!("{} of {} experts", op.top_k, op.experts));
    }
    let (score, eps) = match op.score {
        Score::Softmax => (0.0, 0.0),
        Score::TopKSoftmax => (1.0, 0.0),
        Score::Sigmoid => (2.0, 0.0),
        Score::SparseMixer { eps } if op.top_k == 2 => (3.0, eps),
        Score::SparseMixer { .. } => return unsupported("a sparse mixer of other than 2 experts"),
    };
    let mut params = vec![rows];
    params.extend([op.experts, op.top_k, groups, kept].map(|n| n as u32));
    params.extend([op.scale, eps].map(f32::to_bits));
    params.extend(words(&at));
    let overrides = vec![
        ("SCORE", score),
        ("NORMALIZE", flag(op.normalize)),
        ("GROUPED", flag(op.groups.is_some())),
        ("BIASED", flag(op.bias.is_some())),
        ("SCALED", flag(op.expert_scales.is_some())),
    ];
    Dispatch { spec: &ROUTER, overrides, params, grid: [rows.min(MAX_GROUPS), 1, 1] }.checked()
}

static GATE_UP: ByAccess = by_access!(
    "experts_gate_up",
    [Weight, Weight, Weight, Weight, Value, Value, Value],
    "two_weights",
    ["x"],
    ["activation", "experts", "experts_gate_up"]
);
static DOWN: ByAccess = by_access!(
    "experts_down",
    [Weight, Weight, Value, Value, Value, Value, Value],
    "one_weight",
    ["x"],
    ["experts", "experts_down"]
);

/// The same weight of several experts, one after another in one binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// The weight of each expert; its `first` is 0.
    pub each: Matrix,
    /// The number of the first expert in the binding.
    pub first: u32,
    /// Experts in the binding.
    pub count: u32,
}

impl Stack {
    /// The first immediates of its products, and their constants.
    fn product(&self, shape: ExpertShape) -> (Vec<u32>, Vec<(&'static str, f64)>, Split) {
        let (w, split) = (self.each, split(self.each.cols));
        let units = w.format.row_units(w.cols);
        let capacity = shape.capacity.unwrap_or(0);
        let params = vec![w.rows, w.cols, units, self.first, self.count, shape.top_k, capacity];
        let overrides = vec![
            ("LANES", f64::from(split.lanes)),
            ("TEAMS", f64::from(split.teams)),
            ("WG", f64::from(split.lanes * split.teams)),
            ("BIAS", flag(shape.bias)),
            w.rounding(),
        ];
        (params, overrides, split)
    }
}

/// Rows and the experts that they go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// Rows of x.
    pub rows: u32,
    /// Experts of a row.
    pub top_k: u32,
    /// For a group of experts ([`troika_graph::ExpertGroup`]) the rows of each expert: row `r` goes
    /// through expert `r / capacity` with weight 1, and ids and weights are not read; `top_k` is 1.
    pub capacity: Option<u32>,
    /// Whether there are biases.
    pub bias: bool,
}

/// `h[row * top_k + slot] = act(gate x + bias) * (up x + bias)` with the weights of the slot's
/// expert. Pairs whose expert is not in the binding are left to other dispatches.
///
/// Bindings: gates; ups, of the same shape and format; biases of gates (f32, of the experts in the
/// binding, one after another; the gates again if there are none); biases of ups (likewise); x; ids
/// (i32, `[rows, top_k]`); h (`[rows * top_k, inter]`). `at` has the last three in this order.
///
/// # Errors
/// Columns that are not whole blocks; more pairs than a dispatch may have.
pub fn experts_gate_up(
    gates: Stack,
    act: Activation,
    shape: ExpertShape,
    at: [Loc; 3],
) -> KernelResult {
    let w = gates.each;
    w.check()?;
    let (act, numbers) = activation(act);
    let (mut params, mut overrides, split) = gates.product(shape);
    params.extend(numbers);
    params.extend(words(&at));
    overrides.push(("ACT", act));
    let spec = w.kernel(&GATE_UP, at[0]);
    let grid = [w.rows.div_ceil(split.teams * 2), shape.rows * shape.top_k, 1];
    Dispatch { spec, overrides, params, grid }.checked()
}

/// What experts' results are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Nothing.
    Nothing,
    /// What y holds: so do the dispatches after the first when experts lie in several bindings.
    Results,
    /// Another value.
    Value(Loc),
}

/// `y[row] = sum over slots of weight * (down h[row * top_k + slot] + bias)`, in the order of slots.
/// Experts that are not in the binding add nothing.
///
/// Bindings: downs; their biases (f32, of the experts in the binding; the downs again if there are
/// none); h; ids (i32, `[rows, top_k]`); weights (`[rows, top_k]`); y; the value to add to (y again
/// if there is none). `at` has h, ids, weights and y.
///
/// # Errors
/// As for [`experts_gate_up`].
pub fn experts_down(
    downs: Stack,
    shape: ExpertShape,
    before: Before,
    at: [Loc; 4],
) -> KernelResult {
    let w = downs.each;
    w.check()?;
    let (mut params, mut overrides, split) = downs.product(shape);
    let (add, other) = match before {
        Before::Nothing => (0, at[3]),
        Before::Results => (1, at[3]),
        Before::Value(other) => (2, other),
    };
    params.push(add);
    params.extend(words(&at));
    params.extend(words(&[other]));
    overrides.push(("EACH", f64::from(EACH)));
    let spec = w.kernel(&DOWN, at[0]);
    let grid = [w.rows.div_ceil(split.teams * EACH), shape.rows, 1];
    Dispatch { spec, overrides, params, grid }.checked()
}
