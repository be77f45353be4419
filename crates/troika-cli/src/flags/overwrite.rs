//! No file that is written may be one that is read, another one that is written, or somebody else's:
//! asked before anything else is done.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command};
use same_file::Handle;
use troika::DeviceSpec;
use troika::weights::{CacheFolder, CacheKind, files_of_model};
use troika_hub::HubOptions;

use super::placement::OWN_PROFILE;
use super::quant::cache_or_default;
use crate::error::CliError;

/// Flags that name a file that is written.
const OUTPUTS: [&str; 5] = ["trace", "out", "soc_out", "routing_trace", "report"];

/// What the first bytes hold of the files that these flags write. One that is there with other
/// contents is not replaced.
const OWN: [&str; 4] = ["\"traceEvents\"", "TROIKART", "TROIKARP", "numerics = "];

/// Flags that name a file that is read, and what it is.
const INPUTS: [(&str, &str); 4] =
    [("file", "text"), ("plan", "plan"), ("profile", "profile"), ("soc", "SoC file")];

/// Which file a path leads to.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// One that is there, whatever it is called.
    There(Handle),
    /// The place of one.
    Place(PathBuf),
}

impl Identity {
    /// `None` where there is something other than a file: nothing is replaced there.
    fn of(path: &Path) -> Option<Identity> {
        match fs::metadata(path) {
            // One that cannot be read is known by its place.
            Ok(meta) if meta.is_file() => match Handle::from_path(path) {
                Ok(handle) => Some(Identity::There(handle)),
                Err(_) => path.canonicalize().ok().map(Identity::Place),
            },
            Ok(_) => None,
            Err(_) => {
                let name = path.file_name()?;
                let folder = path.parent().filter(|f| !f.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
                Some(Identity::Place(folder.join(name)))
            }
        }
    }
}

/// A file that a command writes.
struct Output {
    /// What it is, or the flag that names it.
    what: String,
    path: PathBuf,
    identity: Identity,
}

/// Whether a file that is there is one that Troika wrote, or has no contents to lose.
fn is_own(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(4096).read_to_end(&mut head));
    let text = String::from_utf8_lossy(&head);
    // Files of other programs have versions, too, but as text.
    let digit = |rest: &str| rest.trim_start().starts_with(|c: char| c.is_ascii_digit());
    let version = text.split_once("\"version\":").is_some_and(|(_, rest)| digit(rest));
    read.is_err() || head.is_empty() || version || OWN.iter().any(|mark| text.contains(mark))
}

/// What a flag of the verb says, if there is such a flag.
fn values<'a>(verb: &Command, given: &'a ArgMatches, id: &str) -> Vec<&'a OsStr> {
    let known = verb.get_arguments().any(|arg| arg.get_id() == id);
    let raw = known.then(|| given.get_raw(id)).flatten();
    raw.into_iter().flatten().collect()
}

/// Refuses to write a file over one that is read, or over another one that is written.
pub(super) fn check(verb: &Command, given: &ArgMatches) -> Result<(), CliError> {
    let mut outputs = Vec::new();
    // There it is read.
    for id in OUTPUTS.into_iter().filter(|id| (verb.get_name(), *id) != ("report", "trace")) {
        let flag = verb.get_arguments().find(|arg| arg.get_id() == id);
        let what = format!("--{}", flag.and_then(|f| f.get_long()).unwrap_or(id));
        outputs.extend(values(verb, given, id).into_iter().filter_map(|path| {
            let identity = Identity::of(Path::new(path))?;
            Some(Output { what: what.clone(), path: path.into(), identity })
        }));
    }
    if outputs.is_empty() {
        return Ok(());
    }
    let open = |handle: io::Result<Handle>| handle.ok().map(Identity::There);
    let (stdin, inputs) = (open(Handle::stdin()), inputs(verb, given));
    let mut written = Vec::new();
    if let Some(identity) = open(Handle::stdout()) {
        written.push(Output { what: "standard output".into(), path: PathBuf::new(), identity });
    }
    for output in outputs {
        let path = output.path.display();
        // One is open at a time: there may be thousands.
        let is_it = |path: &Path| Identity::of(path).as_ref() == Some(&output.identity);
        let read = inputs.iter().find(|(_, path)| is_it(path));
        let read = read.map(|(what, other)| match *other == output.path {
            true => what.to_string(),
            false => format!("{what} ({})", other.display()),
        });
        let piped = stdin.as_ref().filter(|stdin| **stdin == output.identity);
        if let Some(input) = piped.map(|_| "file of standard input".into()).or(read) {
            return Err(CliError::Usage(format!(
                "{} {path} would replace the {input} that is read; name another file",
                output.what
            )));
        }
        if let Some(other) = written.iter().find(|other| other.identity == output.identity) {
            return Err(CliError::Usage(format!(
                "{} and {} name the same file ({path}); give each one of its own",
                output.what, other.what
            )));
        }
        if output.path.is_file() && !is_own(&output.path) {
            return Err(CliError::Usage(format!(
                "{} {path} would replace a file that troika did not write; name another, or remove \
                 that one first",
                output.what
            )));
        }
        written.push(output);
    }
    Ok(())
}

/// All that the command reads.
fn inputs(verb: &Command, given: &ArgMatches) -> Vec<(&'static str, PathBuf)> {
    let mut files = Vec::new();
    for (id, what) in INPUTS {
        let named = values(verb, given, id).into_iter().filter(|v| *v != OWN_PROFILE);
        files.extend(named.map(|path| (what, path.into())));
    }
    for device in values(verb, given, "device") {
        let spec = device.to_str().and_then(|text| text.parse::<DeviceSpec>().ok());
        files.extend(spec.and_then(|s| s.processor).map(|p| ("SoC file", p.file)));
    }
    for id in ["positional", "model"] {
        for name in values(verb, given, id) {
            files.extend(models(name).into_iter().map(|file| ("model", file)));
        }
    }
    let cache = values(verb, given, "cache_dir");
    let cache = cache_or_default(cache.first().map(Path::new)).map(CacheFolder::new);
    // A profile that is kept may be measured again.
    let read = |kind: CacheKind| kind != CacheKind::Profile || verb.get_name() != "profile";
    let kept = cache.and_then(|cache| cache.files().ok()).into_iter().flatten();
    files.extend(kept.filter(|f| read(f.kind)).map(|f| ("kept file", f.path)));
    files
}

/// The files of what a user calls a model: a path, with a type behind it where it is a shape, or
/// the copy of a model of the Hub.
fn models(name: &OsStr) -> Vec<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return files_of_model(path);
    }
    let Some(text) = name.to_str() else { return Vec::new() };
    if let Some((path, _)) = text.rsplit_once(':').filter(|(path, _)| Path::new(path).exists()) {
        return files_of_model(Path::new(path));
    }
    let options = HubOptions { offline: true, ..HubOptions::from_env() };
    troika_hub::resolve(text, &options, &|_| {}).map_or_else(|_| Vec::new(), |p| files_of_model(&p))
}
