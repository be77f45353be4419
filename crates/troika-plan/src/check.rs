//! Checks a plan against the model and the available devices.

use std::collections::BTreeSet;

use troika_graph::{ActivationFormat, DType, Op};
use troika_model::lower::{SegmentKind, segments};
use troika_model::spec::ModelSpec;

use crate::calibration::Calibration;
use crate::error::PlanError;
use crate::identity::{ModelId, PLAN_VERSION};
use crate::plan::{Phase, Plan, Policy, RefusedOps, Rule, Split, Stage};
use crate::ratio::Share;

/// The longest context: ops use 32-bit positions.
pub(crate) const MAX_CONTEXT: usize = i32::MAX as usize;
/// The most rows of a chunk, or positions of a page.
pub(crate) const MAX_LENGTH: usize = 1 << 16;
/// The most chunks in flight: more than any pipeline of devices can use.
pub(crate) const MAX_IN_FLIGHT: usize = 64;
/// The most length buckets.
const MAX_LENGTHS: usize = 64;

type Segment = (SegmentKind, Option<usize>);

impl Plan {
    /// Checks the plan.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self, spec: &ModelSpec, devices: &[&str]) -> Result<(), PlanError> {
        if self.version != PLAN_VERSION {
            return Err(PlanError::version(self.version));
        }
        let need = ModelId::of(spec);
        if self.model != need {
            let found = &self.model;
            return Err(PlanError::Invalid(format!(
                "the plan was made for {found}, the model is {need}; make it again"
            )));
        }
        range("the context", self.context, 1, spec.longest().clamp(1, MAX_CONTEXT))?;
        range("the chunk length", self.prefill.chunk, 1, MAX_LENGTH)?;
        let (what, most) = match self.prefill.policy {
            Policy::ChunkAtATime => ("chunks in flight of the policy chunk-at-a-time", 1),
            _ => ("chunks in flight", MAX_IN_FLIGHT),
        };
        range(what, self.prefill.chunks_in_flight, 1, most)?;
        range("the page length", self.page_len, 1, MAX_LENGTH)?;
        if !self.page_len.is_power_of_two() {
            let next = self.page_len.next_power_of_two();
            return Err(PlanError::Range {
                what: "the page length (a power of two)",
                got: self.page_len,
                low: next / 2,
                high: next,
            });
        }
        if !matches!(self.kv_dtype, DType::F32 | DType::F16 | DType::BF16) {
            let why = format!("the KV cache cannot be {}; use F32, F16 or BF16", self.kv_dtype);
            return Err(PlanError::Invalid(why));
        }
        self.check_devices(devices)?;
        let segments = segments(spec);
        self.check_lengths()?;
        for phase in [Phase::Prefill, Phase::Decode] {
            for (up_to, rules) in self.rule_lists(phase) {
                check_rules(place(phase, up_to, self), rules, &self.devices, &segments)?;
            }
        }
        self.check_experts(spec)?;
        self.check_values(&segments)
    }

    /// Checks that value types do not depend on the length of a chunk, since the memory is shared.
    fn check_values(&self, segments: &[Segment]) -> Result<(), PlanError> {
        for l in &self.prefill.lengths {
            for &(kind, layer) in segments {
                let of = |rules: &[Rule]| {
                    rules.iter().find(|r| r.matches(kind, layer)).map(|r| r.values)
                };
                if of(&l.rules) != of(&self.prefill.rules) {
                    return Err(PlanError::Invalid(format!(
                        "the plan's length buckets: in the bucket of up to {} rows, values of {} \
                         have another type than in full chunks; give them the same",
                        l.up_to,
                        kind.name()
                    )));
                }
            }
        }
        Ok(())
    }

    /// Checks that length buckets ascend, stay below full chunks, and use the same value types.
    fn check_lengths(&self) -> Result<(), PlanError> {
        let refuse =
            |why: String| Err(PlanError::Invalid(format!("the plan's length buckets: {why}")));
        let lengths = &self.prefill.lengths;
        if lengths.len() > MAX_LENGTHS {
            return refuse(format!("there are {}; {MAX_LENGTHS} are the most", lengths.len()));
        }
        let mut before = 0;
        for l in lengths {
            if l.up_to <= before {
                return refuse(format!(
                    "a bucket of up to {} rows follows one of up to {before}; let them ascend",
                    l.up_to
                ));
            }
            before = l.up_to;
        }
        if before >= self.prefill.chunk {
            return refuse(format!(
                "a bucket of up to {before} rows leaves nothing to the rules of chunks of {}",
                self.prefill.chunk
            ));
        }
        Ok(())
    }

    /// Checks that it is used with the calibration that it was made with.
    ///
    /// # Errors
    /// It needs one and there is none, or there is another one.
    pub fn check_calibration(&self, given: Option<&Calibration>) -> Result<(), PlanError> {
        if !self.activations().iter().any(ActivationFormat::is_calibrated) {
            return Ok(());
        }
        let refuse = |why: String| Err(PlanError::Invalid(why));
        let Some(given) = given.map(Calibration::digest) else {
            return refuse(
                "the plan computes by a calibration; give its file (--calibration FILE)".into(),
            );
        };
        match &self.calibration {
            Some(made_with) if *made_with != given => refuse(format!(
                "the plan was made with the calibration {made_with}, and the one given is {given}; \
                 give that one, or make the plan again"
            )),
            _ => Ok(()),
        }
    }

    /// Checks row buckets, given which devices have static shapes.
    ///
    /// # Errors
    /// A rule with row buckets for devices without static shapes.
    pub fn check_shapes(&self, is_static: &dyn Fn(&str) -> bool) -> Result<(), PlanError> {
        self.check_each(|rule, _, _| {
            if rule.row_buckets.is_none() || rule.devices().any(is_static) {
                return Ok(());
            }
            let names: BTreeSet<&str> = rule.devices().collect();
            let take = if names.len() == 1 { "takes" } else { "take" };
            let names = Vec::from_iter(names).join(" and ");
            Err(format!("has row buckets, but {names} {take} any number of rows; leave them out"))
        })
    }

    /// Checks each rule of both phases, of chunks of up to so many rows.
    pub(crate) fn check_each(
        &self,
        check: impl Fn(&Rule, Phase, usize) -> Result<(), String>,
    ) -> Result<(), PlanError> {
        for ((phase, up_to), rules) in self.all_lists() {
            for (number, rule) in (1..).zip(rules) {
                check(rule, phase, up_to).map_err(|why| {
                    let phase = place(phase, up_to, self);
                    PlanError::Rule { phase, number, why }
                })?;
            }
        }
        Ok(())
    }

    fn check_devices(&self, at_hand: &[&str]) -> Result<(), PlanError> {
        let refuse = |why: String| Err(PlanError::Invalid(format!("the plan's devices: {why}")));
        for (i, name) in self.devices.iter().enumerate() {
            if !at_hand.contains(&name.as_str()) {
                let (name, known) = (name.clone(), at_hand.join(", "));
                return Err(PlanError::Device { name, known });
            }
            if self.devices[..i].contains(name) {
                return refuse(format!("{name} is listed twice"));
            }
            if !self.all_rules().any(|r| r.devices().any(|d| d == name)) {
                return refuse(format!("no rule uses {name}; remove it"));
            }
        }
        match &self.prefill.critical_device {
            Some(name) if !self.devices.contains(name) => {
                refuse(format!("the critical device {name} is not among them"))
            }
            _ => Ok(()),
        }
    }
}

