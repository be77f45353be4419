//! The rules of a plan that shares experts out.

use troika_model::lower::{SegmentKind, segments};
use troika_model::spec::{Ffn, ModelSpec, Moe};

use crate::error::PlanError;
use crate::expert_groups::{
    CapacityRule, ExpertDivision, ExpertGroupShape, ExpertPolicy, ExpertSettings, GroupLimits,
    LayerLoad, Tiers, WorthALaunch, group, group_size, resident,
};
use crate::experts::{ExpertGroupPlan, ExpertSplit, GroupResidency, Overflow};
use crate::plan::{Layers, LengthRules, Rule, Split};
use crate::routing::ExpertUse;
use crate::strategy::{DeviceFacts, rule};

/// The rules of a plan.
pub(crate) struct SharedRules {
    pub prefill: Vec<Rule>,
    pub lengths: Vec<LengthRules>,
    pub decode: Vec<Rule>,
    /// How groups come and go, if they do.
    pub residency: Option<GroupResidency>,
}

/// A group, and whether it waits for rows to make it hot.
struct KnownGroup {
    shape: ExpertGroupShape,
    standby: bool,
}

/// What rules for experts follow from.
pub(crate) struct ExpertRules<'a> {
    pub spec: &'a ModelSpec,
    pub devices: &'a [DeviceFacts],
    pub policy: ExpertPolicy,
    pub settings: &'a ExpertSettings,
    /// Rows of a chunk.
    pub rows: usize,
    /// Rows until all buffers of experts are empty again.
    pub gathered: usize,
    /// Whether the groups' device has weights as halves.
    pub halves: bool,
}

/// The device that shares experts out, the first that runs functions of the host, and the one that
/// computes groups, the first other one.
fn devices_of(devices: &[DeviceFacts]) -> Result<[&DeviceFacts; 2], PlanError> {
    let refuse = |need| {
        let count = devices.len();
        PlanError::Strategy { strategy: "experts", need, count }
    };
    let host = devices.iter().find(|d| d.host_functions);
    let host = host.ok_or_else(|| refuse("a CPU that shares experts out"))?;
    let other = devices.iter().find(|d| d.name != host.name);
    Ok([host, other.ok_or_else(|| refuse("two devices"))?])
}

