//! Recurrences: states of one row for each sequence, which every position changes. Each binds the
//! batch's words, the state from its first row on, and results, behind what its function names.

use troika_graph::{Decay, DeltaRule, Mamba2, ShortConv};

use super::Binding::{Value, Weight};
use super::attention::BatchWords;
use super::spec::{
    ACTIVATION, Dispatch, KernelResult, KernelSpec, Loc, MAX_GROUPS, flag, unsupported, words,
};

/// The most workgroups that share out the sequences of a batch.
const MOST_SEQUENCES: u32 = 64;
/// As in `short_conv.wgsl`.
const MOST_TAPS: usize = 16;
/// As in `scan.wgsl`: the threads of a workgroup, and the lines of a state that each keeps.
const THREADS: u32 = 128;
const EACH: u32 = 32;

const SEQUENCES: &str = include_str!("wgsl/sequences.wgsl");
const SCAN: &str = include_str!("wgsl/scan.wgsl");

static SHORT_CONV: KernelSpec = KernelSpec::new(
    "short_conv",
    &[ACTIVATION, SEQUENCES, include_str!("wgsl/short_conv.wgsl")],
    &[Weight, Value, Value, Value, Value],
);

static MAMBA2: KernelSpec = KernelSpec {
    name: "mamba2",
    parts: &[ACTIVATION, SEQUENCES, SCAN, include_str!("wgsl/mamba2.wgsl")],
    bindings: &[Weight, Value, Value, Value, Value, Value],
    workgroup_bytes: 2 * THREADS * 4,
};

static DELTA_GATES: KernelSpec = KernelSpec::new(
    "delta_gates",
    &[ACTIVATION, include_str!("wgsl/delta_gates.wgsl")],
    &[Weight, Value, Value, Value],
);

static DELTA_RULE: KernelSpec = KernelSpec {
    name: "delta_rule",
    parts: &[SEQUENCES, SCAN, include_str!("wgsl/delta_rule.wgsl")],
    bindings: &[Value, Value, Value, Value, Value, Value, Value],
    workgroup_bytes: 2 * THREADS * 20,
};

/// A short convolution; `at` are inputs and results. Binds the weight, then the bias,
/// and inputs.
///
/// # Errors
/// More than 16 taps; more columns than a dispatch may have.
pub fn short_conv(op: &ShortConv, batch: BatchWords, at: &[Loc]) -> KernelResult {
    if op.taps > MOST_TAPS {
        return unsupported(format!("a convolution of {} taps", op.taps));
    }
    let (width, taps) = (op.width as u32, op.taps as f64);
    let (bias, silu, gated) = (flag(op.bias.is_some()), flag(op.silu), flag(op.gated));
    let overrides = vec![("TAPS", taps), ("BIAS", bias), ("SILU", silu), ("GATED", gated)];
    let params = [batch.rows, batch.count, width].into_iter().chain(words(at)).collect();
    let grid = [width.div_ceil(64), batch.count.min(MOST_SEQUENCES), 1];
    Dispatch { spec: &SHORT_CONV, overrides, params, grid }.checked()
}

/// A dispatch over the heads and columns of states of so many lines, by a kernel whose parameters
/// begin with `numbers`: heads, columns, and others.
fn scan(
    spec: &'static KernelSpec,
    lines: usize,
    batch: BatchWords,
    numbers: &[u32],
    at: &[Loc],
) -> KernelResult {
    let parts = (lines as u32).div_ceil(EACH).max(1);
    if parts > THREADS {
        return unsupported(format!("states of heads of {lines} lines"));
    }
    let overrides = vec![("LINES", lines as f64), ("PARTS", f64::from(parts))];
    let params = [batch.rows, batch.count].into_iter().chain(numbers.iter().copied());
    let params = params.chain(words(at)).collect();
    let groups = numbers[0].saturating_mul(numbers[1].div_ceil(THREADS / parts));
    let grid = [groups, batch.count.min(MOST_SEQUENCES), 1];
    Dispatch { spec, overrides, params, grid }.checked()
}

/// A selective scan; `at` are inputs, steps and results. Binds the rates of heads, below zero,
/// what results keep of inputs, and what is added to steps, one behind the other; inputs; and steps.
///
/// # Errors
/// More than 4096 state elements; more heads than a dispatch may have.
pub fn mamba2(op: &Mamba2, batch: BatchWords, at: &[Loc]) -> KernelResult {
    let [heads, columns, share] = [op.heads, op.head_dim, op.heads / op.groups].map(|n| n as u32);
    let [least, most] = [op.dt_min, op.dt_max].map(|t| t.clamp(f32::MIN, f32::MAX).to_bits());
    scan(&MAMBA2, op.state_size, batch, &[heads, columns, share, least, most], at)
}

/// Floats of a row of [`delta_gates`].
pub fn gate_floats(op: &DeltaRule) -> usize {
    op.value_heads.saturating_mul(if op.by_channel { op.key_dim + 1 } else { 2 })
}

/// What a delta rule keeps of its states, and its shares of new values; `at` are what these follow
/// from, and results. Binds the rates of heads, below zero, and what is in `at`; nothing else.
///
/// # Errors
/// More columns than a dispatch may have.
pub fn delta_gates(op: &DeltaRule, rows: u32, at: [Loc; 3]) -> KernelResult {
    let least = if let Decay::Bounded { least } = op.decay { least } else { 0.0 };
    let (heads, columns) = (op.value_heads as u32, gate_floats(op) as u32);
    let channels = if op.by_channel { op.key_dim as u32 } else { 1 };
    let numbers = [rows, heads, channels, op.beta_scale.to_bits(), least.to_bits()];
    let overrides = vec![("BOUNDED", flag(op.decay != Decay::Softplus))];
    let params = numbers.into_iter().chain(words(&at)).collect();
    let grid = [columns.div_ceil(256), rows.min(MAX_GROUPS), 1];
    Dispatch { spec: &DELTA_GATES, overrides, params, grid }.checked()
}

/// A gated delta rule; `at` are values, queries, keys, results of [`delta_gates`], and results.
/// Binds what is in `at` but for the last.
///
/// # Errors
/// Keys of more than 4096 elements; more heads than a dispatch may have.
pub fn delta_rule(op: &DeltaRule, batch: BatchWords, at: &[Loc]) -> KernelResult {
    let numbers = [op.value_heads, op.value_dim, op.key_heads].map(|n| n as u32);
    let mut made = scan(&DELTA_RULE, op.key_dim, batch, &numbers, at)?;
    made.overrides.extend([("TILED", flag(op.tiled)), ("CHANNELS", flag(op.by_channel))]);
    Ok(made)
}
