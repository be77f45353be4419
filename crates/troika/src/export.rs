//! Models as packages of other runtimes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use crate::devices::npu::mil::{
    Package, PackageModel, PackageOptions, PackagePart, PackageStretch, PackageValue, write_package,
};
use crate::error::Error;
use troika_engine::EngineError;
use troika_graph::partition::expert_group;
use troika_graph::{DType, Node, Op};
use troika_model::lower::{EdgeId, LowerOptions, Lowered, Segment, SegmentKind, lower};
use troika_model::spec::ModelSpec;
use troika_plan::{Phase, Plan, Split};
use troika_program::ProgramError;
use troika_weights::WeightStore;

/// Experts that share a function, each with rows of its own (NPUMoE, section 4.2).
#[derive(Clone, Debug)]
pub enum ExpertFunctions {
    /// As they follow each other.
    Even {
        /// The most experts of a function.
        experts: usize,
        /// Rows of each.
        capacity: usize,
    },
    /// As a plan groups them for prompts, of a calibration for example.
    Planned(Box<Plan>),
}

/// How to export a model to Core ML.
#[derive(Clone, Debug)]
pub struct CoreMlOptions {
    /// What the package is like.
    pub package: PackageOptions,
    /// Whether token ids go in and logits come out; else states of tokens do, and another device looks
    /// embeddings up and computes the head.
    pub head_inside: bool,
    /// How experts are functions; `None`: they are left to another device.
    pub experts: Option<ExpertFunctions>,
}

/// Writes a model as a Core ML package, a new folder, as long as it may continue.
///
/// # Errors
/// A model that the package cannot hold, or files that cannot be read or written.
pub fn export_core_ml(
    spec: &ModelSpec,
    store: &WeightStore,
    out: &Path,
    options: &CoreMlOptions,
    may_continue: &dyn Fn() -> bool,
) -> Result<Package, Error> {
    let package = &options.package;
    let rows = package.functions.iter().map(|(_, rows)| *rows).max().unwrap_or(1);
    let with = LowerOptions { max_rows: rows, max_kv: package.positions, kv_dtype: DType::F16 };
    let lowered = lower(spec, &|key| store.shape(key), with).map_err(EngineError::from)?;
    let mut about = BTreeMap::from([
        ("model".to_string(), spec.family.to_string()),
        ("positions".to_string(), package.rewrites.padded(package.positions).to_string()),
        ("weights".to_string(), package.weights.name()),
        ("version".to_string(), env!("CARGO_PKG_VERSION").to_string()),
    ]);
    let mut stretches = stretches(&lowered, options);
    if let Some(of) = &options.experts {
        for segment in lowered.segments.iter().filter(|s| s.kind == SegmentKind::Experts) {
            for (number, (experts, capacity)) in groups(segment, of).into_iter().enumerate() {
                let stretch = expert_function(segment, number, &experts, capacity)?;
                let experts: Vec<String> = experts.iter().map(usize::to_string).collect();
                let of = format!("experts {}, {capacity} rows each", experts.join(","));
                about.insert(stretch.name.clone(), of);
                stretches.push(stretch);
            }
        }
    }
    let values = values(&lowered, &mut stretches);
    let model = PackageModel { stretches, values, about };
    Ok(write_package(out, &model, store, package, may_continue)?)
}