/// A description of a list of rules, for people.
pub(crate) fn place(phase: Phase, up_to: usize, plan: &Plan) -> String {
    match phase {
        Phase::Prefill if up_to < plan.prefill.chunk => {
            format!("{} up to {up_to} rows", phase.name())
        }
        _ => phase.name().to_string(),
    }
}

/// Checks that each segment has exactly one rule, and each rule a segment and known devices.
fn check_rules(
    phase: String,
    rules: &[Rule],
    devices: &[String],
    segments: &[Segment],
) -> Result<(), PlanError> {
    let layers = segments.iter().filter_map(|s| s.1).max().map_or(0, |last| last + 1);
    for (i, rule) in rules.iter().enumerate() {
        let refuse =
            |why: String| Err(PlanError::Rule { phase: phase.clone(), number: i + 1, why });
        if let Some(unknown) = rule.devices().find(|d| !devices.iter().any(|known| known == d)) {
            return refuse(format!("names device {unknown}, which the plan does not list"));
        }
        let parts = check_split(rule).and_then(|()| check_refused(rule));
        if let Err(why) = parts.and_then(|()| check_buckets(rule)).and_then(|()| check_forms(rule))
        {
            return refuse(why);
        }
        if !matches!(rule.values, DType::F32 | DType::F16 | DType::BF16) {
            let name = rule.values.name();
            return refuse(format!("has values of type {name}; use F32, F16 or BF16"));
        }
        if let Some(l) = rule.layers {
            if l.step == 0 || l.first > l.last {
                return refuse("has a range of no layers".into());
            }
            if l.last >= layers {
                let why = format!("names layer {}, the model's last is {}", l.last, layers - 1);
                return refuse(why);
            }
        }
        if !segments.iter().any(|&(kind, layer)| rule.matches(kind, layer)) {
            return refuse("matches no segment of the model".into());
        }
    }
    for &(kind, layer) in segments {
        let mut matching = rules.iter().enumerate().filter(|(_, r)| r.matches(kind, layer));
        let segment = match layer {
            Some(l) => format!("{} of layer {l}", kind.name()),
            None => kind.name().to_string(),
        };
        let Some((first, _)) = matching.next() else {
            return Err(PlanError::missing(phase, segment));
        };
        if let Some((second, _)) = matching.next() {
            let why = format!("places {segment}, as rule {} does", first + 1);
            return Err(PlanError::Rule { phase, number: second + 1, why });
        }
    }
    Ok(())
}

