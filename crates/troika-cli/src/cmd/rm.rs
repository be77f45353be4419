//! `troika rm`: removes models from the Hub's cache.

use std::io::{self, IsTerminal};

use serde_json::json;
use troika_hub::{HubError, HubOptions, Removal};

use crate::error::CliError;
use crate::flags::RmArgs;
use crate::output::{self, bytes, printable};

/// Removes models, after asking on a terminal.
///
/// # Errors
/// A name without anything in the cache: then nothing is removed. A model that is being fetched, or
/// cannot be removed.
pub fn run(args: &RmArgs) -> Result<(), CliError> {
    let options = HubOptions::from_env();
    let plan = |model: &String| {
        Removal::plan(model, &options).map_err(|e| match e {
            HubError::Missing(_) => CliError::Usage(format!(
                "{model}: only models of the Hub's cache are removed, by the names of troika ls"
            )),
            e => e.into(),
        })
    };
    let plans = args.models.iter().map(plan).collect::<Result<Vec<Removal>, CliError>>()?;
    if !args.yes && !confirmed(&args.models, &plans)? {
        output::note_line("nothing is removed");
        return Ok(());
    }
    let (mut names, mut freed) = (Vec::new(), 0);
    for (model, removal) in args.models.iter().zip(&plans) {
        let own = removal.run()?;
        freed += own;
        names.extend(removal.names.iter().cloned());
        if !args.json {
            let (model, size) = (printable(model), bytes(own));
            output::write(&format!("{model} is removed, {size}\n"))?;
        }
    }
    if args.json { output::json(&json!({ "removed": names, "bytes": freed })) } else { Ok(()) }
}

/// Shows what would go and asks.
fn confirmed(models: &[String], plans: &[Removal]) -> Result<bool, CliError> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let why = "there is no terminal to ask on before models are removed; --yes removes them";
        return Err(CliError::Usage(why.into()));
    }
    for (model, removal) in models.iter().zip(plans) {
        output::note_line(&format!("{model}, {}:", bytes(removal.bytes)));
        for name in &removal.names {
            output::note_line(&format!("  {name}"));
        }
    }
    output::note("Remove? [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    read.map_err(|e| CliError::Failure(format!("cannot read the answer: {e}")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