impl ExpertRules<'_> {
    /// The rules of prompts' chunks, of shorter ones, and of decoding.
    ///
    /// # Errors
    /// Devices that cannot share experts out; a group that one cannot hold.
    pub fn rules(&self) -> Result<SharedRules, PlanError> {
        let [host, device] = devices_of(self.devices)?;
        let groups = self.groups(device)?;
        let mut prefill = self.around(host, device);
        let mut whole = prefill.clone();
        for (layer, moe) in self.layers() {
            let expected = self.used(layer, moe).parts();
            prefill.push(self.experts(layer, expected, &groups, [host, device]));
        }
        if self.layers().next().is_some() {
            whole.push(rule(Some(vec![SegmentKind::Experts]), None, host));
        }
        // A graph takes as long for few rows as for all. Rows that gather over chunks are not few.
        let is_bursty =
            self.policy == ExpertPolicy::All && !self.settings.gathers() && !groups.is_empty();
        let lengths = LengthRules { up_to: self.rows / 2, rules: whole };
        let lengths = Some(lengths).filter(|l| is_bursty && l.up_to > 0);
        // A single row chooses few experts, which are not worth a launch.
        let decode = vec![rule(None, None, host)];
        let residency = (self.settings.adaptive && !groups.is_empty()).then(|| {
            let GroupLimits { graphs, bytes, .. } = self.limits(device);
            let every_group = self.least() == WorthALaunch::ALWAYS;
            GroupResidency { bytes, graphs, every_group }
        });
        Ok(SharedRules { prefill, lengths: lengths.into_iter().collect(), decode, residency })
    }

    /// The rules of all segments but experts.
    fn around(&self, host: &DeviceFacts, device: &DeviceFacts) -> Vec<Rule> {
        let attention = |kind: &SegmentKind| {
            use SegmentKind::{Attention, AttnOut, Qkv};
            self.settings.attention && matches!(kind, Qkv | Attention | AttnOut)
        };
        let of_model = segments(self.spec);
        let kinds = SegmentKind::ALL.into_iter().filter(|k| of_model.iter().any(|s| s.0 == *k));
        let (there, here): (Vec<_>, Vec<_>) =
            kinds.filter(|k| *k != SegmentKind::Experts).partition(attention);
        let mut rules = vec![rule(Some(here), None, host)];
        if !there.is_empty() {
            rules.push(rule(Some(there), None, device));
        }
        rules
    }

    /// The rule for a layer's experts.
    fn experts(
        &self,
        layer: usize,
        expected: Vec<u32>,
        groups: &[KnownGroup],
        [host, device]: [&DeviceFacts; 2],
    ) -> Rule {
        let groups = groups.iter().filter(|g| g.shape.layer == layer);
        // A third device, if there is one, takes what the groups' device leaves.
        let third = self.devices.iter().find(|d| d.name != host.name && d.name != device.name);
        let other = third.unwrap_or(host);
        let divided = |whole: ExpertGroupPlan| match self.settings.divide {
            Some(division) => division.groups(whole, &other.name),
            None => vec![whole],
        };
        let groups: Vec<ExpertGroupPlan> =
            groups.map(|g| plan_of(g, device)).flat_map(divided).collect();
        let ExpertSettings { overflow, dispatch, .. } = *self.settings;
        let split = ExpertSplit { groups, overflow, dispatch, expected };
        let split = Some(split).filter(|s| !s.groups.is_empty()).map(Split::Experts);
        let layers = Layers { first: layer, last: layer, step: 1 };
        Rule { split, ..rule(Some(vec![SegmentKind::Experts]), Some(layers), host) }
    }

    fn layers(&self) -> impl Iterator<Item = (usize, &Moe)> {
        self.spec.layers.iter().enumerate().filter_map(|(layer, l)| match &l.ffn {
            Ffn::Moe(moe) => Some((layer, moe)),
            Ffn::Dense(_) => None,
        })
    }

    /// The groups that are on the device, and those that may come there.
    fn groups(&self, device: &DeviceFacts) -> Result<Vec<KnownGroup>, PlanError> {
        let Some(bytes) = self.layers().map(|(_, moe)| self.expert_bytes(moe, device)).max() else {
            return Ok(Vec::new());
        };
        let limits = self.limits(device);
        let asked = match self.policy {
            ExpertPolicy::Base | ExpertPolicy::Tiers => Some(1),
            _ if matches!(self.settings.divide, Some(ExpertDivision::Columns(_))) => Some(1),
            // Of several experts one would be full first, and the others half empty.
            ExpertPolicy::Groups | ExpertPolicy::All => {
                self.settings.group.or(self.settings.gathers().then_some(1))
            }
        };
        let size = group_size(asked, bytes, &limits)
            .map_err(|why| PlanError::ExpertGroup { device: device.name.clone(), why })?;
        let (rule, least) = (self.capacity_rule(), self.least());
        let (mut groups, mut cold) = (Vec::new(), Vec::new());
        for (layer, moe) in self.layers() {
            let used = self.used(layer, moe);
            let load = LayerLoad { used: &used, top_k: moe.top_k, rows: self.gathered };
            let all = group(&load, &self.capacities(load), size, WorthALaunch::ALWAYS);
            let (worth, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|g| g.is_worth(least));
            groups.extend(worth);
            // Should they become hot, they get more rows than now.
            let base = rule.rounding.up(load.base_rows(rule.base));
            let with_room = |g: ExpertGroupShape| {
                let capacity = g.capacity.max(base);
                ExpertGroupShape { capacity, ..g }
            };
            cold.extend(others.into_iter().map(with_room));
        }
        let on = resident(&groups, bytes, &limits);
        let known = groups.into_iter().zip(on).map(|(shape, on)| (shape, !on));
        let all = known.chain(cold.into_iter().map(|shape| (shape, true)));
        let all = all.filter(|(_, standby)| self.settings.adaptive || !standby);
        Ok(all.map(|(shape, standby)| KnownGroup { shape, standby }).collect())
    }

    /// What makes a group worth a launch.
    fn least(&self) -> WorthALaunch {
        match self.policy {
            ExpertPolicy::All if self.settings.overflow == Overflow::Pad => WorthALaunch::PADDED,
            ExpertPolicy::All => self.settings.worth,
            _ => WorthALaunch::ALWAYS,
        }
    }

    /// Rows of each expert. Where they gather, and nothing else than the default is asked for: a quarter
    /// of what an expert is expected to get, so that it runs while other chunks are routed.
    fn capacities(&self, load: LayerLoad<'_>) -> Vec<usize> {
        let rule = self.capacity_rule();
        if !self.settings.gathers() || rule.tiers != Tiers::default() {
            return rule.capacities(&LayerLoad { rows: self.rows, ..load });
        }
        let least = WorthALaunch::default().rows;
        let part =
            |e: usize| (load.expected_rows(e) / 4.0).clamp(least, least.max(self.rows as f64));
        (0..load.used.counts.len()).map(|e| rule.rounding.up(part(e))).collect()
    }

    fn capacity_rule(&self) -> CapacityRule {
        let all = self.policy == ExpertPolicy::Base || self.settings.overflow == Overflow::Pad;
        let tiers = if all { Tiers::Chunk } else { self.settings.capacity.tiers.clone() };
        CapacityRule { tiers, ..self.settings.capacity.clone() }
    }

    /// How often a layer's experts are chosen: all alike, where nothing is known.
    fn used(&self, layer: usize, moe: &Moe) -> ExpertUse {
        let fits = |of: &&ExpertUse| of.layer == layer && of.counts.len() == moe.experts;
        let known = self.settings.used.iter().find(fits).cloned();
        known.unwrap_or_else(|| ExpertUse { layer, counts: vec![1.0; moe.experts] })
    }

    /// Bytes of an expert's weights on a device: as floats where they become part of its code, else
    /// as they are stored.
    fn expert_bytes(&self, moe: &Moe, device: &DeviceFacts) -> u64 {
        let elements = [3, self.spec.hidden, moe.inter].map(|n| n as u64);
        let elements = elements.into_iter().fold(1_u64, u64::saturating_mul);
        let floats = |bytes: u64| elements.saturating_mul(bytes);
        match (device.weights_per_shape, self.settings.stored_bytes) {
            (false, Some(stored)) => stored,
            (false, None) => floats(4),
            (true, _) => floats(if self.halves { 2 } else { 4 }),
        }
    }

    /// What a device has left for groups.
    fn limits(&self, device: &DeviceFacts) -> GroupLimits {
        // With attention, each layer has two or three graphs of its own there.
        let others = if self.settings.attention { 3 * self.spec.layers.len() } else { 0 };
        let graphs = device.max_graphs.map(|most| most.saturating_sub(others));
        let bytes = [self.settings.bytes, device.max_resident_bytes].into_iter().flatten().min();
        GroupLimits { graph_bytes: device.max_graph_bytes, graphs, bytes }
    }
}

fn plan_of(group: &KnownGroup, device: &DeviceFacts) -> ExpertGroupPlan {
    let KnownGroup { shape, standby } = group;
    let whole = ExpertGroupPlan::new(&device.name, shape.experts.clone(), shape.capacity);
    ExpertGroupPlan { standby: *standby, ..whole }
}
