//! `troika export`.

use std::path::Path;
use std::time::Instant;

use serde_json::json;
use troika::model::spec::ModelSpec;
#[cfg(target_os = "macos")]
use troika::npu::mil::AppleCoreMl;
use troika::npu::mil::{Delegation, Package, PackageOptions};
use troika::npu::{Rewrite, Rewrites};
use troika::weights::{BindOptions, WeightStore};
use troika::{CoreMlOptions, ExpertFunctions, OpenOptions, describe, export_core_ml};
use troika_lab::Subject;

use crate::error::CliError;
use crate::flags::ExportArgs;
use crate::flags::placement::read_plan;
use crate::interrupt::Interrupt;
use crate::{output, resolve};

/// Rows of the function for prompts, unless others are given: as Yetter has them.
const USUAL_ROWS: usize = 512;

/// Writes the package, and says which unit is expected to run what.
pub fn run(args: &ExportArgs) -> Result<(), CliError> {
    if args.out.extension() != Some("mlpackage".as_ref()) {
        let why = format!("-o {}: the name of a package ends with .mlpackage", args.out.display());
        return Err(CliError::Usage(why));
    }
    let subject = resolve::subject(&args.subject)?;
    let start = Instant::now();
    let (spec, store) = bound(&subject)?;
    let has_experts = spec.layers.iter().any(|layer| layer.moe().is_some());
    let experts = match &args.plan {
        Some(file) => Some(ExpertFunctions::Planned(Box::new(read_plan(file)?))),
        None => args.expert_groups.clone(),
    };
    if experts.is_some() && !has_experts {
        return Err(CliError::Usage(
            "the model has no experts: --expert-groups and --plan group experts".into(),
        ));
    }
    let (functions, positions) = functions(args, spec.context)?;
    let options = CoreMlOptions {
        head_inside: args.head == "inside",
        experts,
        package: PackageOptions {
            functions,
            positions,
            stateful: args.state == "stateful",
            weights: args.weights,
            rewrites: rewrites(args),
        },
    };
    let left = has_experts && options.experts.is_none();
    output::warn(left.then_some(
        "routers and experts are left to another device; --expert-groups writes experts, too",
    ));
    let interrupt = Interrupt::listen();
    let may_continue = || !interrupt.pressed();
    let package = export_core_ml(&spec, &store, &args.out, &options, &may_continue);
    if interrupt.pressed() && package.is_err() {
        return Err(CliError::Interrupted("no package was written: Ctrl-C ended it".into()));
    }
    let package = package?;
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
    output::write(&table(&package, &args.out, seconds))
}

/// What was written, for people.
fn table(package: &Package, out: &Path, seconds: f64) -> String {
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
        out.display(),
        package.weight_bytes as f64 / 1e6,
        package.program_bytes as f64 / 1e6,
    ));
    text
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
fn delegated(mut package: Package, out: &Path) -> Package {
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
