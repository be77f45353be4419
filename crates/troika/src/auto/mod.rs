//! Devices where none are named: what is there is looked at while a model's files are read, then
//! [`choose`] says what computes.

mod choice;
mod needs;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use troika_device::DeviceError;
use troika_engine::EngineError;
use troika_graph::DType;
use troika_model::spec::ModelSpec;
use troika_plan::{Goal, Plan, PlanError, Refusal, Strategy};
use troika_weights::{Quant, WeightStore};

use choice::{AskedDevices, Choice, Machine, ModelNeeds, WORTH_A_GPU, choose};

use crate::budget::HostMemory;
use crate::devices::{AutoDevices, DeviceOptions, DeviceSpec, GpuSearch};
use crate::error::Error;
use crate::options::{OpenOptions, PlanSource, SolveOptions};
use crate::profile_file::{ProfileAt, npu_devices};

impl OpenOptions {
    /// Begins to look for GPUs, if devices are to be chosen and a model may be worth it, or if one is
    /// named whose layers and context are open.
    pub(crate) fn look(&self, bytes: u64) -> Option<GpuSearch> {
        let is_open =
            self.strategy == Strategy::OneDevice && matches!(self.plan, PlanSource::Strategy);
        let is_named = |gpu: &DeviceSpec| {
            let meant = gpu.gpu.clone().filter(|_| is_open && gpu.name.is_none());
            meant.map(GpuSearch::Named)
        };
        match &self.devices.devices[..] {
            [] => {}
            [gpu] => return is_named(gpu),
            [gpu, cpu] if *cpu == DeviceSpec::default() => return is_named(gpu),
            _ => return None,
        }
        let auto = self.devices.auto.as_ref()?;
        let by_size = || auto.layers.map_or(bytes >= WORTH_A_GPU, |layers| layers > 0);
        let by_plan = self.plan.given().map(|plan| plan.devices.iter().any(|name| name == "gpu"));
        by_plan.unwrap_or_else(by_size).then(|| GpuSearch::start(auto.helper.as_ref()))
    }

    /// Options with devices, strategy, context and cache as they are chosen for a model, where they
    /// leave that open. The observer hears of it.
    ///
    /// # Errors
    /// A description that cannot be lowered.
    pub fn chosen(
        &self,
        name: &str,
        spec: &ModelSpec,
        store: &WeightStore,
    ) -> Result<OpenOptions, Error> {
        let search = self.look(store.bytes());
        self.chosen_by(search, name, spec, store)
    }

    /// The same by a search that goes on.
    pub(crate) fn chosen_by(
        &self,
        search: Option<GpuSearch>,
        name: &str,
        spec: &ModelSpec,
        store: &WeightStore,
    ) -> Result<OpenOptions, Error> {
        if let Some(profiled) = self.profiled(name, spec, store) {
            // Waited for, so that no ended process is left.
            let _ = search.map(GpuSearch::found);
            return Ok(profiled);
        }
        let Some(search) = search else { return Ok(self.clone()) };
        let machine = match self.machine(search) {
            Ok(machine) => machine,
            Err(why) => return Ok(self.on_cpu(name, &why)),
        };
        let mut options = self.clone();
        if let Some(plan) = self.plan.given() {
            let specs = machine.named(&plan.devices).unwrap_or_default();
            options.devices.devices = specs.iter().filter_map(|spec| spec.parse().ok()).collect();
            return Ok(options);
        }
        // What is wrong with a context is told when the plan is made.
        if self.context.is_some_and(|context| !(1..=spec.longest()).contains(&context)) {
            return Ok(self.clone());
        }
        let (choice, named) =
            (self.choice(&machine, spec, store)?, !self.devices.devices.is_empty());
        let is_whole = matches!(choice.strategy, Strategy::OneNamed(_));
        match choice.adapters.is_empty() {
            true if named => return Ok(options),
            true => return Ok(self.on_cpu(name, &choice.line)),
            // What was asked for is not told.
            false if named && is_whole && choice.context.is_none() => {}
            false => self.tell(&format!("{name}: {}; --device cpu for the CPU alone", choice.line)),
        }
        if let Some(auto) = options.devices.auto.as_mut().filter(|_| !named) {
            auto.most = choice.held.iter().copied().max();
            let gpus = choice.adapters.iter().map(|number| format!("gpu:{number}"));
            let specs = gpus.chain(["cpu".to_string()]).filter_map(|spec| spec.parse().ok());
            options.devices.devices = specs.collect();
            options.devices.gpus.own_memory |= is_whole;
        }
        if !named || !is_whole {
            options.strategy = choice.strategy;
        }
        options.context = choice.context.or(options.context);
        options.sharing.kv_bytes = choice.kv_bytes;
        Ok(options)
    }

