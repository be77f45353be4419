//! ONNX Runtime and its plugins, found and loaded at run time.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ort::LoadDynamicError;
use ort::environment::Environment;
use ort::ep::{ArbitrarilyConfigurableExecutionProvider, ExecutionProvider, OpenVINO, Vitis};
use ort::logging::LogLevel;
use ort::memory::DeviceType;
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use troika_device::lock;

use crate::error::NpuError;
use crate::profiling::ProfileFile;
use crate::provider::{Hardware, NpuSpec, Plugin, Provider};
use crate::qnn;

/// Where to look for ONNX Runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimePlaces {
    /// The library itself, if the user names it.
    pub library: Option<PathBuf>,
    /// Python environments.
    pub environments: Vec<PathBuf>,
}

impl RuntimePlaces {
    /// What the runtime's own variable and those of an active Python environment name.
    pub fn of_variables(variable: impl Fn(&str) -> Option<OsString>) -> RuntimePlaces {
        let path = |name| variable(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path).collect();
        RuntimePlaces { library: path("ORT_DYLIB_PATH"), environments }
    }

    /// The library's file.
    fn find(&self) -> Option<PathBuf> {
        if self.library.is_some() {
            return self.library.clone();
        }
        let packages = self.environments.iter().flat_map(|e| site_packages(e));
        let folders = packages.map(|folder| folder.join("onnxruntime/capi"));
        let folders = folders.chain(FOLDERS.iter().map(PathBuf::from));
        folders.filter_map(|folder| library_in(&folder, "onnxruntime")).next()
    }
}

/// Folders of the system.
const FOLDERS: [&str; 5] = [
    "/usr/local/lib",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/opt/homebrew/lib",
];

