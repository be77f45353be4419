//! Plans that keep within the memory of devices: on devices of static shapes feed-forwards stay first
//! (llm.npu, section 3.5), on others whole layers.

use std::cmp::Reverse;
use std::sync::Arc;

use troika_model::lower::{Lowered, ModelPart, SegmentKind, segments};
use troika_model::spec::ModelSpec;
use troika_plan::{Elsewhere, Plan, PlanDevice, PlanError, PlanRequest, Refusal, SegmentAt, make};

use crate::held::held_weights;

/// Checks that a plan's weights fit into the memory of each device.
///
/// # Errors
/// A device that would hold more than it can, or a rule that cannot be applied.
pub fn check_memory(
    plan: &Plan,
    lowered: &Arc<Lowered>,
    devices: &[PlanDevice],
) -> Result<(), PlanError> {
    if devices.iter().all(|d| d.caps.max_resident_bytes.is_none()) {
        return Ok(());
    }
    for (held, device) in held_weights(plan, lowered, devices)?.into_iter().zip(devices) {
        if let Some(holds) = device.caps.max_resident_bytes.filter(|most| held.held > *most) {
            return Err(PlanError::Memory { device: held.device, needs: held.held, holds });
        }
    }
    Ok(())
}

/// The input of [`make_within_memory`].
#[derive(Clone, Copy)]
pub struct MakeRequest<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// The model, lowered for the plan's chunk and context.
    pub lowered: &'a Arc<Lowered>,
    /// The devices.
    pub devices: &'a [PlanDevice],
    /// The ops that devices refuse: others hold the weights of these.
    pub refusals: &'a [Refusal],
    /// What the plan is to be like.
    pub base: &'a PlanRequest,
    /// Whether attention's products stay before feed-forwards, to compare.
    pub attention_first: bool,
}

/// A plan, and what devices have no room for.
#[derive(Clone, Debug, PartialEq)]
pub struct MadePlan {
    /// The plan.
    pub plan: Plan,
    /// The segments that were moved.
    pub moved: Vec<Elsewhere>,
}

/// Makes a plan by the request's strategy. What a device has no room for goes to the first other
/// device without a limit, or else to the first other one. On a device of static shapes feed-forwards
/// keep their room, then attention's products, head and embedding have what is left, the first layers
/// first. Others, which have attention and its cache, too, keep whole layers, the last ones, so that
/// values cross over once; then head and embedding.
///
/// # Errors
/// Those of [`make`], or an op that no device takes.
pub fn make_within_memory(request: &MakeRequest<'_>) -> Result<MadePlan, PlanError> {
    let MakeRequest { spec, lowered, devices, .. } = *request;
    let names: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
    let mut base = request.base.clone();
    let mut plan = make(spec, devices, &base)?;
    for (index, device) in devices.iter().enumerate() {
        let ranks = match device.caps.static_shapes {
            true => kept_first(spec, request.attention_first),
            false => whole_layers(spec),
        };
        let Some(holds) = device.caps.max_resident_bytes else { continue };
        let others = || devices.iter().filter(|d| d.name != device.name);
        let free = others().find(|d| d.caps.max_resident_bytes.is_none());
        let Some(by) = free.or(others().next()) else { continue };
        let with = |kept: &[usize]| -> Result<(PlanRequest, Plan), PlanError> {
            let lost = ranks.iter().zip(kept).flat_map(|(rank, kept)| rank[*kept..].concat());
            let (segments, mut base) = (lost.collect(), base.clone());
            let (device, by) = (device.name.clone(), by.name.clone());
            base.elsewhere.push(Elsewhere { device, holds, by, segments });
            let plan = make(spec, devices, &base)?;
            Ok((base, plan))
        };
        let fits = |plan: &Plan| -> Result<bool, PlanError> {
            let mut plan = plan.clone();
            plan.avoid(request.refusals, &names)?;
            Ok(held_weights(&plan, lowered, devices)?[index].held <= holds)
        };
        if fits(&plan)? {
            continue;
        }
        // Of each rank as many as fit beside those before.
        let mut kept = vec![0; ranks.len()];
        for (rank, all) in ranks.iter().enumerate() {
            let (mut least, mut too_many) = (0, all.len() + 1);
            while least + 1 < too_many {
                kept[rank] = least.midpoint(too_many);
                if fits(&with(&kept)?.1)? { least = kept[rank] } else { too_many = kept[rank] }
            }
            kept[rank] = least;
        }
        (base, plan) = with(&kept)?;
    }
    Ok(MadePlan { plan, moved: base.elsewhere })
}

/// Ranks of whole layers, head and embedding, as of [`kept_first`].
fn whole_layers(spec: &ModelSpec) -> [Vec<Vec<SegmentAt>>; 4] {
    let [mixers, ffns, head, embed] = kept_first(spec, true);
    let mut layers: Vec<Vec<SegmentAt>> = Vec::new();
    for segments in mixers.into_iter().chain(ffns) {
        match layers.iter_mut().find(|together| together[0].1 == segments[0].1) {
            Some(together) => together.extend(segments),
            None => layers.push(segments),
        }
    }
    layers.sort_by_key(|together| Reverse(together[0].1));
    [layers, Vec::new(), head, embed]
}

/// Ranks of segments; a device keeps the first ranks longest. Within a rank, the segments of a
/// layer are kept or lost together, the last layers first.
fn kept_first(spec: &ModelSpec, attention_first: bool) -> [Vec<Vec<SegmentAt>>; 4] {
    let rank = |kind: SegmentKind| match kind.traits().part {
        ModelPart::Ffn => usize::from(attention_first),
        ModelPart::Mixer => usize::from(!attention_first),
        ModelPart::Head => 2,
        ModelPart::Embed => 3,
    };
    let mut ranks: [Vec<Vec<SegmentAt>>; 4] = Default::default();
    for (kind, layer) in segments(spec) {
        let rank = &mut ranks[rank(kind)];
        match rank.iter_mut().find(|together| together[0].1 == layer) {
            Some(together) => together.push((kind, layer)),
            None => rank.push(vec![(kind, layer)]),
        }
    }
    ranks
}
