//! `troika export`.

use std::time::Instant;

use serde_json::json;
use troika::model::spec::ModelSpec;
#[cfg(target_os = "macos")]
use troika::npu::mil::{AppleCoreMl, Package};
use troika::npu::mil::{Delegation, PackageOptions};
use troika::npu::{Rewrite, Rewrites};
use troika::weights::{BindOptions, WeightStore};
use troika::{CoreMlOptions, OpenOptions, describe, export_core_ml};
use troika_lab::Subject;

use crate::error::CliError;
use crate::flags::ExportArgs;
use crate::{output, resolve};

/// Rows of the function for prompts, unless others are given: as Yetter has them.
const USUAL_ROWS: usize = 512;

/// Writes the package, and says which unit is expected to run what.
pub fn run(args: &ExportArgs) -> Result<(), CliError> {
    let subject = resolve::subject(&args.subject)?;
    let start = Instant::now();
    let (spec, store) = bound(&subject)?;
    let has_experts = spec.layers.iter().any(|layer| layer.moe().is_some());
    if args.expert_groups.is_some() && !has_experts {
        return Err(CliError::Usage("--expert-groups: the model has no experts".into()));
    }
    let (functions, positions) = functions(args, spec.context)?;
    let options = CoreMlOptions {
        head_inside: args.head == "inside",
        experts: args.expert_groups,
        package: PackageOptions {
            functions,
            positions,
            stateful: args.state == "stateful",
            weights: args.weights,
            rewrites: rewrites(args),
        },
    };
    let left = has_experts && args.expert_groups.is_none();
    output::warn(left.then_some(
        "routers and experts are left to another device; --expert-groups writes experts, too",
    ));
    let package = export_core_ml(&spec, &store, &args.out, &options)?;
    let seconds = start.elapsed().as_secs_f64();
    #[cfg(target_os = "macos")]
    let package = delegated(package, &args.out);
    let units = package.delegation.iter();
    let units = units.map(|(function, ops)| json!({"function": function, "ops": ops}));
    if args.json {
        return output::json(&json!({
            "package": args.out.display().to_string(),
            "weight_bytes": package.weight_bytes,
            "program_bytes": package.program_bytes,
            "seconds": seconds,
            "functions": units.collect::<Vec<_>>(),
        }));
    }
    let asked = package.delegation.iter().flat_map(|f| &f.1).any(|d| !d.in_fact_on.is_empty());
    let (head, rule) = if asked { (" in fact on |", " --- |") } else { ("", "") };
    let mut text = format!(
        "| function | op | count | expected on | why |{head}\n| --- | --- | ---: | --- | --- |{rule}\n",
    );
    for (function, ops) in &package.delegation {
        for d in ops {
            let (op, count, unit, why) = (&d.op, d.count, d.unit, d.why);
            let found = if asked { in_fact_on(d) } else { String::new() };
            text.push_str(&format!("| {function} | {op} | {count} | {unit} | {why} |{found}\n"));
        }
    }
    text.push_str(&format!(
        "\n{}: {:.1} MB of weights, {:.1} MB of program, in {seconds:.1} s\n",
        args.out.display(),
        package.weight_bytes as f64 / 1e6,
        package.program_bytes as f64 / 1e6,
    ));
    output::write(&text)
}

/// What the model is, and its weights. Those of a shape are made when they are read.
fn bound(subject: &Subject) -> Result<(ModelSpec, WeightStore), CliError> {
    Ok(match subject {
        Subject::Files(source) => {
            describe(source, BindOptions::default()).map(|of| (of.spec, of.store))?
        }
        Subject::Synthetic(_) => {
            subject.bind(&OpenOptions::default(), false).map(|of| (of.spec, of.store))?
        }
    })
}

/// Asks Core ML which units it takes; if that fails, with a warning.
#[cfg(target_os = "macos")]
fn delegated(mut package: Package, out: &std::path::Path) -> Package {
    let asked = AppleCoreMl::delegate(out, &mut package.delegation);
    output::warn(
        asked.err().map(|why| format!("Core ML does not say which units it takes: {why}")),
    );
    package
}

/// The cell of the units that Core ML takes: `ane`, or `ane 28, cpu 2`.
fn in_fact_on(of: &Delegation) -> String {
    let alone = of.in_fact_on.len() == 1;
    let named =
        |(unit, n): (&&str, _)| if alone { unit.to_string() } else { format!("{unit} {n}") };
    let units: Vec<String> = of.in_fact_on.iter().map(named).collect();
    format!(" {} |", units.join(", "))
}

/// The rewrites.
fn rewrites(args: &ExportArgs) -> Rewrites {
    let mut all = match args.npu_rewrites.is_empty() {
        true => Rewrites::of_core_ml().0,
        false => args.npu_rewrites.clone(),
    };
    let (min_rows, divider) = (args.min_seq_length, args.seq_length_divider);
    if divider > 1 {
        all.push(Rewrite::SliceQueries { min_rows, divider });
    }
    Rewrites(all)
}

/// The functions with their numbers of rows, and the positions of the caches.
///
/// # Errors
/// A function of more rows than positions.
fn functions(args: &ExportArgs, context: usize) -> Result<(Vec<(String, usize)>, usize), CliError> {
    let positions = args.ctx_size.unwrap_or(context.min(2048));
    if positions > context {
        let why = format!("-c {positions}: the model has {context} positions");
        return Err(CliError::Usage(why));
    }
    let mut lengths = args.prefill.clone();
    if lengths.is_empty() {
        lengths.push(USUAL_ROWS.min(positions));
    }
    lengths.sort_unstable();
    lengths.dedup();
    if let Some(rows) = lengths.iter().find(|rows| **rows > positions) {
        return Err(CliError::Usage(format!(
            "--prefill {rows}: the caches have {positions} positions; give fewer rows, or more \
             positions with -c"
        )));
    }
    let named = |rows: &usize| (format!("prefill_{rows}"), *rows);
    let prefill = lengths.iter().filter(|rows| **rows > 1).map(named);
    Ok((prefill.chain([("decode".to_string(), 1)]).collect(), positions))
}