/// What a session is made from.
#[derive(Clone, Copy)]
pub(crate) enum MadeFrom<'a> {
    /// The file of a model.
    File(&'a Path),
    /// A model's compiled form.
    Compiled(&'a [u8]),
}

/// The loaded library. A process has at most one.
pub(crate) struct Runtime {
    environment: Environment,
    pub library: PathBuf,
    /// Providers whose plugins are loaded.
    loaded: Mutex<HashSet<Provider>>,
    /// What it last said to be wrong, in the words of a provider.
    said: Arc<Mutex<Option<String>>>,
}

static RUNTIME: Mutex<Option<Arc<Runtime>>> = Mutex::new(None);

/// The folders of a Python environment that have its packages.
fn site_packages(environment: &Path) -> Vec<PathBuf> {
    let mut all = vec![environment.join("Lib/site-packages")];
    let versions = std::fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
    all.extend(versions.map(|version| version.path().join("site-packages")));
    all.retain(|folder| folder.is_dir());
    all.sort();
    all
}

/// A library in a folder, whatever the system and the version add to its name.
fn library_in(folder: &Path, name: &str) -> Option<PathBuf> {
    let names = ["so", "dylib"].map(|ending| format!("lib{name}.{ending}"));
    let names = [&names[0], &names[1], &format!("{name}.dll"), &format!("lib{name}.1.dylib")];
    if let Some(found) = names.iter().map(|n| folder.join(n)).find(|file| file.is_file()) {
        return Some(found);
    }
    let files = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let versioned = |file: &PathBuf| {
        let file = file.file_name().and_then(|f| f.to_str()).unwrap_or_default();
        let dylib = file.strip_prefix(&format!("lib{name}.")).is_some_and(|f| f.ends_with("dylib"));
        dylib || file.starts_with(&format!("lib{name}.so."))
    };
    files.filter(versioned).max()
}

impl Runtime {
    /// Loads it, unless the process has it already.
    pub fn load(places: &RuntimePlaces) -> Result<Arc<Runtime>, NpuError> {
        let mut known = lock(&RUNTIME);
        if let Some(runtime) = &*known {
            return Ok(runtime.clone());
        }
        let library = places.find().ok_or(NpuError::NoRuntime)?;
        let bad = |why: String| NpuError::BadRuntime { file: library.clone(), why };
        if !library.is_file() {
            return Err(bad("there is no such file".into()));
        }
        let builder = ort::init_from(&library).map_err(|e| match e {
            LoadDynamicError::BadVersion { version_str, path } => {
                NpuError::OldRuntime { file: path, version: version_str }
            }
            e => bad(one_line(&e.to_string())),
        })?;
        let said = Arc::new(Mutex::new(None));
        let listening = said.clone();
        let logger = move |level: LogLevel, _: &str, _: &str, _: &str, message: &str| {
            if matches!(level, LogLevel::Error | LogLevel::Fatal) {
                *lock(&listening) = Some(one_line(message));
            }
        };
        let builder = builder.with_name("troika").with_logger(Arc::new(logger));
        let environment = builder.build().map_err(|e| bad(one_line(&e.to_string())))?;
        let runtime = Runtime { environment, library, loaded: Mutex::default(), said };
        Ok(known.insert(Arc::new(runtime)).clone())
    }

    /// Where a plugin is: from site-packages/onnxruntime/capi/LIBRARY to site-packages/FOLDER.
    fn folder(&self, plugin: Plugin) -> PathBuf {
        self.library.ancestors().nth(3).unwrap_or(Path::new("")).join(plugin.folder)
    }

    /// Loads a provider's plugin, if it has one.
    fn load_plugin(&self, provider: Provider) -> Result<(), NpuError> {
        let Some(plugin) = provider.plugin() else { return Ok(()) };
        let Plugin { package, library, .. } = plugin;
        let mut loaded = lock(&self.loaded);
        if loaded.contains(&provider) {
            return Ok(());
        }
        let looked = self.folder(plugin);
        let Some(file) = library_in(&looked, library) else {
            return Err(NpuError::NoPlugin { looked: looked.join(library), package });
        };
        self.environment
            .register_ep_library(provider.ep(), &file)
            .map_err(|e| NpuError::BadPlugin { file, why: one_line(&e.to_string()), package })?;
        loaded.insert(provider);
        Ok(())
    }

    /// The hardware that a provider finds, and how to reach it.
    fn hardware(&self, provider: Provider) -> Result<Vec<Chosen>, NpuError> {
        let has_own = has_own(provider);
        match self.load_plugin(provider) {
            Err(e) if !has_own => return Err(e),
            _ => {}
        }
        let of_provider = self.environment.devices().filter(|d| d.ep().ok() == Some(provider.ep()));
        let plugins = of_provider.filter_map(|device| {
            let hardware = match (provider, device.hardware_device().ty()) {
                (Provider::Qnn, DeviceType::NPU) => Hardware::Htp,
                (Provider::Qnn, DeviceType::CPU) => Hardware::Emulator,
                (_, DeviceType::NPU) => Hardware::Npu,
                (_, DeviceType::CPU) => Hardware::Cpu,
                _ => return None,
            };
            Some(Chosen { provider, hardware, is_plugin: true })
        });
        let hardware = if provider == Provider::OpenVino { Hardware::Cpu } else { Hardware::Npu };
        let own = has_own.then_some(Chosen { provider, hardware, is_plugin: false });
        Ok(plugins.chain(own).collect())
    }

    /// The provider and hardware that a user's notation means. Where it names no hardware, a real
    /// NPU.
    pub fn choose(&self, spec: NpuSpec) -> Result<Chosen, NpuError> {
        let Some(provider) = spec.provider else {
            let mut reasons = Vec::new();
            for provider in vendors() {
                match self.choose(NpuSpec { provider: Some(provider), hardware: None }) {
                    Ok(chosen) => return Ok(chosen),
                    Err(e) => reasons.push(e.to_string()),
                }
            }
            return Err(NpuError::Unfit(format!("no NPU was found: {}", reasons.join("; "))));
        };
        let all = self.hardware(provider)?;
        let wanted = spec.hardware.unwrap_or(provider.hardware()[0]);
        let has = |wanted| all.iter().find(|c| c.hardware == wanted).copied();
        if let Some(chosen) = has(wanted) {
            return Ok(chosen);
        }
        let names: Vec<&str> = all.iter().map(|c| c.hardware.name()).collect();
        let found = match names.is_empty() {
            true => "it finds nothing".to_string(),
            false => format!("it finds {}", names.join(", ")),
        };
        let hint = match (provider, wanted) {
            _ if spec.hardware.is_none() && has(Hardware::Emulator).is_some() => {
                "The emulation takes its name, npu:qnn:emulator"
            }
            (Provider::OpenVino, Hardware::Cpu) => {
                "Intel's plugin takes Intel's processors only; others take: pip install \
                 onnxruntime-openvino==1.24.1, in place of onnxruntime"
            }
            (Provider::CoreMl, _) => "It is part of macOS and iOS",
            (Provider::VitisAi, _) => "It comes with the ONNX Runtime of AMD's Ryzen AI software",
            _ => "If there is one, its driver is missing",
        };
        let (provider, wanted) = (provider.name(), wanted.name());
        Err(NpuError::Unfit(format!("provider {provider} finds no {wanted} here; {found}. {hint}")))
    }

    /// Loads what a provider needs that was chosen in another process.
    pub fn reach(&self, chosen: Chosen) -> Result<(), NpuError> {
        if chosen.is_plugin { self.load_plugin(chosen.provider) } else { Ok(()) }
    }

    /// The versions of the libraries that compile for a provider.
    pub fn versions(&self, chosen: Chosen) -> String {
        let plugin = chosen.provider.plugin().filter(|_| chosen.is_plugin);
        let plugin = plugin.and_then(|p| library_in(&self.folder(p), p.library));
        let version = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let bytes = file.metadata().map_or(0, |m| m.len());
            format!("{name} of {bytes} bytes")
        };
        let all: Vec<String> = [&self.library].into_iter().chain(&plugin).map(version).collect();
        all.join(", ")
    }

    /// Compiles a model.
    ///
    /// # Errors
    /// Why the provider refuses it, in one line.
    pub fn compile(
        &self,
        chosen: Chosen,
        threads: usize,
        model: MadeFrom<'_>,
        profile: Option<&ProfileFile>,
    ) -> Result<Session, String> {
        self.made(|| {
            let mut options = self.options(chosen, threads, profile)?;
            match model {
                MadeFrom::File(path) => options.commit_from_file(path),
                MadeFrom::Compiled(bytes) => options.commit_from_memory(bytes),
            }
        })
    }

    /// Compiles a model on the reference as it is written: its fused products of bytes refuse some
    /// that other providers take.
    ///
    /// # Errors
    /// Why it refuses the model, in one line.
    pub fn compile_unfused(&self, threads: usize, model: &Path) -> Result<Session, String> {
        self.made(|| {
            self.options(Chosen::REFERENCE, threads, None)?
                .with_config_entry("session.disable_quant_qdq", "1")?
                .commit_from_file(model)
        })
    }

    /// Compiles a model into a file, from which [`Runtime::compile`] is quick.
    ///
    /// # Errors
    /// Why the provider refuses it, in one line.
    pub fn compile_to(
        &self,
        chosen: Chosen,
        threads: usize,
        model: &Path,
        to: &Path,
        profile: Option<&ProfileFile>,
    ) -> Result<(), String> {
        let to = to.to_str().ok_or("the file's name is no text")?;
        self.made(|| {
            let mut builder = self
                .options(chosen, threads, profile)?
                .with_config_entry("ep.context_enable", "1")?
                .with_config_entry("ep.context_embed_mode", "1")?
                .with_config_entry("ep.context_file_path", to)?;
            builder.commit_from_file(model).map(drop)
        })
    }

    /// Has QNN's own interface run and profile a compiled model.
    ///
    /// # Errors
    /// Why it does not, in one line.
    pub fn profile(&self, compiled: &Path, to: &ProfileFile) -> Result<(), String> {
        let folder = Provider::Qnn.plugin().map(|plugin| self.folder(plugin)).unwrap_or_default();
        let bytes = std::fs::read(compiled).map_err(|e| e.to_string())?;
        let profile = qnn::profile(&folder, &bytes, to.level)?;
        std::fs::write(&to.path, profile).map_err(|e| e.to_string())
    }

    /// Something that a provider makes, or why it does not, in one line.
    fn made<T>(&self, make: impl FnOnce() -> ort::Result<T>) -> Result<T, String> {
        *lock(&self.said) = None;
        make().map_err(|e| {
            let what = one_line(&e.to_string());
            match lock(&self.said).take().filter(|said| !what.contains(said)) {
                Some(said) => format!("{what} ({said})"),
                None => what,
            }
        })
    }

    /// Options of the runtime's own kernels.
    fn own_kernels(&self, builder: SessionBuilder) -> ort::Result<SessionBuilder> {
        // Named, or else the runtime takes any provider whose plugin is loaded.
        let ep = Provider::Reference.ep();
        let own = self.environment.devices().filter(|d| d.ep().ok() == Some(ep));
        let builder = builder
            .with_optimization_level(GraphOptimizationLevel::Level3)?
            // Processors without VNNI add up pairs of bytes in 16 bits, which overflow.
            .with_precise_qmm()?
            // A product with 8-bit weights becomes `MatMulNBits`, which by default (level 4)
            // rounds its inputs to bytes again. Level 1 multiplies them as floats.
            .with_config_entry("session.qdq_matmulnbits_accuracy_level", "1")?;
        Ok(builder.with_devices(own.take(1), None)?)
    }

    fn options(
        &self,
        chosen: Chosen,
        threads: usize,
        profile: Option<&ProfileFile>,
    ) -> ort::Result<SessionBuilder> {
        let Chosen { provider, hardware, is_plugin } = chosen;
        let mut builder = Session::builder(&self.environment)?.with_intra_threads(threads)?;
        if let Some(profile) = profile.filter(|_| provider != Provider::Qnn) {
            builder = builder.with_profiling(&profile.path)?;
        }
        if provider == Provider::Reference {
            return self.own_kernels(builder);
        }
        // The optimizers of the runtime make ops that providers lack.
        let builder = builder
            .with_optimization_level(GraphOptimizationLevel::Disable)?
            .with_disable_cpu_fallback()?;
        if !is_plugin {
            let own = match provider {
                Provider::VitisAi => Vitis::default().build(),
                _ => OpenVINO::default()
                    .with_device_type("CPU")
                    .with_precision("FP32")
                    .with_num_threads(threads)
                    .with_arbitrary_config("load_config", openvino_config(threads))
                    .build(),
            };
            return Ok(builder.with_execution_providers([own.error_on_failure()])?);
        }
        let kind = match hardware {
            Hardware::Npu | Hardware::Htp => DeviceType::NPU,
            Hardware::Cpu | Hardware::Emulator => DeviceType::CPU,
        };
        let devices = self
            .environment
            .devices()
            .filter(|d| d.ep().ok() == Some(provider.ep()) && d.hardware_device().ty() == kind);
        let folder = provider.plugin().map(|plugin| self.folder(plugin)).unwrap_or_default();
        let mut options = provider_options(chosen, &folder, threads);
        if let Some(ProfileFile { level, path }) = profile.filter(|_| provider == Provider::Qnn) {
            options.push(("profiling_level", level.name().into()));
            options.push(("profiling_file_path", path.display().to_string()));
        }
        let options: Vec<(String, String)> = options
            .into_iter()
            .map(|(key, value)| (format!("{}.{key}", provider.ep()), value))
            .collect();
        Ok(builder.with_devices(devices.take(1), Some(&options))?)
    }
}

