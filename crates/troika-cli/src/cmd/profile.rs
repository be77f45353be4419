//! `troika profile`.

use serde_json::json;
use troika::solve::{Profile, ProfiledDevice, RunFit, SegmentPart};
use troika::trace::Tracer;
use troika_lab::ProfileOptions;

use super::run::open_options;
use crate::error::CliError;
use crate::flags::{ProfileArgs, profile_at};
use crate::interrupt::Interrupt;
use crate::{file, output, progress, resolve};

/// Measures a model on the devices, and writes the profile.
///
/// # Errors
/// An unusable model or device, a full disk, or Ctrl-C: results so far are kept.
pub fn run(args: &ProfileArgs) -> Result<(), CliError> {
    file::check("profile", args.out.as_deref())?;
    file::check("virtual SoC", args.soc_out.as_deref())?;
    let subject = resolve::subject(&args.subject)?;
    let interrupt = Interrupt::listen();
    let options = ProfileOptions {
        open: open_options(&args.open, Tracer::off())?,
        file: Some(profile_at(args.out.as_deref(), &args.open.compute.quant)?),
        soc: args.soc_out.is_some(),
        cancel: Some(interrupt.flag()),
    };
    let outcome = troika_lab::profile(&subject, &options, &mut progress::counting("measuring"))?;
    outcome.notes.iter().for_each(|note| output::note_line(note));
    if let (None, Some(kept)) = (&args.out, &outcome.file) {
        output::note_line(&format!("profile: {}", kept.display()));
    }
    if !outcome.profile.complete {
        let why = "measuring was ended; what is done is kept, and the same command goes on with it";
        return Err(CliError::Interrupted(why.into()));
    }
    if let (Some(path), Some(text)) = (&args.soc_out, &outcome.soc) {
        file::write("virtual SoC", path, |out| out.write_all(text.as_bytes()))?;
    }
    match args.json {
        true => output::json(&summary(&outcome.profile)),
        false => output::write(&table(&outcome.profile)),
    }
}

fn names(profile: &Profile) -> Vec<&str> {
    profile.subject.devices.iter().map(|d: &ProfiledDevice| d.name.as_str()).collect()
}

fn summary(profile: &Profile) -> serde_json::Value {
    let names = names(profile);
    let regret = profile.regret.unwrap_or_default();
    json!({
        "machine": profile.subject.machine,
        "devices": names,
        "runs": profile.runs.len(),
        "chunk": profile.chunk_length().map(|(_, rows)| rows),
        "regret": regret.median,
        "worst_regret": regret.worst,
        "choices": regret.choices,
        "error": regret.error,
    })
}

/// What was measured: for each kind of segment on each device a row's time and bandwidth, up to how
/// many rows more of them cost little beside reading the weights, and how good the fits are.
fn table(profile: &Profile) -> String {
    let names = names(profile);
    let mut text = String::from(
        "| device | segment | a row, us | GB/s | most rows, us | bound by reading up to, rows | error of the fit |\n\
         | --- | --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for fit in &profile.fits.runs {
        let whole = || {
            let of = |r: &&troika::solve::RunSample| {
                (r.device, r.segment, r.part, r.share) == (fit.device, fit.segment, fit.part, 64)
            };
            profile.runs.iter().filter(of)
        };
        let (first, last) = (whole().min_by_key(|r| r.rows), whole().max_by_key(|r| r.rows));
        let (Some(first), Some(last)) = (first, last) else { continue };
        text.push_str(&format!(
            "| {} | {} | {:.1} | {:.1} | {}: {:.1} | {} | {:.1} % |\n",
            names.get(fit.device).unwrap_or(&"?"),
            named(fit),
            first.undisturbed_ns() / 1e3,
            first.gb_s(),
            last.rows,
            last.undisturbed_ns() / 1e3,
            fit.time.knee,
            fit.error * 100.0
        ));
    }
    text.push_str(&expert_groups(profile));
    text.push_str(&pairs(profile));
    text.push_str(&chunks(profile));
    if let Some(r) = profile.regret {
        text.push_str(&format!(
            "\non {} runs that were not fitted, the fits are off by {:.1} % (median); ",
            r.runs,
            r.error * 100.0
        ));
        text.push_str(&match r.choices {
            0 => "there was nothing to choose between\n".to_string(),
            n => format!(
                "{n} choices by them lose {:.1} % (median), {:.1} % at worst\n",
                r.median * 100.0,
                r.worst * 100.0
            ),
        });
    }
    text
}

/// A kind of segment, and which part of it.
fn named(fit: &RunFit) -> String {
    match fit.part {
        SegmentPart::Whole => fit.segment.name().to_string(),
        part => format!("{}: {}", fit.segment.name(), part.name()),
    }
}

/// The sweep of groups of experts: how long each size and capacity takes on each device.
fn expert_groups(profile: &Profile) -> String {
    let names = names(profile);
    let mut text = String::new();
    for run in profile.runs.iter().filter(|run| run.part == SegmentPart::Group) {
        if text.is_empty() {
            text += "\n| device | groups, experts x rows of each | a run, us | a row, us | GB/s |\n\
                     | --- | --- | ---: | ---: | ---: |\n";
        }
        let us = run.undisturbed_ns() / 1e3;
        text.push_str(&format!(
            "| {} | {} | {us:.1} | {:.2} | {:.1} |\n",
            names.get(run.device).unwrap_or(&"?"),
            run.graph,
            us / run.rows as f64,
            run.gb_s()
        ));
    }
    text
}

/// What a token takes in chunks of each length, and the length that plans take.
fn chunks(profile: &Profile) -> String {
    let names = names(profile);
    let Some((device, chosen)) = profile.chunk_length() else { return String::new() };
    let mut text = String::from(
        "\n| device | rows of a chunk | qkv, us a token | ffn, us a token |\n\
         | --- | ---: | ---: | ---: |\n",
    );
    for (at, name) in names.iter().enumerate() {
        for t in profile.chunk_times(at) {
            let (rows, qkv, ffn) = (t.rows, t.qkv_ns / 1e3, t.ffn_ns / 1e3);
            text.push_str(&format!("| {name} | {rows} | {qkv:.2} | {ffn:.2} |\n"));
        }
    }
    text.push_str(&format!(
        "\nplans by this profile take chunks of {chosen} tokens unless told otherwise: on {}, none is \
         over 3 % faster\n",
        names.get(device).unwrap_or(&"?")
    ));
    text
}

/// The measurements of pairs of devices.
fn pairs(profile: &Profile) -> String {
    let names = names(profile);
    let mut text = String::new();
    if !profile.pairs.is_empty() {
        text.push_str(
            "\n| from | to | hand-over, us | to one that sleeps, us | times as slow beside it, by rows |\n\
             | --- | --- | ---: | ---: | --- |\n",
        );
    }
    for p in &profile.pairs {
        let slow: Vec<String> =
            p.slowdowns.iter().map(|s| format!("{}: {:.2}", s.rows, s.factor)).collect();
        text.push_str(&format!(
            "| {} | {} | {:.1} | {:.1} | {} |\n",
            names.get(p.from).unwrap_or(&"?"),
            names.get(p.to).unwrap_or(&"?"),
            p.predicted_ns.median / 1e3,
            p.blocking_ns.median / 1e3,
            slow.join(", ")
        ));
    }
    text
}
