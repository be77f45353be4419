//! No file that is written may be one that is read, another one that is written, or somebody else's:
//! asked before anything else is done.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command};
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
#[derive(Clone, Debug, PartialEq, Eq)]
enum Identity {
    /// One that is there, whatever it is called.
    #[cfg(unix)]
    There { device: u64, inode: u64 },
    /// The place of one.
    Place(PathBuf),
}

impl Identity {
    /// `None` where there is something other than a file: nothing is replaced there.
    fn of(path: &Path) -> Option<Identity> {
        match fs::metadata(path) {
            Ok(meta) => Identity::of_file(&meta, || path.canonicalize().ok()),
            Err(_) => {
                let name = path.file_name()?;
                let folder = path.parent().filter(|f| !f.as_os_str().is_empty());
                let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
                Some(Identity::Place(folder.join(name)))
            }
        }
    }

    #[cfg(unix)]
    fn of_file(meta: &Metadata, _: impl Fn() -> Option<PathBuf>) -> Option<Identity> {
        use std::os::unix::fs::MetadataExt;
        let there = Identity::There { device: meta.dev(), inode: meta.ino() };
        meta.is_file().then_some(there)
    }

    #[cfg(not(unix))]
    fn of_file(meta: &Metadata, place: impl Fn() -> Option<PathBuf>) -> Option<Identity> {
        place().filter(|_| meta.is_file()).map(Identity::Place)
    }
}

/// A file that a command reads or writes.
struct Named {
    /// What it is, or the flag that names it.
    what: String,
    path: PathBuf,
    identity: Identity,
}

#[derive(Default)]
struct Files(Vec<Named>);

impl Files {
    fn add(&mut self, what: &str, path: impl Into<PathBuf>) {
        let path = path.into();
        if let Some(identity) = Identity::of(&path) {
            self.0.push(Named { what: what.into(), path, identity });
        }
    }

    #[cfg(unix)]
    fn add_open(&mut self, what: &str, file: impl std::os::fd::AsFd) {
        let file = file.as_fd().try_clone_to_owned().map(std::fs::File::from);
        let meta = file.and_then(|file| file.metadata()).ok();
        if let Some(identity) = meta.and_then(|meta| Identity::of_file(&meta, || None)) {
            self.0.push(Named { what: what.into(), path: PathBuf::new(), identity });
        }
    }

    #[cfg(not(unix))]
    fn add_open<T>(&mut self, _: &str, _: T) {}

    fn find(&self, identity: &Identity) -> Option<&Named> {
        self.0.iter().find(|f| f.identity == *identity)
    }
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
///
/// # Errors
/// The first such file, by its flag.
pub(super) fn check(verb: &Command, given: &ArgMatches) -> Result<(), CliError> {
    let mut outputs = Files::default();
    // There it is read.
    for id in OUTPUTS.into_iter().filter(|id| (verb.get_name(), *id) != ("report", "trace")) {
        let flag = verb.get_arguments().find(|arg| arg.get_id() == id);
        let flag = format!("--{}", flag.and_then(|f| f.get_long()).unwrap_or(id));
        values(verb, given, id).into_iter().for_each(|path| outputs.add(&flag, path));
    }
    if outputs.0.is_empty() {
        return Ok(());
    }
    let inputs = inputs(verb, given);
    let mut written = Files::default();
    written.add_open("standard output", std::io::stdout());
    for output in outputs.0 {
        let path = output.path.display();
        if let Some(input) = inputs.find(&output.identity) {
            let of = match input.path == output.path || input.path.as_os_str().is_empty() {
                true => String::new(),
                false => format!(" ({})", input.path.display()),
            };
            return Err(CliError::Usage(format!(
                "{} {path} would replace the {}{of} that is read; name another file",
                output.what, input.what
            )));
        }
        if let Some(other) = written.find(&output.identity) {
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
        written.0.push(output);
    }
    Ok(())
}

/// All that the command reads.
fn inputs(verb: &Command, given: &ArgMatches) -> Files {
    let mut files = Files::default();
    files.add_open("file of standard input", std::io::stdin());
    for (id, what) in INPUTS {
        let named = values(verb, given, id).into_iter().filter(|v| *v != OWN_PROFILE);
        named.for_each(|path| files.add(what, path));
    }
    for device in values(verb, given, "device") {
        let spec = device.to_str().and_then(|text| text.parse::<DeviceSpec>().ok());
        spec.and_then(|s| s.processor).iter().for_each(|p| files.add("SoC file", &p.file));
    }
    for id in ["positional", "model"] {
        for name in values(verb, given, id) {
            for file in models(name) {
                files.add("model", file);
            }
        }
    }
    let cache = values(verb, given, "cache_dir");
    let cache = cache_or_default(cache.first().map(Path::new)).map(CacheFolder::new);
    // A profile that is kept may be measured again.
    let read = |kind: CacheKind| kind != CacheKind::Profile || verb.get_name() != "profile";
    let kept = cache.and_then(|cache| cache.files().ok()).into_iter().flatten();
    kept.filter(|f| read(f.kind)).for_each(|f| files.add("kept file", f.path));
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
