//! `troika plan`.

use std::collections::BTreeMap;

use troika::graph::Value;
use troika::model::lower::Lowered;
use troika::plan::{Goal, Phase, Plan, Refusal};
use troika::program::{CopyCount, PhaseCopies};
use troika::solve::{Alternative, HeldWeights};
use troika::trace::Tracer;
use troika::{OpenOptions, Planned};
use troika_lab::Subject;

use super::op_times::OpTimes;
use super::run::open_options;
use crate::error::CliError;
use crate::flags::PlanArgs;
use crate::{file, output, resolve, stats};

/// Makes a plan, and prints or writes it.
pub fn run(args: &PlanArgs) -> Result<(), CliError> {
    file::check("plan", args.out.as_deref())?;
    let subject = resolve::subject(&args.subject)?;
    let compute = &args.open.compute;
    let is_profiled = args.npu_profiling.npu_profiling.is_some();
    let tracer = if is_profiled { Tracer::on() } else { Tracer::off() };
    let mut options = open_options(&args.open, tracer.clone())?;
    args.npu_profiling.apply(&mut options)?;
    compute.placement.use_own_profile(&compute.quant, &mut options);
    options.devices.auto = compute.placement.auto_or_open(&compute.quant);
    let options = subject.chosen(&options)?;
    let mut planned = subject.bind(&options, false)?.plan(&options)?;
    if args.compile {
        compile(&subject, &options, &mut planned)?;
    }
    let plan = &planned.plan;
    output::warn(&planned.changes);
    tracer.notes().iter().for_each(|note| output::note_line(note));
    if let Some(path) = &args.out {
        file::write_json("plan", path, &plan.to_json())?;
    }
    match (args.explain, &args.out) {
        (true, _) => {
            let mut beaten = beaten(plan, compute.placement.goal, &planned.alternatives);
            for line in &planned.unpriced {
                beaten.push_str(&format!("\nno price: {line}\n"));
            }
            let mut delegated = delegated(plan, &planned.refusals);
            if args.compile {
                delegated.push_str("\ncompiled: the devices took what the plan gives them\n");
                let (times, lowered) = (OpTimes::of(&tracer.spans()), planned.model.lowered(plan)?);
                let devices = &planned.model.devices;
                let is_compiled = |name: &str| {
                    devices.iter().any(|d| d.name() == name && d.caps().code_weights.is_some())
                };
                delegated.push_str(&times.table(plan, &lowered, is_profiled, is_compiled));
            }
            let held = held(&planned.held()?);
            let copied = copied(&planned.copies()?);
            let results = results(plan, &*planned.model.lowered(plan)?);
            output::write(&(plan.explain() + &delegated + &beaten + &held + &results + &copied))
        }
        (false, None) => output::json_document(&plan.to_json()),
        (false, Some(_)) => Ok(()),
    }
}

/// Compiles the model by a plan, which then has what devices refused meanwhile elsewhere.
fn compile(
    subject: &Subject,
    options: &OpenOptions,
    planned: &mut Planned,
) -> Result<(), CliError> {
    let (plan, fallback) = (planned.plan.clone().into(), true);
    let model = subject.open(&OpenOptions { plan, fallback, ..options.clone() })?;
    planned.plan = (*model.plan()).clone();
    for refusal in model.refusals() {
        if !planned.refusals.contains(refusal) {
            planned.refusals.push(refusal.clone());
        }
    }
    planned.changes.extend_from_slice(model.warnings());
    Ok(())
}

/// The plan's predicted costs, and the plans that it beat.
fn beaten(plan: &Plan, goal: Goal, alternatives: &[Alternative]) -> String {
    let Some(p) = &plan.predicted else { return String::new() };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut text = format!(
        "\npredicted by {}, for {} of a prompt and {} more; the goal is {}\n\n\
         | plan | first token, ms | next tokens, ms | energy, J | weights, MiB | worse by |\n\
         | --- | ---: | ---: | ---: | ---: | ---: |\n",
        p.source,
        stats::counted(p.prompt, "token"),
        p.generate,
        goal.name()
    );
    let best = p.score(goal);
    let better = |a: &Alternative| a.predicted.score(goal) * 1.0005;
    let chosen = ("chosen".to_string(), p);
    let others = alternatives.iter().map(|a| (a.name.clone(), &a.predicted));
    for (name, p) in std::iter::once(chosen).chain(others) {
        let energy = p.energy_j.map_or("not known".to_string(), |j| format!("{j:.2}"));
        text.push_str(&format!(
            "| {name} | {:.3} | {:.3} | {energy} | {:.1} | {:.1} % |\n",
            p.ttft_us / 1e3,
            p.tpot_us / 1e3,
            mib(p.total_bytes),
            (p.score(goal) / best - 1.0) * 100.0
        ));
    }
    if alternatives.iter().any(|a| better(a) < best) {
        text.push_str(
            "\nA plan with more devices is chosen for a gain of 3 %, and of what a profile is off (groups of experts: 7 %).\n",
        );
    }
    if !p.lengths.is_empty() {
        text.push_str("\n| prompt of | first token, ms |\n| ---: | ---: |\n");
        for l in &p.lengths {
            text.push_str(&format!("| {} | {:.3} |\n", l.tokens, l.ttft_us / 1e3));
        }
    }
    text
}

