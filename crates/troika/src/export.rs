//! Models as packages of other runtimes.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use crate::describe::Described;
use crate::devices::npu::mil::{
    Package, PackageModel, PackageOptions, PackagePart, PackageValue, write_package,
};
use crate::error::Error;
use troika_engine::EngineError;
use troika_graph::{DType, Op};
use troika_model::lower::{LowerOptions, Lowered, SegmentKind, lower};

/// How to export a model to Core ML.
#[derive(Clone, Debug)]
pub struct CoreMlOptions {
    /// What the package is like.
    pub package: PackageOptions,
    /// Whether token ids go in and logits come out; else states of tokens do, and another device looks
    /// embeddings up and computes the head.
    pub head_inside: bool,
}

/// Writes a model as a Core ML package, a new folder.
///
/// # Errors
/// A model that the package cannot hold, or files that cannot be read or written.
pub fn export_core_ml(
    model: &Described,
    out: &Path,
    options: &CoreMlOptions,
) -> Result<Package, Error> {
    let Described { spec, store, .. } = model;
    let package = &options.package;
    let rows = package.functions.iter().map(|(_, rows)| *rows).max().unwrap_or(1);
    let with = LowerOptions { max_rows: rows, max_kv: package.positions, kv_dtype: DType::F16 };
    let lowered = lower(spec, &|key| store.shape(key), with).map_err(EngineError::from)?;
    let about = BTreeMap::from([
        ("model".to_string(), spec.family.to_string()),
        ("positions".to_string(), package.rewrites.padded(package.positions).to_string()),
        ("weights".to_string(), package.weights.name()),
        ("version".to_string(), env!("CARGO_PKG_VERSION").to_string()),
    ]);
    let model = PackageModel { about, ..package_model(&lowered, options.head_inside) };
    Ok(write_package(out, &model, store, package)?)
}

/// The segments as parts of a package.
fn package_model(lowered: &Lowered, head_inside: bool) -> PackageModel {
    // A layer's keys and values are found by its keys' state.
    let (mut layers, mut count) = (HashMap::new(), 0);
    let inside = |kind| head_inside || !matches!(kind, SegmentKind::Embed | SegmentKind::Head);
    let mut parts = Vec::new();
    for segment in lowered.segments.iter().filter(|s| inside(s.kind)) {
        for node in segment.graph.nodes.iter().filter(|n| matches!(n.op, Op::Attention(_))) {
            let state = |id| segment.graph.states.iter().position(|s| s == id);
            let of = node.states.iter().filter_map(|id| Some(segment.states[state(id)?]));
            let of: Vec<_> = of.collect();
            if of.first().is_some_and(|keys| !layers.contains_key(keys)) {
                layers.extend(of.iter().map(|state| (*state, count)));
                count += 1;
            }
        }
        let numbers =
            |edges: &[_]| edges.iter().map(|e: &troika_model::lower::EdgeId| e.0).collect();
        parts.push(PackagePart {
            graph: segment.graph.clone(),
            inputs: numbers(&segment.inputs),
            outputs: numbers(&segment.outputs),
            layers: segment.states.iter().map(|s| layers.get(s).copied().unwrap_or(0)).collect(),
            of_last_row: segment.kind == SegmentKind::Head,
        });
    }
    let mut values: Vec<PackageValue> = (lowered.edges.iter())
        .map(|edge| {
            let kept = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
            PackageValue::Rows { name: edge.name.chars().map(kept).collect(), cols: edge.cols }
        })
        .collect();
    values[Lowered::IDS.0] = PackageValue::Ids;
    values[Lowered::POSITIONS.0] = PackageValue::Positions;
    let result = match head_inside {
        true => (lowered.logits().0, "logits".into()),
        false => (lowered.last_state().0, "hidden_states".into()),
    };
    PackageModel { parts, values, result, layers: count, about: BTreeMap::new() }
}