/// Checks that a split names several devices, the rule's among them.
fn check_split(rule: &Rule) -> Result<(), String> {
    let Some(split) = &rule.split else { return Ok(()) };
    if let Split::Stages { stages } = split {
        return check_stages(rule, stages);
    }
    if matches!(split, Split::Experts(_)) {
        // Checked with the model.
        return Ok(());
    }
    if let Split::Residual { by } = split {
        let calibrated = rule.activations.iter().any(ActivationFormat::is_calibrated);
        return match *by == rule.device {
            true => Err("leaves outliers to the same device".into()),
            false if !calibrated => Err("has outliers, but no format of a calibration: name one, \
                such as int8:tensor:static"
                .into()),
            false => Ok(()),
        };
    }
    if !matches!(split, Split::Columns { .. }) {
        let kinds = rule.segments.as_ref();
        if kinds.is_none_or(|kinds| kinds.iter().any(|k| k.traits().keeps_state)) {
            let why = "splits the rows of attention, which can be split by columns only: name other \
                       segments";
            return Err(why.into());
        }
        let lengths = split.lengths();
        if lengths.is_empty() || lengths.iter().any(|n| !(1..=MAX_LENGTH).contains(n)) {
            return Err(format!(
                "has standard lengths {lengths:?}; give some from 1 to {MAX_LENGTH}"
            ));
        }
    }
    if let Split::Rows { rest, .. } = split {
        let same = || "leaves the rest of the rows to the same device".to_string();
        return if *rest == rule.device { Err(same()) } else { Ok(()) };
    }
    let own = matches!(split, Split::Columns { .. }).then_some(rule.device.as_str());
    check_parts(split.parts(), own)
}

