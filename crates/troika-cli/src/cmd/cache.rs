//! `troika cache`: files stored by earlier starts.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use troika::weights::{CacheFile, CacheFolder, CacheKind};

use crate::error::CliError;
use crate::flags::{CacheArgs, CacheVerb, cache_or_default};
use crate::output::{self, age, bytes, file_name, printable};
use crate::stats::counted;

/// Lists, checks or removes files of the cache.
///
/// # Errors
/// A folder that cannot be read, a file that cannot be removed, or damaged files found by `verify`.
pub fn run(args: &CacheArgs) -> Result<(), CliError> {
    let missing = || CliError::Failure("this system names no folder for caches".into());
    let dir = cache_or_default(args.cache_dir.as_deref()).ok_or_else(missing)?;
    let folder = CacheFolder::new(&dir);
    let failed = |e| CliError::Failure(format!("cannot use the cache {}: {e}", dir.display()));
    let place = dir.display().to_string();
    match args.verb {
        CacheVerb::Ls => list(&place, &folder.files().map_err(failed)?, args.json),
        CacheVerb::Verify => verify(&place, &folder.files().map_err(failed)?, args.json),
        CacheVerb::Prune { cache_mib } => {
            let limit = cache_mib.saturating_mul(1 << 20);
            let useless = |file: &CacheFile| troika_lab::kept_profile(&file.path).is_err();
            removed(&place, &folder.prune(limit, &useless).map_err(failed)?, args.json)
        }
        CacheVerb::Clear => removed(&place, &folder.clear().map_err(failed)?, args.json),
    }
}

/// The contents of a file: model and types, or the reason why it is unusable.
fn contents(file: &CacheFile) -> (String, String) {
    let alone = |of: String| (of, String::new());
    let found = match file.kind {
        CacheKind::Packed => file.index().map(|index| (index.model, index.types)),
        CacheKind::Hash => file.hashed().map(|path| alone(path.display().to_string())),
        // They may be gigabytes: `verify` reads them.
        CacheKind::Graph => Ok(alone("compiled for an NPU".into())),
        CacheKind::Package => Ok(alone("compiled by Core ML".into())),
        CacheKind::Device => Ok(alone("kernels of a GPU".into())),
        CacheKind::Profile => troika_lab::kept_profile(&file.path)
            .map(|(of, whole)| (of, if whole { "complete" } else { "begun" }.into())),
        CacheKind::Partial => Ok(alone("being written, or left behind".into())),
    };
    found.unwrap_or_else(|why| alone(format!("unusable: {why}")))
}

fn total(files: &[CacheFile]) -> u64 {
    files.iter().map(|f| f.bytes).sum()
}

fn as_json(file: &CacheFile) -> Value {
    let (of, types) = contents(file);
    let used = file.used.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "file": file.path.display().to_string(), "kind": file.kind.name(), "bytes": file.bytes,
        "used": used.as_secs(), "of": of, "types": types,
    })
}

fn list(place: &str, files: &[CacheFile], json: bool) -> Result<(), CliError> {
    if json {
        let list: Vec<Value> = files.iter().map(as_json).collect();
        return output::json(&json!({"folder": place, "bytes": total(files), "files": list}));
    }
    let mut text = format!("{place}: {}, {}\n", counted(files.len(), "file"), bytes(total(files)));
    for file in files {
        let (of, types) = contents(file);
        text.push_str(&format!(
            "  {:<40}  {:<7}  {:>12}  {:>11}  {:<13}  {}\n",
            file_name(&file.path),
            file.kind.name(),
            bytes(file.bytes),
            age(file.used),
            printable(&types),
            printable(&of)
        ));
    }
    output::write(&text)
}

fn verify(place: &str, files: &[CacheFile], json: bool) -> Result<(), CliError> {
    let start = SystemTime::now();
    let verified = |file: &CacheFile| match file.kind {
        CacheKind::Profile => troika_lab::kept_profile(&file.path).map(drop),
        _ => file.verify(),
    };
    let checked: Vec<(&CacheFile, Option<String>)> =
        files.iter().map(|f| (f, verified(f).err())).collect();
    let damaged = checked.iter().filter(|c| c.1.is_some()).count();
    if json {
        let list = checked.iter().map(|(file, why)| {
            json!({"file": file.path.display().to_string(), "bytes": file.bytes, "damage": why})
        });
        let list: Vec<Value> = list.collect();
        output::json(&json!({"folder": place, "damaged": damaged, "files": list}))?;
    } else {
        let mut text = String::new();
        for (file, why) in &checked {
            let state = why.as_deref().map_or("ok".to_string(), |why| format!("damaged: {why}"));
            text.push_str(&format!(
                "  {:<40}  {:>12}  {state}\n",
                file_name(&file.path),
                bytes(file.bytes)
            ));
        }
        let seconds = start.elapsed().unwrap_or_default().as_secs_f64();
        let (n, size) = (counted(files.len(), "file"), bytes(total(files)));
        output::write(&format!("{place}: {n}, {size} read in {seconds:.1} s\n{text}"))?;
    }
    match damaged {
        0 => Ok(()),
        n => Err(CliError::Failure(format!(
            "damaged in the cache {place}: {}; a start that needs one makes it again, and troika \
             cache clear removes all",
            counted(n, "file")
        ))),
    }
}

fn removed(place: &str, files: &[CacheFile], json: bool) -> Result<(), CliError> {
    if json {
        let list: Vec<String> = files.iter().map(|f| f.path.display().to_string()).collect();
        return output::json(&json!({"folder": place, "bytes": total(files), "removed": list}));
    }
    let (n, size) = (counted(files.len(), "file"), bytes(total(files)));
    output::write(&format!("{place}: {n} removed, {size}\n"))
}
