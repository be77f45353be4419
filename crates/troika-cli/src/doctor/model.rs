//! Whether a model runs.

use std::time::Instant;

use troika::{Control, Error, Model, OpenOptions, Request, Source};

use super::finding::Finding;
use super::machine::HostMachine;
use crate::stats::counted;

/// Tokens that are generated.
const TOKENS: usize = 8;

/// The built-in model runs: then the processor, its kernels and the memory serve.
pub fn answers(machine: &HostMachine) -> Vec<Finding> {
    let start = Instant::now();
    let found = match generate(machine) {
        Ok(tokens) => {
            let ms = start.elapsed().as_millis();
            let tokens = counted(tokens, "token");
            Finding::fine("model", format!("the built-in model answers: {tokens} in {ms} ms"))
        }
        Err(e) => {
            let says = format!("the built-in model does not run: {e}");
            Finding { optional: false, ..Finding::missing("model", says) }
        }
    };
    vec![found]
}

fn generate(machine: &HostMachine) -> Result<usize, Error> {
    let options =
        OpenOptions { devices: machine.devices(), context: Some(64), ..OpenOptions::default() };
    let model = Model::open(Source::BuiltIn, &options)?;
    let (prompt, _) = model.tokenize("It was a dark night")?;
    let request = Request { max_tokens: Some(TOKENS), ignore_eos: true, ..Request::default() };
    let output = model.session()?.generate(&prompt, &request, &mut |_, _| Control::Continue)?;
    Ok(output.tokens.len())
}
