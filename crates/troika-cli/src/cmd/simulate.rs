//! `troika simulate`.

use serde_json::{Map, json};
use troika::TokenUse;
use troika::sim::Soc;
use troika::trace::Tracer;
use troika_lab::{Figures, LabError, Shape, SimulateOptions, Simulation, WEIGHTS};

use crate::error::CliError;
use crate::flags::SimulateArgs;
use crate::flags::placement::read_plan;
use crate::{file, output, progress};

/// Runs a model on a SoC in virtual time, and prints how long it took.
pub fn run(args: &SimulateArgs) -> Result<(), CliError> {
    file::check("trace", args.trace.as_deref())?;
    file::check("plan", args.out.as_deref())?;
    let tracer = if args.trace.is_some() { Tracer::on() } else { Tracer::off() };
    let options = SimulateOptions {
        soc: Soc::find(&args.soc).map_err(LabError::from)?,
        shape: Shape::find(&args.model, WEIGHTS)?,
        strategy: args.strategy,
        plan: args.plan.as_deref().map(read_plan).transpose()?,
        prompt: args.n_prompt,
        generate: args.n_gen,
        sync: args.sync,
        exchange: true,
        co_run: args.co_run,
        tracer: tracer.clone(),
    };
    let planning = progress::unknown("making a plan");
    let simulation = Simulation::open(&options)?;
    planning.finish_and_clear();
    let figures = simulation.run(&mut progress::counting("generating"))?;
    if let Some(path) = &args.out {
        file::write_json("plan", path, &simulation.plan()?.to_json())?;
    }
    let phases = ["prefill", "decode"].into_iter().zip(figures.used());
    phases.for_each(|(phase, used)| tracer.note(format!("{phase}, {used}")));
    file::write_trace(&tracer, args.trace.as_deref())?;
    if args.json {
        return output::json(&fields(&options, &figures));
    }
    output::write(&table(&options, &figures))
}

fn fields(options: &SimulateOptions, f: &Figures) -> serde_json::Value {
    let [prompt, later] = f.used();
    json!({
        "soc": options.soc.name, "model": options.shape.name,
        "strategy": options.strategy.name(), "prompt": f.prompt, "generate": f.generated,
        "ttft_ms": f.ttft_ms(), "tpot_ms": f.tpot_ms(),
        "prefill_tok_per_s": f.prefill_rate(), "decode_tok_per_s": f.decode_rate(),
        "energy_j": f.energy_j(), "prefill_j": f.prefill_j, "prefill_w": f.prefill_w(),
        "decode_j": f.decode_j, "decode_w": f.decode_w(), "peak_bytes": f.peak_bytes,
        "prefill_j_by": f.prefill_parts.as_ref().map(|parts| {
            parts.iter().map(|(of, joules)| (of.clone(), json!(joules))).collect::<Map<_, _>>()
        }),
        "prefill_j_per_token": prompt.joules_per_token(),
        "decode_j_per_token": later.joules_per_token(),
        "prefill_cpu_ms_per_token": prompt.cpu_ms_per_token(),
        "decode_cpu_ms_per_token": later.cpu_ms_per_token(),
        "prepare_ms": f.prepare_ns as f64 * 1e-6,
        "frames_per_s": options.co_run.map(|_| {
            let [prefill, decode] = f.frame_rates;
            [Some(prefill), f.tpot_ms().map(|_| decode)]
        }),
    })
}

fn table(options: &SimulateOptions, f: &Figures) -> String {
    let or_none =
        |x: Option<f64>, unit: &str| x.map_or("not known".into(), |x| format!("{x:.2} {unit}"));
    let frames = options.co_run.map_or(String::new(), |_| {
        let [prefill, decode] = f.frame_rates;
        match f.tpot_ms() {
            Some(_) => format!("| frames beside | {prefill:.1} and {decode:.1} per s |\n"),
            None => format!("| frames beside | {prefill:.1} per s |\n"),
        }
    });
    let prepare = match f.prepare_ns {
        0 => String::new(),
        ns => format!("| of it, making code | {:.2} ms |\n", ns as f64 * 1e-6),
    };
    let phase = |name: &str, of: &TokenUse| {
        let (joules, watts) = (of.joules?, of.watts()?);
        let each = of.joules_per_token()? * 1e3;
        Some(format!("| of it, {name} | {joules:.2} J, {watts:.2} W, {each:.2} mJ/token |\n"))
    };
    let cpu = |name: &str, of: &TokenUse| {
        Some(format!("| CPU time, {name} | {:.3} ms/token |\n", of.cpu_ms_per_token()?))
    };
    let [prompt, later] = f.used();
    let by = f.prefill_parts.as_ref().map(|parts| {
        let each = parts.iter().map(|(of, joules)| format!("{of} {:.2}", joules * 1e3));
        format!("| of prefill, mJ | {} |\n", each.collect::<Vec<_>>().join(", "))
    });
    let used = [phase("prefill", &prompt), by, phase("decode", &later)];
    let used = used.into_iter().chain([cpu("prefill", &prompt), cpu("decode", &later)]);
    let used: String = used.flatten().collect();
    format!(
        "{} on {} (virtual), {}: {} + {} tokens\n\n\
         | | |\n| --- | ---: |\n\
         | time to first token | {:.2} ms |\n{prepare}\
         | time per later token | {} |\n\
         | prefill | {:.2} tok/s |\n\
         | decode | {} |\n\
         | energy | {} |\n{used}\
         | peak memory | {:.0} MiB |\n{frames}",
        options.shape.name,
        options.soc.name,
        options.strategy.name(),
        f.prompt,
        f.generated,
        f.ttft_ms(),
        or_none(f.tpot_ms(), "ms"),
        f.prefill_rate(),
        or_none(f.decode_rate(), "tok/s"),
        or_none(f.energy_j(), "J"),
        f.peak_bytes as f64 / f64::from(1 << 20),
    )
}
