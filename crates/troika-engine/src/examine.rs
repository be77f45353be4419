//! Which ops of a model the devices at hand refuse, before anything is compiled.

use std::sync::Arc;

use troika_device::Device;
use troika_graph::restrict_activations;
use troika_model::lower::{LowerOptions, WeightShapes, lower};
use troika_model::spec::ModelSpec;
use troika_plan::{Plan, Refusal};

use crate::error::EngineError;
use crate::program::{convert_edges, edge_types, shapes};

/// Asks each device about each op of the model, at the shapes that the plan states. Returns the
/// refused ops, once for each kind of segment.
///
/// # Errors
/// The spec cannot be lowered.
pub fn examine(
    spec: &ModelSpec,
    weights: WeightShapes<'_>,
    plan: &Plan,
    devices: &[Arc<dyn Device>],
) -> Result<Vec<Refusal>, EngineError> {
    let options = LowerOptions {
        max_rows: plan.prefill.chunk,
        max_kv: plan.context,
        kv_dtype: plan.kv_dtype,
    };
    let lowered = lower(spec, weights, options)?;
    let formats = plan.activations();
    let types = edge_types(&lowered, plan);
    let mut refusals: Vec<Refusal> = Vec::new();
    for device in devices {
        for segment in &lowered.segments {
            let graph = restrict_activations(&segment.graph, &formats);
            let lists = plan.all_lists().map(|((phase, _), rules)| {
                let rule = rules.iter().find(|r| r.matches(segment.kind, segment.layer));
                let rule = rule.filter(|r| r.devices().any(|d| d == device.name()));
                let buckets = rule.and_then(|r| r.row_buckets.as_deref());
                (convert_edges(&graph, segment, (&types, phase)), buckets)
            });
            let mut graphs: Vec<_> = lists.collect();
            graphs.dedup();
            let graphs = graphs.iter().flat_map(|(g, buckets)| shapes(g, device.caps(), *buckets));
            for graph in graphs {
                let verdicts = device.examine(&graph);
                for (node, why) in graph.nodes.iter().zip(verdicts) {
                    let Some(why) = why else { continue };
                    let (device, op) = (device.name().to_string(), node.op.name().to_string());
                    let known =
                        |r: &Refusal| (&r.device, r.segment, &r.op) == (&device, segment.kind, &op);
                    if !refusals.iter().any(known) {
                        refusals.push(Refusal { device, segment: segment.kind, op, why });
                    }
                }
            }
        }
    }
    Ok(refusals)
}