/// OpenVINO's properties: it computes in f32 unless the model says otherwise. By itself it rounds
/// the activations of 8-bit weights to 8 bits.
fn openvino_config(threads: usize) -> String {
    format!(
        "{{\"CPU\":{{\"INFERENCE_PRECISION_HINT\":\"f32\",\"DYNAMIC_QUANTIZATION_GROUP_SIZE\":\"0\",\
         \"INFERENCE_NUM_THREADS\":\"{threads}\",\"NUM_STREAMS\":\"1\"}}}}"
    )
}

/// The options of a provider.
fn provider_options(chosen: Chosen, folder: &Path, threads: usize) -> Vec<(&'static str, String)> {
    match chosen.provider {
        Provider::Reference | Provider::CoreMl | Provider::VitisAi => Vec::new(),
        Provider::OpenVino => vec![("load_config", openvino_config(threads))],
        Provider::Qnn => {
            let mut options = vec![
                ("backend_path", folder.join("libQnnHtp.so").display().to_string()),
                ("offload_graph_io_quantization", "0".into()),
                ("enable_htp_fp16_precision", "1".into()),
            ];
            if chosen.hardware == Hardware::Emulator {
                // Of a Snapdragon 8 Gen 3, where nothing else says which processor it is.
                options.extend([("htp_arch", "75".into()), ("soc_model", "57".into())]);
            }
            options
        }
    }
}