/// The segments between routers as parts of functions.
fn stretches(lowered: &Lowered, options: &CoreMlOptions) -> Vec<PackageStretch> {
    let inside = |s: &&Segment| {
        options.head_inside || !matches!(s.kind, SegmentKind::Embed | SegmentKind::Head)
    };
    let is_outside = |s: &Segment| matches!(s.kind, SegmentKind::Router | SegmentKind::Experts);
    let segments: Vec<&Segment> = lowered.segments.iter().filter(inside).collect();
    let attentions = lowered.segments.iter().flat_map(|s| &s.graph.nodes);
    let shapes = attentions.filter_map(|node| match &node.op {
        Op::Attention(a) => Some((a.kv_heads, a.k_dim, a.v_dim)),
        _ => None,
    });
    // Layers with a window have a cache of their own also where they keep other shapes.
    let unlike = shapes.collect::<BTreeSet<_>>().len() > 1;
    let runs = segments.chunk_by(|a, b| is_outside(a) == is_outside(b));
    let runs: Vec<_> = runs.filter(|run| !is_outside(run[0])).collect();
    let named = |(i, run): (usize, &&[&Segment])| {
        // A layer's keys and values are found by its keys' state.
        let mut layers = HashMap::new();
        let mut stretch = PackageStretch::default();
        if runs.len() > 1 {
            stretch.name = format!("part_{i}_");
        }
        for segment in *run {
            for node in &segment.graph.nodes {
                let Op::Attention(attention) = &node.op else { continue };
                let state = |id| segment.graph.states.iter().position(|s| s == id);
                let of = node.states.iter().filter_map(|id| Some(segment.states[state(id)?]));
                let of: Vec<_> = of.collect();
                if of.first().is_some_and(|keys| !layers.contains_key(keys)) {
                    let own = unlike || options.package.is_shorter(attention.window);
                    let cache = attention.window.filter(|_| own);
                    let count = stretch.layers.entry(cache).or_default();
                    layers.extend(of.iter().map(|state| (*state, *count)));
                    *count += 1;
                }
            }
            let numbers = |edges: &[EdgeId]| edges.iter().map(|e| e.0).collect();
            stretch.parts.push(PackagePart {
                graph: segment.graph.clone(),
                inputs: numbers(&segment.inputs),
                outputs: numbers(&segment.outputs),
                layers: segment
                    .states
                    .iter()
                    .map(|s| layers.get(s).copied().unwrap_or(0))
                    .collect(),
                of_last_row: segment.kind == SegmentKind::Head,
            });
        }
        let made: BTreeSet<usize> = stretch.parts.iter().flat_map(|p| p.outputs.clone()).collect();
        let is_own = |s: &&Segment| run.iter().any(|own| std::ptr::eq(*own, *s));
        let others = lowered.segments.iter().filter(|s| !is_own(s));
        let read: BTreeSet<usize> = others.flat_map(|s| s.inputs.iter().map(|e| e.0)).collect();
        let is_result = |v: &usize| read.contains(v) || *v == lowered.logits().0;
        stretch.results = made.into_iter().filter(is_result).collect();
        stretch
    };
    runs.iter().enumerate().map(named).collect()
}

/// A layer's groups: experts with the rows of each.
fn groups(segment: &Segment, of: &ExpertFunctions) -> Vec<(Vec<usize>, usize)> {
    match of {
        ExpertFunctions::Even { experts, capacity } => {
            let count = |node: &Node| match &node.op {
                Op::Experts(experts) => Some(experts.gate.len()),
                _ => None,
            };
            let all: Vec<usize> =
                (0..segment.graph.nodes.iter().find_map(count).unwrap_or(0)).collect();
            all.chunks((*experts).max(1)).map(|group| (group.to_vec(), *capacity)).collect()
        }
        ExpertFunctions::Planned(plan) => {
            let rule = plan.rule(Phase::Prefill, segment.kind, segment.layer);
            let Some(Split::Experts(split)) = rule.and_then(|r| r.split.as_ref()) else {
                return Vec::new();
            };
            split.groups.iter().map(|g| (g.experts.clone(), g.capacity)).collect()
        }
    }
}

/// A group of a layer's experts as a stretch of its own.
///
/// # Errors
/// Experts that the layer does not have.
fn expert_function(
    segment: &Segment,
    number: usize,
    experts: &[usize],
    capacity: usize,
) -> Result<PackageStretch, EngineError> {
    let graph = expert_group(&segment.graph, experts, capacity).map_err(ProgramError::from)?;
    let (inputs, outputs, layers) = (Vec::new(), Vec::new(), Vec::new());
    let part = PackagePart { graph, inputs, outputs, layers, of_last_row: false };
    Ok(PackageStretch {
        name: format!("experts_{}_{number}", segment.layer.unwrap_or(0)),
        parts: vec![part],
        rows: Some(experts.len() * capacity),
        ..PackageStretch::default()
    })
}

/// The values between parts. Groups of experts get theirs.
fn values(lowered: &Lowered, stretches: &mut [PackageStretch]) -> Vec<PackageValue> {
    // Sums of layers' results may be above what halves hold.
    let row = |name: &str, cols, dtype| {
        let kept = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        PackageValue::Rows { name: name.chars().map(kept).collect(), cols, dtype }
    };
    let mut values: Vec<PackageValue> =
        lowered.edges.iter().map(|edge| row(&edge.name, edge.cols, DType::F32)).collect();
    values[Lowered::IDS.0] = PackageValue::Ids;
    values[Lowered::POSITIONS.0] = PackageValue::Positions;
    let (state, logits) = (lowered.last_state().0, lowered.logits().0);
    values[state] = row("hidden_states", lowered.edges[state].cols, DType::F32);
    values[logits] = row("logits", lowered.edges[logits].cols, DType::F16);
    for stretch in stretches.iter_mut().filter(|s| s.rows.is_some()) {
        for part in &mut stretch.parts {
            let cols = part.graph.value(part.graph.inputs[0]).shape.row_len();
            part.inputs = vec![values.len()];
            part.outputs = vec![values.len() + 1];
            stretch.results = part.outputs.clone();
            values.extend(["packed_rows", "expert_rows"].map(|name| row(name, cols, DType::F16)));
        }
    }
    values
}
