//! Reproduces tables of papers on virtual SoCs.
//!
//! Each target is an experiment on the engine, with the paper's value and a tolerance that was
//! fixed before any simulator existed. Constants of the SoC files may be chosen by calibration
//! targets (CAL), but not by held-out ones (HO). Structural ones (STR) must simply hold.

mod baselines;
mod buffers;
mod caches;
mod decode;
mod experts;
mod lab;
mod machine;
mod memory;
mod outcome;
mod outliers;
mod planner;
mod prefill;
mod preload;
mod presets;
mod processors;
mod profiles;
mod scheduling;
mod system;
mod two_cpus;

use serde_json::{Value, json};
use troika::DeviceOptions;
use troika::plan::median;

use lab::Lab;
use outcome::RunWhen::{self, Always, Elsewhere, Named};
use outcome::{Kind, Outcome, Target, Verdict};

use crate::Result;

/// A table of all claims, in the papers' order.
const CLAIMS: &str = include_str!("claims.md");

/// What several experiments do.
const KERNELS: &str = "computes with real kernels";
/// What a command prints for a model of one's own.
const OWN_MODEL: &str = "it needs a trained model of full size: troika calibrate MODEL --text FILE \
    -o calibration.json prints it for a model of one's own; it was not run on one";

/// The experiments of all claims, by their ids.
const EXPERIMENTS: &[(&str, RunWhen)] = &[
    ("C01", Named(KERNELS, "C01 C02 M28", buffers::same_as_plain)),
    ("C02", Named(KERNELS, "C01 C02 M28", buffers::fewer_calls)),
    ("C04", Named("records routing with real kernels", "C04", caches::cached)),
    ("C05", Named(KERNELS, "M26 M27 C05", experts::predicted)),
    ("C06", Named("computes with real kernels and reads from a disk", "C06", preload::preloaded)),
    ("C07", Always(profiles::units_are_kept)),
    ("H01", Always(|lab| processors::table_3(lab, "gpu"))),
    ("H02", Always(|lab| processors::table_3(lab, "npu"))),
    ("H03", Always(processors::order)),
    ("H04", Always(processors::stages)),
    ("H05", Always(processors::bandwidth)),
    ("H06", Always(processors::hand_over)),
    ("H07", Always(processors::preparation)),
    ("H08", Always(baselines::anchors)),
    ("H09", Always(system::power)),
    ("H10", Always(processors::choices)),
    ("H11", Always(processors::ranges)),
    ("H12", Always(prefill::prefill_256)),
    ("H13", Always(prefill::tensor_over_layer)),
    ("H14", Always(prefill::small_model)),
    ("H15", Always(prefill::dynamic_length)),
    ("H16", Always(prefill::all_lengths)),
    ("H17", Always(prefill::above_standard)),
    ("H18", Always(prefill::against_pipe)),
    ("H19", Always(decode::rates)),
    ("H20", Always(decode::tensor_over_layer)),
    ("H21", Always(prefill::fast_sync)),
    ("H22", Always(decode::fast_sync)),
    ("H23", Always(prefill::ablation)),
    ("H24", Always(baselines::end_to_end)),
    ("H25", Always(baselines::prefill_most)),
    ("H26", Always(system::against_gpu)),
    ("H27", Always(system::power_order)),
    ("H28", Always(system::game)),
    ("H29", Always(prefill::elite)),
    (
        "H30",
        Named(
            KERNELS,
            "H30; of random pieces pieces_of_float_models_give_the_bits_of_the_whole (cargo test -p \
                 conformance --test partition)",
            machine::partitions,
        ),
    ),
    (
        "H31",
        Elsewhere(
            "it measures real devices: troika profile prints its regret; in virtual time \
                 chosen_plans_keep_what_they_promise (cargo test -p troika-cli --test profile)",
        ),
    ),
    ("H32", Named("measures real queues", "H32", machine::waits)),
    (
        "H33",
        Elsewhere(
            "it is a test: a_token_over_several_devices_takes_no_memory \
                 (cargo test -p troika-engine --test allocations)",
        ),
    ),
    ("H34", Always(decode::elite)),
    ("H35", Always(baselines::long_bench)),
    ("L27", Always(outliers::shared)),
    ("L28", Named(KERNELS, "L28", outliers::chunked)),
    (
        "L29",
        Elsewhere(
            "it is a test: the_clipped_product_and_its_outliers_add_up (cargo test -p \
                 conformance --test npu)",
        ),
    ),
    ("L30", Elsewhere(OWN_MODEL)),
    ("L31", Elsewhere(OWN_MODEL)),
    ("L32", Elsewhere(OWN_MODEL)),
    (
        "L33",
        Elsewhere(
            "it needs public sets and a trained model of full size; for any model, troika \
                 perplexity MODEL --file TEXT --calibration FILE --device npu:...,cpu --outliers \
                 shadow=0,shadow=0.5,shadow=0.85,shadow=1,smooth,rows,kept prints the table \
                 (docs/calibration.md has the small model's)",
        ),
    ),
    ("L34", Always(scheduling::in_order)),
    ("L35", Always(scheduling::near_the_best)),
    ("L36", Always(memory::feed_forwards_first)),
    ("L39", Always(system::memory)),
    ("L40", Always(system::prefill_share)),
    ("M26", Named(KERNELS, "M26 M27 C05", experts::overlaps)),
    ("M27", Named(KERNELS, "M26 M27 C05", experts::dropped)),
    ("M28", Named(KERNELS, "C01 C02 M28", buffers::padded_groups)),
    ("M29", Named("measures this machine", "M29", planner::planned)),
];

