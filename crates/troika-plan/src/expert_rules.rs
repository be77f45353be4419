//! The rules of a plan that shares experts out.

use troika_model::lower::{ModelPart, SegmentKind, segment_kinds};
use troika_model::spec::{Attn, ModelSpec, Moe};

use crate::device::PlanDevice;
use crate::error::PlanError;
use crate::expert_groups::{
    ExpertGroupShape, ExpertPolicy, ExpertSettings, GroupLimits, LayerLoad, Tiers, WorthALaunch,
    group, group_size, resident, rounded,
};
use crate::experts::{ExpertCachePlan, ExpertGroupPlan, ExpertSplit, KeptBy, Overflow};
use crate::layers::rule;
use crate::plan::{Layers, LengthRules, PlannedRules, Rule, Split};
use crate::routing::ExpertUse;

/// What rules for experts follow from.
pub(crate) struct ExpertRules<'a> {
    pub spec: &'a ModelSpec,
    pub devices: &'a [PlanDevice],
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
fn devices_of(devices: &[PlanDevice]) -> Result<[&PlanDevice; 2], PlanError> {
    let refuse = |need| {
        let count = devices.len();
        PlanError::Strategy { strategy: "experts", need, count }
    };
    let host = devices.iter().find(|d| d.caps.host_tasks);
    let host = host.ok_or_else(|| refuse("a CPU that shares experts out"))?;
    let other = devices.iter().find(|d| d.name != host.name);
    Ok([host, other.ok_or_else(|| refuse("two devices"))?])
}