    /// Devices that a kept profile of this model was measured on, if an NPU is among them, with the plan
    /// that the profile chooses. `None` if there is none, or something else is asked for.
    fn profiled(&self, name: &str, spec: &ModelSpec, store: &WeightStore) -> Option<OpenOptions> {
        let auto = self.devices.auto.as_ref().filter(|auto| auto.layers.is_none())?;
        let is_open = self.devices.devices.is_empty() && self.strategy == Strategy::OneDevice;
        let folder = std::fs::read_dir(auto.profiles.as_ref().filter(|_| is_open)?).ok()?;
        let mut files: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).collect();
        files.sort_unstable();
        let of = |file: PathBuf| Some((npu_devices(&file, spec, store)?, file));
        let (names, file) = files.into_iter().find_map(of)?;
        let (mut options, profile) = (self.clone(), ProfileAt::File(file));
        options.devices.devices = names.iter().map(|n| n.parse().ok()).collect::<Option<_>>()?;
        options.plan = PlanSource::Profile(match &self.plan {
            PlanSource::Strategy => {
                SolveOptions { profile, goal: Goal::default(), prompt: None, generate: None }
            }
            PlanSource::Profile(of) if matches!(of.profile, ProfileAt::IfIn(_)) => {
                SolveOptions { profile, ..of.clone() }
            }
            _ => return None,
        });
        let names = names.join(", ");
        self.tell(&format!(
            "{name}: a kept profile chooses among {names}; --device cpu for the CPU alone"
        ));
        Some(options)
    }

    /// What is there besides the CPU.
    fn machine(&self, search: GpuSearch) -> Result<Machine, String> {
        let mut adapters = search.found()?;
        let (software, most) =
            self.devices.auto.as_ref().map_or((None, None), |a| (a.software, a.most));
        for adapter in adapters.iter_mut().filter(|a| a.is_software && software.is_some()) {
            (adapter.is_software, adapter.has_own_memory) = (false, true);
            (adapter.memory, adapter.free) = (software, software);
        }
        let limit = |name| self.devices.limit_of(name).into_iter().chain(most).min();
        let limits = ["gpu", "gpu1", "gpu2", "gpu3"].map(|name| limit(name).unwrap_or(u64::MAX));
        Ok(Machine { adapters, host: HostMemory::now(self.memory), limits: limits.to_vec() })
    }

    /// What computes a model. A GPU that is named alone computes all of it or nothing.
    fn choice(
        &self,
        machine: &Machine,
        spec: &ModelSpec,
        store: &WeightStore,
    ) -> Result<Choice, Error> {
        let mut needs = ModelNeeds::of(spec, store, self)?;
        let alone = self.devices.devices.len() == 1;
        if alone {
            needs.head += std::mem::take(&mut needs.embed);
        }
        let layers = self.devices.auto.as_ref().map_or(Some(usize::MAX), |auto| auto.layers);
        let choice = choose(machine, &needs, AskedDevices { layers, context: self.context });
        let is_whole = matches!(choice.strategy, Strategy::OneNamed(_));
        Ok(if alone && !is_whole { Choice::default() } else { choice })
    }

    /// Where a model would run of which the description and the bytes of its weights are known: "on the
    /// CPU", or "with" layers on GPUs.
    pub fn outlook(&self, spec: &ModelSpec, bytes: u64) -> String {
        let types = [DType::F32, DType::BF16, DType::Q8_0, DType::Q6_K, DType::Q4_K];
        // Weights of one type that take about as much.
        let stores = types.map(|dtype| WeightStore::synthetic_lazy(spec, dtype, 0, Quant::None));
        let store = stores.into_iter().min_by_key(|store| store.bytes().abs_diff(bytes));
        let choice = || self.choice(&self.machine(self.look(bytes)?).ok()?, spec, &store?).ok();
        match choice().filter(|choice| !choice.line.is_empty()) {
            Some(Choice { adapters, line, .. }) if adapters.is_empty() => {
                format!("on the CPU: {line}")
            }
            Some(choice) => format!("with {}", choice.line),
            None => "on the CPU".into(),
        }
    }

    /// What is tried after devices that were chosen failed: less of their memory, once, if they had too
    /// little; else the CPU. `None` if nothing was chosen or others would fail, too.
    pub(crate) fn after(
        &self,
        chosen: &OpenOptions,
        name: &str,
        error: &Error,
    ) -> Option<OpenOptions> {
        let (auto, before) = (chosen.devices.auto.as_ref()?, self.devices.auto.as_ref()?);
        let lacks_memory = lacks_memory(error).filter(|_| chosen.is_chosen())?;
        if !lacks_memory || before.most.is_some() || auto.most.is_none() {
            return Some(self.on_cpu(name, &error.to_string()));
        }
        self.tell(&format!("{name}: {error}; half as much is put on the GPU"));
        let most = auto.most.map(|most| most / 2);
        let auto = Some(AutoDevices { most, ..before.clone() });
        Some(OpenOptions {
            devices: DeviceOptions { auto, ..self.devices.clone() },
            ..self.clone()
        })
    }

    /// Whether devices and their plan were chosen.
    fn is_chosen(&self) -> bool {
        let devices = &self.devices;
        devices.auto.is_some() && !devices.devices.is_empty() && self.plan.given().is_none()
    }

    /// Why devices that were chosen do not compute a plan: they refuse ops within layers, whose values
    /// would cross over again and again.
    pub(crate) fn takes_layers(&self, plan: &Plan, refusals: &[Refusal]) -> Result<(), Error> {
        let is_ours = self.is_chosen() && matches!(self.plan, PlanSource::Strategy);
        let mut met = plan.refused_by_rules(refusals).into_iter();
        match met.find(|(refusal, _)| is_ours && refusal.segment.is_in_layers()) {
            None => Ok(()),
            Some((refusal, _)) => {
                let Refusal { device, segment, op, why } = refusal.clone();
                let graph = segment.name().to_string();
                Err(DeviceError::Unsupported { device, op, graph, why }.into())
            }
        }
    }

    /// Has the CPU compute where devices are to be chosen, and says why.
    fn on_cpu(&self, name: &str, why: &str) -> OpenOptions {
        if !why.is_empty() {
            self.tell(&format!("{name}: the CPU computes: {why}"));
        }
        let mut options = self.clone();
        options.devices.auto.iter_mut().for_each(|auto| auto.layers = Some(0));
        options
    }

    /// Tells the user a sentence.
    pub(crate) fn tell(&self, line: &str) {
        self.observer.iter().for_each(|observer| observer.placed(line));
    }
}

/// Whether devices failed for want of memory; `None` if not they failed.
fn lacks_memory(error: &Error) -> Option<bool> {
    match error {
        Error::Device(e) | Error::Engine(EngineError::Device(e)) => match e {
            DeviceError::Cancelled | DeviceError::Weight { .. } => None,
            other => Some(matches!(other, DeviceError::Memory { .. })),
        },
        Error::Engine(EngineError::Refused { .. }) | Error::Profile { .. } => Some(false),
        Error::Engine(EngineError::CacheBinding { .. }) => Some(true),
        Error::Plan(PlanError::Memory { .. }) => Some(true),
        _ => None,
    }
}
