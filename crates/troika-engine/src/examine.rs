//! Which ops of a model the devices at hand refuse, before anything is compiled.

use std::sync::Arc;

use troika_device::Device;
use troika_graph::partition::{expert_group, expert_products};
use troika_graph::{adapt_activations, bind_static, restrict_activations};
use troika_model::lower::{Lowered, SegmentKind, WeightShapes, lower};
use troika_model::spec::ModelSpec;
use troika_plan::{EXPERT_GROUP, Plan, Refusal};
use troika_program::{EdgeTypes, shapes};

use crate::error::EngineError;

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
    let lowered = lower(spec, weights, plan.lower_options())?;
    let types = EdgeTypes::new(&lowered, plan);
    let mut refusals: Vec<Refusal> = Vec::new();
    for device in devices {
        for segment in &lowered.segments {
            let lists = plan.all_lists().map(|((phase, _), rules)| {
                let rule = rules.iter().find(|r| r.matches(segment.kind, segment.layer));
                let rule = rule.filter(|r| r.devices().any(|d| d == device.name()));
                let own = &device.caps().activation_formats;
                let formats = rule.map_or(own, |r| &r.activations);
                let mut graph = restrict_activations(&segment.graph, formats);
                if rule.is_some_and(|r| r.split.is_some()) {
                    graph = adapt_activations(&graph, own);
                }
                let buckets = rule.and_then(|r| r.row_buckets.as_deref());
                (types.convert(&graph, segment, phase), buckets)
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
    let groups = devices.iter().filter_map(|d| refused_group(&**d, &lowered, plan));
    refusals.extend(groups);
    Ok(refusals)
}

/// Why a device refuses a group of experts that a plan gives it, if it does.
fn refused_group(device: &dyn Device, lowered: &Lowered, plan: &Plan) -> Option<Refusal> {
    let of_experts = lowered.segments.iter().filter(|s| s.kind.traits().by_experts);
    let why = of_experts.filter_map(|segment| {
        let rules = plan.all_rules().filter(|r| r.matches(segment.kind, segment.layer));
        let mut groups = rules.filter_map(|r| r.experts()).flat_map(|split| &split.groups);
        let graph = restrict_activations(&segment.graph, &device.caps().activation_formats);
        groups.find_map(|group| {
            if !group.devices().any(|d| d == device.name()) {
                return None;
            }
            // What cannot be made is an error where it is placed.
            let graph = match (&group.parts[..], &group.experts[..]) {
                ([_, ..], [expert]) => expert_products(&graph, *expert, group.capacity).ok()?,
                _ => expert_group(&graph, &group.experts, group.capacity).ok()?,
            };
            let bound = bind_static(&graph, graph.max_rows());
            device.examine(&bound).into_iter().flatten().next()
        })
    });
    let why = why.into_iter().next()?;
    let (device, op) = (device.name().to_string(), EXPERT_GROUP.to_string());
    Some(Refusal { device, segment: SegmentKind::Experts, op, why })
}