/// All targets, in the papers' order.
fn targets() -> impl Iterator<Item = Target> {
    CLAIMS.lines().filter_map(|line| {
        let mut cells = line.trim_matches(['|', ' ']).split(" | ");
        let (id, kind) = (cells.next()?, Kind::parse(cells.next()?)?);
        let (claim, tolerance) = (cells.next()?, cells.next()?);
        let run = EXPERIMENTS.iter().find(|(of, _)| *of == id)?.1;
        Some(Target { id, kind, claim, tolerance, run })
    })
}

/// The ids of all targets, in the papers' order.
pub fn reproduced_ids() -> Vec<&'static str> {
    targets().map(|t| t.id).collect()
}

/// The results of experiments.
pub struct Report {
    /// In the papers' order.
    results: Vec<(Target, Outcome)>,
}

/// Runs experiments: those with the given ids, in any case of letters, or all of them. What needs
/// this machine's time or devices runs only where it is named, on `devices`; `None`: two CPUs of a
/// thread.
///
/// # Errors
/// A failing simulation.
pub fn reproduce_on(ids: &[String], devices: Option<DeviceOptions>) -> Result<Report> {
    let wanted = |t: &Target| ids.is_empty() || ids.iter().any(|id| id.eq_ignore_ascii_case(t.id));
    let mut lab = Lab::new()?;
    lab.devices = devices.unwrap_or(lab.devices);
    let mut results = Vec::new();
    for target in targets().filter(wanted) {
        let outcome = match target.run {
            Always(run) => run(&mut lab)?,
            Named(_, _, run) if !ids.is_empty() => run(&mut lab)?,
            Named(does, names, _) => {
                Outcome::not_run(format!("it {does}, where it is named: troika reproduce {names}"))
            }
            Elsewhere(why) => Outcome::not_run(why),
        };
        results.push((target, outcome));
    }
    Ok(Report { results })
}

impl Report {
    /// The report as a list of JSON.
    pub fn json(&self) -> Value {
        self.results.iter().map(|(t, o)| fields(t, o)).collect()
    }