/// Checks that several devices have shares, the one that computes what cannot be split (`own`) the
/// largest.
pub(crate) fn check_parts(parts: &[Share], own: Option<&str>) -> Result<(), String> {
    for (i, part) in parts.iter().enumerate() {
        if part.share == 0 {
            return Err(format!("gives device {} a share of 0; leave it out", part.device));
        }
        if parts[..i].iter().any(|p| p.device == part.device) {
            return Err(format!("gives device {} two shares", part.device));
        }
    }
    if parts.len() < 2 {
        return Err("shares columns out among fewer than two devices".into());
    }
    let Some(device) = own else { return Ok(()) };
    let share = parts.iter().find(|p| p.device == device).map_or(0, |p| p.share);
    if parts.iter().any(|p| p.share > share) {
        return Err(format!(
            "computes what cannot be split on device {device}, which has not the largest share"
        ));
    }
    Ok(())
}

/// Checks that there are at least two stages, each with a valid split.
fn check_stages(rule: &Rule, stages: &[Stage]) -> Result<(), String> {
    if stages.len() < 2 {
        return Err("has fewer than two stages; leave the list out".into());
    }
    for stage in stages {
        if matches!(stage.split, Some(Split::Stages { .. })) {
            return Err("has stages within a stage".into());
        }
        if matches!(stage.split, Some(Split::Experts(_))) {
            return Err("shares experts out within a stage; leave the stages out".into());
        }
        let (device, split) = (stage.device.clone(), stage.split.clone());
        check_split(&Rule { device, split, ..rule.clone() })?;
    }
    if stages.iter().all(|s| s.device != rule.device) {
        let device = &rule.device;
        return Err(format!("has no stage on its own device {device}"));
    }
    Ok(())
}

/// Checks that the ops exist, and that no device takes over ops that it refuses itself.
fn check_refused(rule: &Rule) -> Result<(), String> {
    for (i, r) in rule.refused.iter().enumerate() {
        let meets = |o: &RefusedOps| {
            o.segments.iter().any(|s| r.segments.contains(s))
                && o.ops.iter().any(|op| r.ops.contains(op))
        };
        if r.by == r.device || rule.refused.iter().any(|o| o.device == r.by && meets(o)) {
            return Err(format!("has device {} compute what it is said to refuse", r.by));
        }
        if rule.refused[..i].iter().any(|o| o.device == r.device && meets(o)) {
            return Err(format!("says twice who computes what device {} refuses", r.device));
        }
        if r.segments.is_empty() || r.ops.is_empty() {
            return Err(format!("names no ops that device {} refuses", r.device));
        }
        if let Some(unknown) = r.ops.iter().find(|op| !Op::NAMES.contains(&op.as_str())) {
            return Err(format!(
                "says that device {} refuses op {unknown:?}, which does not exist; the ops are {}",
                r.device,
                Op::NAMES.join(", ")
            ));
        }
    }
    Ok(())
}

/// Checks the forms of products.
fn check_forms(rule: &Rule) -> Result<(), String> {
    let one_row = rule.group_rows.iter().find(|(_, rows)| **rows < 2);
    if let Some((role, rows)) = one_row {
        return Err(format!("has rows of {role:?} in groups of {rows}; name 2 rows or more"));
    }
    match rule.exchange.iter().find(|role| rule.group_rows.contains_key(role)) {
        Some(role) => Err(format!(
            "names {role:?} in \"exchange\" and in \"group_rows\"; a product has one form"
        )),
        None => Ok(()),
    }
}

/// Checks the numbers of rows to compile for.
fn check_buckets(rule: &Rule) -> Result<(), String> {
    let Some(rows) = &rule.row_buckets else { return Ok(()) };
    let ascending = rows.windows(2).all(|pair| pair[0] < pair[1]);
    if rows.is_empty() || !ascending || rows.iter().any(|n| !(1..=MAX_LENGTH).contains(n)) {
        return Err(format!(
            "has row buckets {rows:?}; give some from 1 to {MAX_LENGTH}, ascending, or none at all"
        ));
    }
    Ok(())
}

fn range(what: &'static str, got: usize, low: usize, high: usize) -> Result<(), PlanError> {
    let fits = (low..=high).contains(&got);
    if fits { Ok(()) } else { Err(PlanError::Range { what, got, low, high }) }
}