/// The ops that devices refuse, with who computes them and why.
fn delegated(plan: &Plan, refusals: &[Refusal]) -> String {
    let met = plan.refused_by_rules(refusals);
    if met.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "\n| op | of | not on | but on | because |\n| --- | --- | --- | --- | --- |\n",
    );
    for (refusal, by) in met {
        let Refusal { device, segment, op, why } = refusal;
        text.push_str(&format!("| {op} | {} | {device} | {by} | {why} |\n", segment.name()));
    }
    text
}

/// The weights of each device, and how often it holds them.
fn held(devices: &[HeldWeights]) -> String {
    let mut text = String::from(
        "\n| device | weights, MiB | held for rows | held, MiB |\n| --- | ---: | --- | ---: |\n",
    );
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    for HeldWeights { device, stored, held, rows } in devices.iter().filter(|d| d.stored > 0) {
        let rows: Vec<String> = rows.iter().map(usize::to_string).collect();
        let rows = if rows.is_empty() { "any, once".to_string() } else { rows.join(", ") };
        text.push_str(&format!(
            "| {device} | {:.1} | {rows} | {:.1} |\n",
            mib(*stored),
            mib(*held)
        ));
    }
    text
}

/// The bytes of what each operator of a chunk computes, a line for layers that are alike, and the sums.
fn results(plan: &Plan, lowered: &Lowered) -> String {
    let rows = plan.prefill.chunk;
    let mut lines: Vec<(String, usize)> = Vec::new();
    let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for s in &lowered.segments {
        let Some(rule) = plan.rule(Phase::Prefill, s.kind, s.layer) else { continue };
        for node in &s.graph.nodes {
            let op = node.op.name();
            let values = node.outputs.iter().map(|id| s.graph.value(*id));
            let kib = (rows * values.map(Value::row_bytes).sum::<usize>()) as f64 / 1024.0;
            let is_kept = node.outputs.iter().any(|id| s.graph.outputs.contains(id));
            let place = if is_kept { "between segments" } else { "within" };
            let device = rule.device_of(&rule.device, s.kind, op);
            let sum = sums.entry(device).or_default();
            *sum = (sum.0 + kib, sum.1 + 1);
            let line = format!("| {op} | {} | {device} | {place} | {kib:.1}", s.kind.name());
            match lines.iter_mut().find(|(known, _)| *known == line) {
                Some((_, count)) => *count += 1,
                None => lines.push((line, 1)),
            }
        }
    }
    let mut text = format!(
        "\n| results of | of | on | kept | KiB for {rows} rows | times |\n\
         | --- | --- | --- | --- | ---: | ---: |\n"
    );
    let sum = |(device, (kib, count))| (format!("| all | | {device} | | {kib:.1}"), count);
    lines.extend(sums.into_iter().map(sum));
    lines.iter().for_each(|(line, count)| text.push_str(&format!("{line} | {count} |\n")));
    text
}

/// The copies between memories, with a line per phase and pair of memories.
fn copied(phases: &[PhaseCopies]) -> String {
    let mut text = String::from(
        "\n| copies of | for | from | to | copies | bytes |\n\
         | --- | --- | --- | --- | ---: | ---: |\n",
    );
    for p in phases {
        let before = format!("{}, once", stats::counted(p.cached, "cached token"));
        p.handover.iter().for_each(|c| text.push_str(&copy_line("caches", &before, c)));
        let tokens = match p.phase {
            Phase::Prefill if p.tokens == 1 => "a chunk of a token".to_string(),
            Phase::Prefill => format!("a chunk of {} tokens", p.tokens),
            Phase::Decode => "a decoded token".to_string(),
        };
        p.values.iter().for_each(|c| text.push_str(&copy_line("values", &tokens, c)));
        if p.values.is_empty() {
            text.push_str(&format!("| values | {tokens} | | | no copies | |\n"));
        }
    }
    text
}

fn copy_line(what: &str, tokens: &str, c: &CopyCount) -> String {
    let memory = |device: &String| format!("memory of {device}");
    let [from, to] =
        [&c.from, &c.to].map(|at| at.as_ref().map_or("host memory".to_string(), memory));
    format!("| {what} | {tokens} | {from} | {to} | {} | {} |\n", c.count, c.bytes)
}
