//! `troika serve`.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use troika::trace::Tracer;
use troika::{OpenOptions, Pooling, Source};
use troika_server::{Ended, ModelOffer, ServerOptions, serve};

use super::run::open_options;
use crate::error::CliError;
use crate::flags::{ModelArgs, ServeArgs, chat_helper};
use crate::{output, resolve};

/// Serves models until it is stopped.
///
/// # Errors
/// A model that is not there, an address that cannot be listened at, or answers that were cut off.
pub fn run(args: &ServeArgs) -> Result<(), CliError> {
    let mut options = open_options(&args.open, Tracer::off())?;
    // The server itself looks for what feeds the machine.
    args.plan.apply_on_mains(&mut options, None)?;
    options.devices.auto = args.open.compute.placement.auto_or_open(&args.open.compute.quant);
    options.sharing = args.sharing.sharing(args.parallel);
    let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
    let mib = |n: u64| n.saturating_mul(1 << 20);
    let log = |text: &str| output::note_line(text);
    let options = ServerOptions {
        address: address(args)?,
        keys: args.keys.all()?,
        hosts: args.hosts.clone(),
        origins: args.origins.clone(),
        models: offers(args, &options)?,
        parallel: args.parallel,
        pooling: Pooling::ALL.into_iter().find(|p| args.pooling.as_deref() == Some(p.name())),
        queue: args.queue,
        most_urgent: args.max_priority,
        body_bytes: usize::try_from(mib(args.max_body)).unwrap_or(usize::MAX),
        max_tokens: args.max_tokens,
        timeout: seconds(args.timeout),
        keep_alive: (args.keep_alive >= 0.0).then(|| seconds(args.keep_alive)),
        memory: args.memory.map(mib),
        grace: seconds(args.grace),
        sys: Some(PathBuf::from("/sys")),
        note: Arc::new(log),
        requests: args.verbose.then(|| Arc::new(log) as troika_server::Log),
    };
    let has_keys = !options.keys.is_empty();
    let ended = serve(options, &mut |address| {
        let key = if has_keys { "; it asks for a key" } else { "" };
        output::note_line(&format!("listening at http://{address} (the page is there, too){key}"));
    });
    match ended.map_err(CliError::Failure)? {
        Ended { cut: 0, .. } => Ok(()),
        Ended { cut, terminated } => {
            let told = format!("answers that were cut off: {cut}");
            if !terminated {
                return Err(CliError::Interrupted(told));
            }
            output::note_line(&told);
            Ok(())
        }
    }
}

fn address(args: &ServeArgs) -> Result<SocketAddr, CliError> {
    let found = (args.host.as_str(), args.port).to_socket_addrs().ok();
    let wrong = || CliError::Usage(format!("--host {} is no address of this machine", args.host));
    found.and_then(|mut all| all.next()).ok_or_else(wrong)
}

/// The models on offer. They are looked for now, so that a wrong name is told at once.
fn offers(args: &ServeArgs, options: &OpenOptions) -> Result<Vec<ModelOffer>, CliError> {
    let mut sources: Vec<(String, Source)> = Vec::new();
    let given: Vec<&OsString> = args.models.iter().chain(&args.model).collect();
    for name in &given {
        let of =
            ModelArgs { positional: Some((*name).clone()), model: None, offline: args.offline };
        sources.push((plain_name(Path::new(name)), resolve::model(&of)?));
    }
    if let Some(dir) = &args.models_dir {
        let named = |path: PathBuf| (plain_name(&path), Source::Path(path));
        sources.extend(models_in(dir)?.into_iter().map(named));
    }
    if sources.is_empty() {
        sources.push(("built-in".into(), Source::BuiltIn));
    }
    // A model of the folder may be given by its path, too.
    let mut known = Vec::new();
    sources.retain(|(_, source)| {
        let Source::Path(path) = source else { return true };
        let path = path.canonicalize().unwrap_or(path.clone());
        let is_new = !known.contains(&path);
        known.push(path);
        is_new
    });
    let (names, models) = (args.aliases.len(), sources.len());
    if models > 1 && names > models {
        return Err(CliError::Usage(format!("--alias gives {names} names to {models} models")));
    }
    for ((name, _), alias) in sources.iter_mut().zip(&args.aliases) {
        name.clone_from(alias);
    }
    let battery_plan = args.plan.for_battery()?;
    let mut offers: Vec<ModelOffer> = Vec::new();
    for (name, source) in sources {
        if offers.iter().any(|o| o.name == name) {
            return Err(CliError::Usage(format!(
                "two models have the name {name}; give them others with --alias"
            )));
        }
        let bytes = match &source {
            Source::Path(path) => size(path),
            Source::BuiltIn => 0,
        };
        offers.push(ModelOffer {
            name,
            // What is left are more names of a single model.
            aliases: args.aliases.iter().skip(models).cloned().collect(),
            any_name: models == 1 && !args.strict_model,
            source,
            options: options.clone(),
            battery_plan: battery_plan.clone(),
            chat_helper: chat_helper(),
            bytes,
        });
    }
    Ok(offers)
}

/// The name of a model by its path: of a file without its ending; a Hub id is a name already.
fn plain_name(path: &Path) -> String {
    if !path.exists() {
        return path.display().to_string();
    }
    let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
    let whole = || path.canonicalize().ok()?.file_name().map(|n| n.to_string_lossy().into_owned());
    let name = name.map(|n| n.to_string_lossy().into_owned()).or_else(whole);
    name.unwrap_or_else(|| path.display().to_string())
}

/// The models in a folder, by name. Of a model in several files the first one stands for all.
fn models_in(dir: &Path) -> Result<Vec<PathBuf>, CliError> {
    let entries = std::fs::read_dir(dir).map_err(|e| CliError::of_file(dir, e))?;
    let is_model = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let later = name.split_once("-of-").is_some_and(|(before, _)| {
            before.len() > 5 && !before.ends_with("-00001") && before.ends_with(char::is_numeric)
        });
        (name.ends_with(".gguf") && path.is_file() && !later) || path.join("config.json").is_file()
    };
    let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(is_model).collect();
    found.sort();
    if found.is_empty() {
        let why = "it holds no .gguf file and no folder with a config.json";
        return Err(CliError::of_file(dir, why));
    }
    Ok(found)
}

/// Bytes of a file, or of the files in a folder.
fn size(path: &Path) -> u64 {
    let of = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    match std::fs::read_dir(path) {
        Ok(entries) => entries.flatten().map(|e| of(&e.path())).sum(),
        Err(_) => of(path),
    }
}
