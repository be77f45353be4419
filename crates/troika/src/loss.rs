//! Going on when a device is lost: on the CPU, which computes everything anew.

use std::sync::{Arc, Mutex};

use troika_device::{Clock, DeviceError, lock};
use troika_engine::{CompileControl, Engine, EngineParts};
use troika_model::spec::ModelSpec;
use troika_plan::{Plan, PlanDevice, Strategy};
use troika_weights::WeightStore;

use crate::devices::{DeviceOptions, open_devices};
use crate::error::Error;
use crate::options::OpenOptions;
use crate::planning::plan_request;

/// The plan that an open model runs, which changes when a device is lost.
pub(crate) type CurrentPlan = Arc<Mutex<Arc<Plan>>>;

/// What makes an engine on the CPU in place of one whose device is lost.
pub(crate) struct CpuInstead {
    pub spec: ModelSpec,
    pub store: Arc<WeightStore>,
    pub options: OpenOptions,
    pub clock: Arc<dyn Clock>,
    pub plan: CurrentPlan,
}

impl CpuInstead {
    /// Tells of the loss and makes the engine.
    ///
    /// # Errors
    /// Why the CPU cannot go on, in a sentence.
    pub fn engine(&self, loss: &DeviceError) -> Result<Engine, String> {
        if let Some(observer) = &self.options.observer {
            let what = match loss {
                DeviceError::Gone(device) => format!("device {device} stopped working"),
                other => other.to_string(),
            };
            observer.notice(&format!("{what}; the CPU computes everything anew and goes on"));
        }
        self.make().map_err(|e| e.to_string())
    }

    fn make(&self) -> Result<Engine, Error> {
        let cpu = DeviceOptions { devices: Vec::new(), ..self.options.devices.clone() };
        let devices = open_devices(&cpu)?;
        let before = lock(&self.plan).clone();
        let wanted = OpenOptions {
            strategy: Strategy::OneDevice,
            context: Some(before.context),
            chunk: Some(before.prefill.chunk),
            kv_dtype: Some(before.kv_dtype),
            ..self.options.clone()
        };
        let facts: Vec<PlanDevice> = devices.iter().map(PlanDevice::of).collect();
        let request = plan_request(&self.spec, &self.store, &wanted);
        let plan = troika_plan::make(&self.spec, &facts, &request)?;
        let shapes = |key| self.store.shape(key);
        let parts = EngineParts {
            spec: &self.spec,
            shapes: &shapes,
            weights: &*self.store,
            plan: plan.clone(),
            devices: &devices,
            clock: self.clock.clone(),
            tracer: self.options.tracer.clone(),
            sharing: self.options.sharing,
        };
        let engine = Engine::new(parts, &CompileControl::default())?;
        *lock(&self.plan) = Arc::new(plan);
        Ok(engine)
    }
}
