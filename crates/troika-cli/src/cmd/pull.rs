//! `troika pull`.

use std::path::Path;

use serde_json::{Value, json};
use troika_hub::{HubError, HubOptions};

use crate::error::CliError;
use crate::flags::PullArgs;
use crate::output::{self, printable};
use crate::resolve;

/// Fetches models into the Hub's cache.
///
/// # Errors
/// A name that is none, a Hub that does not give it, or a disk that is full.
pub fn run(args: &PullArgs) -> Result<(), CliError> {
    let options = HubOptions { refuse: Some(resolve::unusable), ..HubOptions::from_env() };
    if args.refresh && options.offline {
        let why = "--refresh asks the Hub, and HF_HUB_OFFLINE says not to: leave one of them out";
        return Err(CliError::Usage(why.into()));
    }
    let mut list = Vec::new();
    for model in &args.models {
        list.extend(pull(model, args, &options)?);
    }
    if args.json { output::json(&Value::Array(list)) } else { Ok(()) }
}

/// Fetches one model. Says what was done, or returns it for JSON.
fn pull(name: &str, args: &PullArgs, options: &HubOptions) -> Result<Option<Value>, CliError> {
    let before = match troika_hub::cached(name, options) {
        Err(HubError::Missing(_)) if Path::new(name).exists() => {
            let why = format!("{name} is on this machine already, as a file or folder of its own");
            return Err(CliError::Usage(why));
        }
        other => other?,
    };
    let path = match &before {
        Some(path) if !args.refresh => path.clone(),
        _ => resolve::fetch(name, options)?,
    };
    let is_new = before.as_ref() != Some(&path);
    let place = path.display().to_string();
    if args.json {
        return Ok(Some(json!({ "model": name, "path": place, "fetched": is_new })));
    }
    let (name, place) = (printable(name), printable(&place));
    let said = match (&before, is_new, args.refresh) {
        (Some(_), false, true) => format!("{name} has not changed: {place}"),
        (Some(_), false, false) => {
            format!("{name} is here: {place}\ntroika pull --refresh {name} asks whether it changed")
        }
        (Some(old), true, _) => {
            format!("{name} has changed: {place}\nwhat was here before stays: {}", old.display())
        }
        (None, ..) => format!("{name} is fetched: {place}"),
    };
    output::write(&format!("{said}\n"))?;
    Ok(None)
}
