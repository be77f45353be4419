//! What was measured as the file of a virtual SoC. Each figure says where it is from.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;
use troika::BoundModel;
use troika::sim::Soc;
use troika_device::{Caps, Device, SpaceId};
use troika_model::lower::{Lowered, SegmentKind};
use troika_solve::{PairSample, Profile, RunSample, SegmentPart};
use troika_time::FittedTime;

use super::pairs::large;
use crate::error::{LabError, Result};

/// The file's text.
///
/// # Errors
/// A device without measurements.
pub(super) fn soc_file(profile: &Profile, model: &BoundModel, lowered: &Lowered) -> Result<String> {
    let of = &profile.subject;
    let mut text = format!(
        "# Measured by troika profile (version {}) with {} ({}).\n\
         # Fits are those of the profile: docs/virtual-socs.md says what the figures are.\n\
         name = {}\nnumerics = \"off\"\n",
        of.program,
        of.model,
        of.types.join(", "),
        quoted(&of.machine),
    );
    if let Some((rate, from)) = together(profile) {
        text += &format!("\n[memory]\n{}", line("bandwidth_gb_s", rate, &from));
    }
    for (at, device) in model.devices.iter().enumerate() {
        if !profile.runs.iter().any(|r| r.device == at) {
            return Err(LabError::Impossible(format!(
                "no segment runs as a whole on device {}, so nothing was measured of it",
                device.name()
            )));
        }
        text += &processor(profile, &**device, at, lowered);
    }
    // What is written can be read.
    Soc::parse("the measured SoC", &text)?;
    Ok(text)
}

/// A string as TOML has it.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A number with five digits that count.
fn figure(value: f64) -> String {
    format!("{value:.4e}").parse::<f64>().unwrap_or(value).to_string()
}

fn line(field: &str, value: f64, from: &str) -> String {
    format!("{field} = {{ value = {}, from = {} }}\n", figure(value), quoted(from))
}

fn list(field: &str, values: impl Iterator<Item = f64>, from: &str) -> String {
    let values: Vec<String> = values.map(figure).collect();
    let values = values.join(", ");
    format!("{field} = {{ value = [{values}], from = {} }}\n", quoted(from))
}

/// The bandwidth that all devices reach side by side: what each reads alone, by how much slower it
/// is beside another one.
fn together(profile: &Profile) -> Option<(f64, String)> {
    let mut sum = 0.0;
    let mut parts = Vec::new();
    for (at, device) in profile.subject.devices.iter().enumerate() {
        let slowdown = |p: &PairSample| p.slowdowns.first().map_or(1.0, |s| s.factor);
        let beside = profile.pairs.iter().filter(|p| p.to == at).map(slowdown);
        let rate = reading(profile, at)?.gb_s() / beside.reduce(f64::max)?;
        sum += rate;
        parts.push(format!("{} {rate:.1}", device.name));
    }
    let from =
        format!("measured: GB/s of weights, a row on each side by side: {}", parts.join(", "));
    Some((sum, from))
}

/// The run that tells a device's bandwidth. The slowdowns were measured with the same run.
fn reading(profile: &Profile, device: usize) -> Option<&RunSample> {
    let graph = large(profile, device)?;
    profile.runs.iter().find(|r| (r.device, r.rows) == (device, 1) && r.graph == graph)
}

/// The whole graph of a device with the highest rate.
fn fastest(profile: &Profile, device: usize, rate: fn(&RunSample) -> f64) -> Option<&RunSample> {
    let whole = profile.runs.iter().filter(|r| r.device == device && r.is_whole());
    whole.max_by(|a, b| rate(a).total_cmp(&rate(b)))
}

fn processor(profile: &Profile, device: &dyn Device, at: usize, lowered: &Lowered) -> String {
    let kind = device.kind().to_string().to_lowercase();
    let mut text = format!("\n[[processor]]\nname = {}\n", quoted(device.name()));
    text += &format!("kind = \"{kind}\"\n{}", limits(device.caps()));
    let mut refused = BTreeSet::new();
    for segment in &lowered.segments {
        let whys = device.examine(&segment.graph).into_iter();
        let ops = segment.graph.nodes.iter().zip(whys).filter(|(_, why)| why.is_some());
        refused.extend(ops.map(|(node, _)| quoted(node.op.name())));
    }
    if !refused.is_empty() {
        let refused: Vec<String> = refused.into_iter().collect();
        text += &format!("refuses = [{}]\n", refused.join(", "));
    }
    let peak = |r: &RunSample| 2.0 * r.work.products * r.work.room / r.undisturbed_ns();
    let us = |r: &RunSample| r.undisturbed_ns() / 1e3;
    let mut rate = |field: &str, run: Option<&RunSample>, of: fn(&RunSample) -> f64| {
        let Some(run) = run else { return };
        let from = format!("measured: {} of {} rows", run.segment.name(), run.rows);
        text += &line(field, of(run).max(1e-6), &from);
    };
    rate("peak_gops", fastest(profile, at, peak), peak);
    rate("bandwidth_gb_s", reading(profile, at), RunSample::gb_s);
    rate("launch_us", fastest(profile, at, |r| -r.undisturbed_ns()), us);
    let pairs = || profile.pairs.iter().filter(|p| p.from == at);
    let told = |ns: fn(&PairSample) -> f64| pairs().map(ns).fold(0.0, f64::max) / 1e3;
    let [blocking, predicted] = [told(|p| p.blocking_ns.median), told(|p| p.predicted_ns.median)];
    if pairs().next().is_some() {
        // What a list takes besides its runs is submitting it, and telling of its end.
        let submit = (profile.devices[at].submit_ns.median / 1e3 - predicted).max(0.0);
        text += &line("submit_us", submit, "measured: a list of a run, without telling of its end");
        let from = quoted("measured: until another device goes on");
        text += &format!(
            "hand_over = {{ blocking_us = {{ value = {}, from = {from} }}, \
             predicted_us = {{ value = {}, from = {from} }} }}\n",
            figure(blocking),
            figure(predicted)
        );
    }
    let compile = &profile.devices[at].compile_ns;
    text += &line("compile_us", compile.median / 1e3, "measured: a median of all graphs");
    text + &measured(profile, at, lowered)
}