/// All providers but the runtime's own kernels.
fn vendors() -> impl Iterator<Item = Provider> {
    Provider::ALL.into_iter().filter(|p| *p != Provider::Reference)
}

/// Whether a provider is part of the runtime that is loaded.
fn has_own(provider: Provider) -> bool {
    let is_there = match provider {
        Provider::OpenVino => OpenVINO::is_available(),
        Provider::VitisAi => Vitis::is_available(),
        Provider::Reference | Provider::Qnn | Provider::CoreMl => Ok(false),
    };
    is_there.unwrap_or(false)
}

/// The library of ONNX Runtime that is used.
///
/// # Errors
/// There is none, or one that does not serve.
pub fn runtime_library(places: &RuntimePlaces) -> Result<PathBuf, NpuError> {
    Ok(Runtime::load(places)?.library.clone())
}

/// What each vendor's provider finds on this machine, or the step that failed.
pub fn survey(places: &RuntimePlaces) -> Vec<(Provider, Result<Vec<Hardware>, NpuError>)> {
    let found = |provider| {
        if provider == Provider::CoreMl {
            let there = cfg!(target_vendor = "apple").then_some(Hardware::Npu);
            return Ok(there.into_iter().collect());
        }
        let all = Runtime::load(places)?.hardware(provider)?;
        Ok(all.iter().map(|chosen| chosen.hardware).collect())
    };
    vendors().map(|provider| (provider, found(provider))).collect()
}

/// A provider with the hardware that it runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub provider: Provider,
    pub hardware: Hardware,
    /// Whether the provider is a plugin, and not part of the runtime. Intel's plugin takes Intel's
    /// processors only; the provider in its own build of the runtime takes others, too.
    pub is_plugin: bool,
}

impl Chosen {
    /// What others are compared with.
    pub const REFERENCE: Chosen =
        Chosen { provider: Provider::Reference, hardware: Hardware::Cpu, is_plugin: true };

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Chosen> {
        let own = text.strip_suffix(":own");
        let spec = NpuSpec::parse(&format!(":{}", own.unwrap_or(text))).ok()?;
        let (provider, hardware) = (spec.provider?, spec.hardware?);
        Some(Chosen { provider, hardware, is_plugin: own.is_none() })
    }
}

impl std::fmt::Display for Chosen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let own = if self.is_plugin { "" } else { ":own" };
        write!(f, "{}:{}{own}", self.provider.name(), self.hardware.name())
    }
}

/// A library's message without line ends.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