impl ExpertRules<'_> {
    /// The rules of prompts' chunks, of shorter ones, and of decoding; and the cache of the groups'
    /// device, where they come and go.
    ///
    /// # Errors
    /// Devices that cannot share experts out; a group that one cannot hold.
    pub fn rules(&self) -> Result<(PlannedRules, Vec<ExpertCachePlan>), PlanError> {
        let [host, device] = devices_of(self.devices)?;
        let (attention, most) = (self.attention_graphs(device), device.caps.max_graphs);
        if let Some(most) = most.filter(|most| *most < attention) {
            return Err(PlanError::ExpertGroup(format!(
                "{}: attention takes up to {attention} graphs there, and {most} \
                 can be loaded; leave attention to {}",
                device.name, host.name
            )));
        }
        let groups = self.groups(device)?;
        let bytes = self.limits(device).bytes.unwrap_or(u64::MAX);
        let (least_rows, kept_by) = (0, KeptBy::default());
        let cache = ExpertCachePlan { device: device.name.clone(), bytes, least_rows, kept_by };
        let comes = self.policy == ExpertPolicy::Cache && !groups.is_empty();
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
        let is_bursty = matches!(self.policy, ExpertPolicy::All | ExpertPolicy::Cache)
            && !self.settings.gathers()
            && !groups.is_empty();
        let lengths = LengthRules { up_to: self.rows / 2, rules: whole };
        let lengths = Some(lengths).filter(|l| is_bursty && l.up_to > 0);
        // A single row chooses few experts, which are not worth a launch.
        let decode = vec![rule(None, None, host)];
        let rules = PlannedRules { prefill, lengths: lengths.into_iter().collect(), decode };
        Ok((rules, comes.then_some(cache).into_iter().collect()))
    }

    /// The rules of all segments but experts.
    fn around(&self, host: &PlanDevice, device: &PlanDevice) -> Vec<Rule> {
        let mixer =
            |kind: &SegmentKind| self.settings.attention && kind.traits().part == ModelPart::Mixer;
        let kinds = segment_kinds(self.spec).into_iter().filter(|k| *k != SegmentKind::Experts);
        let (there, here): (Vec<_>, Vec<_>) = kinds.partition(mixer);
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
        groups: &[ExpertGroupShape],
        [host, device]: [&PlanDevice; 2],
    ) -> Rule {
        let groups = groups.iter().filter(|g| g.layer == layer);
        let planned = |g: &ExpertGroupShape| {
            ExpertGroupPlan::new(&device.name, g.experts.clone(), g.capacity)
        };
        let groups: Vec<ExpertGroupPlan> = groups.map(planned).collect();
        let ExpertSettings { overflow, dispatch, .. } = *self.settings;
        let split = ExpertSplit { groups, overflow, dispatch, expected };
        let split = Some(split).filter(|s| !s.groups.is_empty()).map(Split::Experts);
        let layers = Layers { first: layer, last: layer, step: 1 };
        Rule { split, ..rule(Some(vec![SegmentKind::Experts]), Some(layers), host) }
    }

    fn layers(&self) -> impl Iterator<Item = (usize, &Moe)> {
        self.spec.layers.iter().enumerate().filter_map(|(layer, l)| Some((layer, l.moe()?)))
    }

    /// The groups that are on the device.
    fn groups(&self, device: &PlanDevice) -> Result<Vec<ExpertGroupShape>, PlanError> {
        let Some(bytes) = self.layers().map(|(_, moe)| self.expert_bytes(moe, device)).max() else {
            return Ok(Vec::new());
        };
        let limits = self.limits(device);
        let asked = match self.policy {
            ExpertPolicy::Base | ExpertPolicy::Tiers => Some(1),
            ExpertPolicy::Cache => Some(self.settings.group.unwrap_or(1)),
            // Of several experts one would be full first, and the others half empty.
            ExpertPolicy::Groups | ExpertPolicy::All => {
                self.settings.group.or(self.settings.gathers().then_some(1))
            }
        };
        let size = group_size(asked, bytes, &limits)
            .map_err(|why| PlanError::ExpertGroup(format!("{}: {why}", device.name)))?;
        let mut groups = Vec::new();
        for (layer, moe) in self.layers() {
            let used = self.used(layer, moe);
            let load = LayerLoad { used: &used, top_k: moe.top_k, rows: self.gathered };
            groups.extend(group(&load, &self.capacities(load), size, self.least()));
        }
        if self.policy == ExpertPolicy::Cache {
            return Ok(groups);
        }
        let on = resident(&groups, bytes, &limits);
        Ok(groups.into_iter().zip(on).filter_map(|(shape, on)| on.then_some(shape)).collect())
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
        let all = self.policy == ExpertPolicy::Base || self.settings.overflow == Overflow::Pad;
        let tiers = if all { &Tiers::Chunk } else { &self.settings.tiers };
        if !self.settings.gathers() || *tiers != Tiers::default() {
            return tiers.capacities(&LayerLoad { rows: self.rows, ..load });
        }
        let least = WorthALaunch::default().rows;
        let part =
            |e: usize| (load.expected_rows(e) / 4.0).clamp(least, least.max(self.rows as f64));
        (0..load.used.counts.len()).map(|e| rounded(part(e))).collect()
    }

    /// How often a layer's experts are chosen: all alike, where nothing is known.
    fn used(&self, layer: usize, moe: &Moe) -> ExpertUse {
        let fits = |of: &&ExpertUse| of.layer == layer && of.counts.len() == moe.experts;
        let known = self.settings.used.iter().find(fits).cloned();
        known.unwrap_or_else(|| ExpertUse { layer, counts: vec![1.0; moe.experts] })
    }

    /// Bytes of an expert's weights on a device: as floats where they become part of its code and it
    /// keeps no blocks, else as they are stored.
    fn expert_bytes(&self, moe: &Moe, device: &PlanDevice) -> u64 {
        let elements = [3, self.spec.hidden, moe.inter].map(|n| n as u64);
        let elements = elements.into_iter().fold(1_u64, u64::saturating_mul);
        let floats = |bytes: u64| elements.saturating_mul(bytes);
        let stored = self.settings.stored_bytes;
        match device.caps.code_weights {
            None => stored.unwrap_or(floats(4)),
            // What is more than a byte each is no block.
            Some(code) if code.keeps_blocks && stored.is_some_and(|b| b < floats(2)) => {
                stored.unwrap_or_default()
            }
            Some(_) => floats(if self.halves { 2 } else { 4 }),
        }
    }

    /// Bytes of attention on a device: products have as many each as those of experts.
    fn attention_bytes(&self, device: &PlanDevice) -> u64 {
        let Some((_, moe)) = self.layers().next() else { return 0 };
        let of = |a: &Attn| 2 * a.heads * a.k_dim.max(a.v_dim) + a.kv_heads * (a.k_dim + a.v_dim);
        let all = || self.spec.layers.iter().filter_map(|l| l.attention());
        let columns: usize = all().map(of).sum();
        let norms: usize = all().map(|a| 4 * (self.spec.hidden + 2 * a.k_dim)).sum();
        let experts = (3 * moe.inter).max(1) as u64;
        let products = self.expert_bytes(moe, device).saturating_mul(columns as u64);
        products.div_ceil(experts) + norms as u64
    }

    /// Graphs of attention on the groups' device: each layer has up to four of its own, for each number
    /// of rows.
    fn attention_graphs(&self, device: &PlanDevice) -> usize {
        let buckets = &device.caps.row_buckets;
        let smaller = buckets.iter().filter(|rows| **rows < self.rows).count();
        let rows = (smaller + 1).min(buckets.len().max(1));
        if self.settings.attention { 4 * self.spec.layers.len() * rows } else { 0 }
    }

    /// What a device has left for groups.
    fn limits(&self, device: &PlanDevice) -> GroupLimits {
        let others = self.attention_graphs(device);
        let graphs = device.caps.max_graphs.map(|most| most.saturating_sub(others));
        let attention = if self.settings.attention { self.attention_bytes(device) } else { 0 };
        let left = device.caps.max_resident_bytes.map(|most| most.saturating_sub(attention));
        let bytes = [self.settings.bytes, left].into_iter().flatten().min();
        GroupLimits { graph_bytes: device.caps.max_graph_bytes, graphs, bytes }
    }
}
