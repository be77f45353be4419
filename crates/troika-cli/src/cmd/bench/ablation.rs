//! Ablations of papers: a row for each step.

use serde_json::json;
use troika::OpenOptions;
use troika_lab::{Ablation, Subject};

use super::print::BenchRows;
use crate::error::CliError;
use crate::flags::BenchArgs;

/// Measures and prints the steps for each length of a prompt.
pub fn run(
    args: &BenchArgs,
    paper: Ablation,
    subject: &Subject,
    all: Vec<OpenOptions>,
) -> Result<(), CliError> {
    const HEAD: &str = "| model | prompt | step | prepares | TTFT | t/s | gain |\n\
        | --- | ---: | --- | ---: | ---: | ---: | ---: |\n";
    BenchRows::print(args.output, |rows| {
        for options in all {
            for &prompt in args.n_prompt.iter().filter(|n| **n > 0) {
                let mut before: Option<f64> = None;
                for step in paper.run(subject, &options, prompt, args.repetitions)? {
                    let rate = prompt as f64 * 1e3 / step.ttft_ms;
                    let gain = before.map(|before| before / step.ttft_ms);
                    let times = gain.map_or_else(String::new, |gain| format!("{gain:.2}"));
                    let line = format!(
                        "| {subject} | {prompt} | {} | {:.0} ms | {:.1} ms | {rate:.1} | {times} |\n",
                        step.name, step.prepare_ms, step.ttft_ms
                    );
                    let object = json!({
                        "model_filename": subject.to_string(), "n_prompt": prompt,
                        "step": step.name, "prepare_ms": step.prepare_ms,
                        "ttft_ms": step.ttft_ms, "avg_ts": rate, "gain": gain,
                    });
                    rows.add(HEAD, &line, &object)?;
                    before = Some(step.ttft_ms);
                }
            }
        }
        Ok(())
    })
}