/// The limits that a device states.
fn limits(caps: &Caps) -> String {
    let mut text = format!(
        "queue_waits = {}\nqueue_depth = {}\nstrided_rows = {}\noffset_alignment = {}\n\
         bakes_weights = {}\nown_memory = {}\nstatic_shapes = {}\n",
        caps.queue_waits,
        caps.queue_depth,
        caps.strided_rows,
        caps.offset_alignment,
        caps.bakes_weights,
        caps.spaces.first().is_some_and(|s| *s != SpaceId::HOST),
        caps.static_shapes,
    );
    if !caps.row_buckets.is_empty() {
        text += &format!("row_buckets = {:?}\n", caps.row_buckets);
    }
    for (field, bytes) in [
        ("max_binding_bytes", caps.max_binding_bytes),
        ("max_graph_bytes", caps.max_graph_bytes),
        ("max_graphs", caps.max_graphs.map(|n| n as u64)),
        ("max_resident_bytes", caps.max_resident_bytes),
    ] {
        let _ = bytes.map(|bytes| writeln!(text, "{field} = {bytes}"));
    }
    text
}

/// Fits of the runs, one for each set of ops that graphs consist of.
fn measured(profile: &Profile, at: usize, lowered: &Lowered) -> String {
    let mut alike: Vec<(BTreeSet<&str>, Vec<SegmentKind>)> = Vec::new();
    for kind in SegmentKind::ALL {
        let graphs = lowered.segments.iter().filter(|s| s.kind == kind).map(|s| &s.graph);
        let ops = graphs.flat_map(|g| &g.nodes).map(|n| n.op.name());
        let ops: BTreeSet<&str> = ops.filter(|op| *op != "convert").collect();
        if !profile.runs.iter().any(|r| (r.device, r.segment) == (at, kind)) {
            continue;
        }
        match alike.iter_mut().find(|(known, _)| *known == ops) {
            Some((_, kinds)) => kinds.push(kind),
            None => alike.push((ops, vec![kind])),
        }
    }
    let mut text = String::new();
    for (ops, kinds) in alike {
        let Some((time, error)) = profile.fit_of(at, &kinds, SegmentPart::Whole) else { continue };
        let names: Vec<&str> = kinds.iter().map(|k| k.name()).collect();
        let from = format!(
            "measured: a fit of {}, off by {:.1} % (median)",
            names.join(" and "),
            error * 100.0
        );
        let ops: Vec<String> = ops.into_iter().map(quoted).collect();
        let _ = writeln!(text, "\n[[processor.measured]]\nops = [{}]", ops.join(", "));
        text += &fitted(&time, &from);
    }
    let groups = profile.fit_of(at, &[SegmentKind::Experts], SegmentPart::Group);
    if let Some((time, error)) = groups {
        let from =
            format!("measured: a fit of groups of experts, off by {:.1} % (median)", error * 100.0);
        text += "\n[[processor.measured]]\nops = [\"expert_group\"]\n";
        text += &fitted(&time, &from);
    }
    text
}

fn fitted(time: &FittedTime, from: &str) -> String {
    let fields = [
        "fixed_ns",
        "ns_per_value",
        "ns_per_weight_byte",
        "ns_per_product",
        "ns_per_attended",
        "ns_per_cache_byte",
    ];
    let terms = fields.into_iter().zip(time.terms);
    let mut text: String =
        terms.filter(|(_, t)| *t > 0.0).map(|(field, t)| line(field, t, from)).collect();
    if time.knee > 0.0 {
        text += &line("free_rows", time.knee, from);
    }
    text += &list("rows", time.factors.iter().map(|f| f.0), from);
    text + &list("factors", time.factors.iter().map(|f| f.1), from)
}
