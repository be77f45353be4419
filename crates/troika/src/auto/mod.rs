//! Devices where none are named: what is there is looked at while a model's files are read, then
//! [`choose`] says what computes.

mod choice;
mod needs;
#[cfg(test)]
mod tests;

use troika_device::DeviceError;
use troika_engine::EngineError;
use troika_model::spec::ModelSpec;
use troika_plan::{Plan, PlanError, Refusal, Strategy};
use troika_weights::WeightStore;

use choice::{AskedDevices, Machine, ModelNeeds, WORTH_A_GPU, choose};

use crate::devices::{DeviceSpec, GpuAdapter, GpuSearch};
use crate::error::Error;
use crate::free_memory::free_memory;
use crate::options::OpenOptions;
use crate::planning::plan_request;

impl OpenOptions {
    /// Begins to look for GPUs, if devices are to be chosen and a model may be worth it.
    pub(crate) fn look(&self, bytes: u64) -> Option<GpuSearch> {
        let auto = self.devices.auto.as_ref().filter(|_| self.devices.devices.is_empty())?;
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
        let search = self.look(store.classes().iter().map(|class| class.bytes).sum());
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
        let (Some(auto), Some(search)) = (self.devices.auto.clone(), search) else {
            return Ok(self.clone());
        };
        let mut adapters = match search.found() {
            Ok(adapters) => adapters,
            Err(why) => {
                self.tell(&format!("{name}: the CPU computes: {why}"));
                return Ok(self.on_cpu());
            }
        };
        adapters.iter_mut().for_each(|adapter| adapter.pretend(auto.software));
        let request = plan_request(spec, store, self);
        // What is wrong with a context is told when the plan is made.
        if request.context.is_some_and(|context| !(1..=spec.context).contains(&context)) {
            return Ok(self.on_cpu());
        }
        let mut options = self.clone();
        if let Some(plan) = self.plan.given() {
            options.devices.devices = named_by(plan, &adapters);
            return Ok(options);
        }
        let limits = ["gpu", "gpu1"].map(|name| self.devices.limit_of(name)).to_vec();
        let machine = Machine { adapters, free: free_memory(), limits };
        let needs = ModelNeeds::of(name.into(), spec, store, self, &request)?;
        let wanted = AskedDevices { layers: auto.layers, context: self.context };
        let choice = choose(&machine, &needs, wanted);
        choice.line.iter().for_each(|line| self.tell(line));
        if choice.adapters.is_empty() {
            return Ok(self.on_cpu());
        }
        let gpus = choice.adapters.iter().map(|number| format!("gpu:{number}"));
        let specs = gpus.chain(["cpu".to_string()]).filter_map(|spec| spec.parse().ok());
        options.devices.devices = specs.collect();
        options.devices.gpus.own_memory |= matches!(choice.strategy, Strategy::OneNamed(_));
        options.strategy = choice.strategy;
        options.context = choice.context.or(options.context);
        options.sharing.kv_bytes = choice.kv_bytes;
        Ok(options)
    }

    /// Whether devices and plan were chosen, so that the CPU may take their place.
    pub(crate) fn is_chosen(&self) -> bool {
        let is_given = self.plan.given().is_some();
        self.devices.auto.is_some() && !self.devices.devices.is_empty() && !is_given
    }

    /// Has the CPU compute where devices are to be chosen.
    pub(crate) fn on_cpu(&self) -> OpenOptions {
        let mut options = self.clone();
        options.devices.auto = None;
        options.devices.memory.retain(|(name, _)| !name.starts_with("gpu"));
        options
    }

    /// Tells the user a sentence.
    pub(crate) fn tell(&self, line: &str) {
        self.observer.iter().for_each(|observer| observer.placed(line));
    }
}

impl GpuAdapter {
    /// Has software count as a GPU with so much memory of its own.
    fn pretend(&mut self, memory: Option<u64>) {
        if let Some(memory) = memory.filter(|_| self.is_software) {
            self.is_software = false;
            self.has_own_memory = true;
            (self.memory, self.free) = (Some(memory), Some(memory));
        }
    }
}

/// The devices that a plan's file names, if they are a GPU and the CPU; otherwise none.
fn named_by(plan: &Plan, adapters: &[GpuAdapter]) -> Vec<DeviceSpec> {
    let usable = |a: &GpuAdapter| a.fault.is_none() && !a.is_software;
    let Some(gpu) = adapters.iter().position(usable) else { return Vec::new() };
    let is = |name: &str| plan.devices.iter().any(|device| device == name);
    let known = plan.devices.iter().all(|device| ["gpu", "cpu"].contains(&&**device));
    let specs = [format!("gpu:{gpu}"), "cpu".into()];
    let specs = specs.iter().filter_map(|spec| spec.parse().ok());
    if is("gpu") && known { specs.collect() } else { Vec::new() }
}

/// Why devices that were chosen do not compute a plan: they refuse ops within layers, whose values
/// would cross over again and again.
///
/// # Errors
/// The first refusal.
pub(crate) fn takes_layers(plan: &Plan, refusals: &[Refusal]) -> Result<(), Error> {
    let met = plan.refused_by_rules(refusals);
    let within = met.into_iter().find(|(refusal, _)| refusal.segment.is_in_layers());
    within.map_or(Ok(()), |(refusal, _)| {
        let Refusal { device, segment, op, why } = refusal.clone();
        let graph = segment.name().to_string();
        Err(DeviceError::Unsupported { device, op, graph, why }.into())
    })
}

/// Whether the CPU may compute in place of devices that were chosen: they failed, or had too little
/// memory.
pub(crate) fn is_of_device(error: &Error) -> bool {
    match error {
        Error::Device(e) | Error::Engine(EngineError::Device(e)) => {
            !matches!(e, DeviceError::Cancelled | DeviceError::Weight { .. })
        }
        Error::Engine(EngineError::CacheBinding { .. } | EngineError::Refused { .. }) => true,
        Error::Plan(PlanError::Memory { .. }) => true,
        _ => false,
    }
}
