//! Engines for tests of the engine itself.

use std::sync::Arc;

use troika::Described;
use troika::engine::{CompileControl, Engine, EngineError, EngineParts, Sharing};
use troika::plan::Plan;
use troika::trace::Tracer;
use troika_device::{Clock, Device, RealClock, WeightSource};

/// What an engine has that is not usual.
#[derive(Default)]
pub struct EngineOptions<'a> {
    /// The weights; `None`: the model's own.
    pub weights: Option<&'a dyn WeightSource>,
    /// The clock; `None`: the real one.
    pub clock: Option<Arc<dyn Clock>>,
    /// Records spans.
    pub tracer: Tracer,
    /// How sequences share the engine.
    pub sharing: Sharing,
    /// How compiling is watched and ended; `None`: it is not.
    pub control: Option<&'a CompileControl>,
}

/// The engine of a model that runs a plan.
///
/// # Errors
/// Those of [`Engine::new`].
pub fn engine(
    d: &Described,
    devices: &[Arc<dyn Device>],
    plan: Plan,
    options: EngineOptions<'_>,
) -> Result<Engine, EngineError> {
    let EngineOptions { weights, clock, tracer, sharing, control } = options;
    let clock = clock.unwrap_or_else(|| Arc::new(RealClock::new()));
    let (shapes, weights) = (&|key| d.store.shape(key), weights.unwrap_or(&d.store));
    let parts =
        EngineParts { spec: &d.spec, shapes, weights, plan, devices, clock, tracer, sharing };
    Engine::new(parts, control.unwrap_or(&CompileControl::default()))
}
