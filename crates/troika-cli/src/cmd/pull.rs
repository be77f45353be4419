//! `troika pull`.

use std::path::Path;

use serde_json::{Value, json};
use troika_hub::{HubError, HubOptions};

use crate::error::CliError;
use crate::flags::PullArgs;
use crate::output::{self, bytes, printable};
use crate::table::TextTable;
use crate::{resolve, verdict};

/// Fetches models into the Hub's cache.
pub fn run(args: &PullArgs) -> Result<(), CliError> {
    let options = HubOptions { look: Some(verdict::look), ..HubOptions::from_env() };
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

/// The model of a repository that is fetched; of several, what there is, as JSON if that is asked for.
fn choose(
    name: &str,
    args: &PullArgs,
    options: &HubOptions,
) -> Result<Result<String, Option<Value>>, CliError> {
    let (offers, free) = (troika_hub::offers(name, options)?, verdict::host());
    match verdict::best(&offers, free) {
        _ if offers.len() < 2 => Ok(Ok(name.to_string())),
        Some(best) if args.yes => Ok(Ok(best.name.clone())),
        None if args.yes => Err(CliError::Failure(format!(
            "nothing of {name} is known to fit into free memory; troika pull {name} lists what there \
             is, and troika pull {name}:TAG fetches it anyway"
        ))),
        best if args.json => {
            let offers: Vec<Value> = offers.iter().map(|offer| json!({
                "name": offer.name, "bytes": offer.bytes, "verdict": verdict::of_offer(offer, free),
            })).collect();
            let best = best.map(|best| &best.name);
            Ok(Err(Some(json!({ "model": name, "offers": offers, "best": best }))))
        }
        best => {
            let mut table = TextTable::new(["model", "size", "in free memory"]);
            for offer in &offers {
                let size = offer.bytes.map_or("unknown".into(), bytes);
                table.add([offer.name.clone(), size, verdict::of_offer(offer, free).into()]);
            }
            output::write(&table.to_string())?;
            let first = best.unwrap_or(&offers[0]).name.as_str();
            resolve::fetch(first, &HubOptions { only_look: true, ..options.clone() })?;
            let y = best.map_or(String::new(), |_| format!("; troika pull -y {name} this one"));
            output::note_line(&format!("troika pull {first} fetches one{y}"));
            Ok(Err(None))
        }
    }
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
    let chosen = match before.is_some() || options.offline || name.contains(':') {
        true => Ok(name.to_string()),
        false => choose(name, args, options)?,
    };
    let name = match &chosen {
        Ok(name) => name.as_str(),
        Err(listed) => return Ok(listed.clone()),
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