    /// The report as a table and some sentences.
    pub fn table(&self) -> String {
        let mut text = String::from(
            "All figures are virtual but those of H30, H32, L27, L28, M26 to M29, C01, C02 and C05 to \
             C07: modelled times, not measurements of a phone.\n\n\
         | id | | claim | what | printed | ours | error | tolerance | |\n\
         | --- | --- | --- | --- | ---: | ---: | ---: | --- | --- |\n",
        );
        for (t, o) in &self.results {
            for (i, line) in o.lines().into_iter().enumerate() {
                let [what, printed, ours, error] = line;
                let first = |s: &'static str| if i == 0 { s } else { "" };
                let pass = if i == 0 { o.word() } else { "" };
                text.push_str(&format!(
                    "| {} | {} | {} | {what} | {printed} | {ours} | {error} | {} | {pass} |\n",
                    first(t.id),
                    first(t.kind.name()),
                    first(t.claim),
                    first(t.tolerance),
                ));
            }
        }
        text.push('\n');
        self.sentences().iter().for_each(|s| text.push_str(&format!("{s}\n")));
        text
    }

    /// Passed and executed targets of a kind, and the median error.
    fn summary(&self, kind: Kind) -> (usize, usize, Option<f64>) {
        let of_kind = || self.results.iter().filter(move |(t, o)| t.kind == kind && o.ran());
        let passed = of_kind().filter(|(_, o)| o.pass()).count();
        let errors = of_kind().flat_map(|(_, o)| o.errors()).map(f64::abs).collect();
        (passed, of_kind().count(), median(errors))
    }

    fn sentences(&self) -> Vec<String> {
        let percent = |m: Option<f64>| m.map_or("none".into(), |m| format!("{:.1} %", m * 100.0));
        let mut all: Vec<String> = Kind::ALL
            .into_iter()
            .filter_map(|kind| {
                let (passed, ran, error) = self.summary(kind);
                let (name, words, error) = (kind.name(), kind.words(), percent(error));
                (ran > 0).then(|| {
                    format!("{name} ({words}): {passed} of {ran} pass, median error {error}")
                })
            })
            .collect();
        let of = |kind| self.summary(kind).2;
        if let (Some(cal), Some(ho)) = (of(Kind::Cal), of(Kind::Ho))
            && ho > 2.0 * cal
        {
            all.push("The median error of held-out targets is more than twice that of calibration: the models are fitted more closely than they predict.".into());
        }
        let not_run = self.results.iter().filter(|(_, o)| !o.ran()).count();
        if not_run > 0 {
            all.push(format!("{not_run} were not run; they count as not passed."));
        }
        all
    }
}

/// A single number, or a list of several.
fn numbers(list: impl Iterator<Item = f64>) -> Value {
    let rounded: Vec<f64> = list.map(|x| (x * 1e4).round() / 1e4).collect();
    match rounded[..] {
        [one] => json!(one),
        _ => json!(rounded),
    }
}

fn fields(t: &Target, o: &Outcome) -> Value {
    let (printed, ours, error) = match &o.verdict {
        Verdict::NotRun(why) => (json!(t.claim), json!(format!("not run: {why}")), json!("none")),
        Verdict::Words { printed, ours, .. } => (json!(printed), json!(ours), json!("none")),
        Verdict::Numbers { items, .. } => {
            let (printed, ours) = (items.iter().map(|i| i.printed), items.iter().map(|i| i.ours));
            (numbers(printed), numbers(ours), numbers(o.errors().into_iter()))
        }
    };
    let labels: Vec<&str> = o.items().iter().map(|i| i.what.as_str()).collect();
    json!({
        "id": t.id, "claim": t.claim, "kind": t.kind.name(), "printed": printed, "ours": ours,
        "error": error, "tolerance": t.tolerance, "pass": o.pass(), "items": labels,
        "note": o.note,
    })
}

#[cfg(test)]
mod tests {
    use super::{CLAIMS, EXPERIMENTS, reproduced_ids};

    #[test]
    fn each_claim_has_its_experiment() {
        let ids = reproduced_ids();
        let claims = CLAIMS.lines().filter(|line| line.starts_with("| ")).count() - 2;
        assert_eq!((ids.len(), EXPERIMENTS.len()), (claims, claims));
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    }
}
