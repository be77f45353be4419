//! The CPU device: executables and queues.

mod bindings;
mod executor;
mod ops;
mod options;
mod prepared;
mod queue;

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use troika_device::{
    Caps, Clock, CompileRequest, CompileResults, Completion, Device, DeviceError, DeviceId,
    DeviceKind, Executable, Queue, SpaceId, WeightSource, Weights,
};
use troika_graph::{ActivationFormat, DType, Subgraph};

use crate::compile;
pub use crate::device::options::{CpuOptions, Observer, Routed};
use crate::device::queue::{QUEUE_DEPTH, start};
use crate::kernels::int8;
use crate::kernels::linear::bf16;
use crate::machine::{Isa, cores, features, physical_cores, topology};

/// The code of a subgraph, and its device.
struct Compiled {
    device: DeviceId,
    code: Arc<compile::Executable>,
}

/// The CPU, or some of its cores.
pub struct CpuDevice {
    options: CpuOptions,
    isa: Isa,
    caps: Caps,
    id: DeviceId,
}

impl CpuDevice {
    /// A device. Threads start with its queues.
    ///
    /// # Errors
    /// No threads, or an instruction set that cannot run here.
    pub fn new(options: CpuOptions) -> Result<CpuDevice, DeviceError> {
        let refuse = |why: String| Err(DeviceError::System { device: options.name.clone(), why });
        if options.threads == 0 {
            return refuse("a CPU device needs at least one thread".into());
        }
        let isa = options.isa.unwrap_or_else(Isa::detect);
        if !isa.can_run() {
            return refuse(format!("this machine has no {}", isa.name()));
        }
        let caps = caps(&options, isa);
        Ok(CpuDevice { options, isa, caps, id: DeviceId::unique() })
    }
}

fn caps(options: &CpuOptions, isa: Isa) -> Caps {
    let mut facts = vec![
        ("cores".to_string(), cores().to_string()),
        ("performance cores".to_string(), physical_cores(&topology()).len().to_string()),
        ("threads".to_string(), options.threads.to_string()),
        ("features".to_string(), features()),
        ("kernels".to_string(), isa.name().to_string()),
    ];
    if let Some(pinned) = &options.cores {
        let list: Vec<String> = pinned.iter().map(usize::to_string).collect();
        facts.push(("pinned to cores".to_string(), list.join(",")));
    }
    let mut activation_formats = vec![ActivationFormat::INT8];
    activation_formats.extend(int8::gains_from_seven_bits(isa).then_some(int8::INT7));
    activation_formats.extend(bf16::gains(isa).then_some(ActivationFormat::Bf16));
    if options.calibrated {
        activation_formats.extend(ActivationFormat::calibrated(8));
    }
    Caps {
        spaces: [SpaceId::HOST].into_iter().chain(options.spaces.iter().copied()).collect(),
        numerics: format!("cpu {}", isa.name()),
        weight_dtypes: DType::WEIGHTS.to_vec(),
        activation_formats,
        queue_depth: QUEUE_DEPTH,
        facts,
        ..Caps::default()
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        &self.options.name
    }

    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn compile(&self, request: &CompileRequest<'_>) -> CompileResults {
        request.each(|graph| {
            let code = compile::compile(&self.options.name, self.isa, graph)?;
            let scratch_bytes = code.scratch_bytes(self.options.threads);
            let scratch_bytes = scratch_bytes.ok_or_else(|| DeviceError::Memory {
                what: format!("{} on device {}", graph.name, self.options.name),
                bytes: usize::MAX,
            })?;
            let compiled = Compiled { device: self.id, code: Arc::new(code) };
            Ok(Arc::new(Executable::new(compiled, scratch_bytes)))
        })
    }

    fn load(
        &self,
        executable: &Arc<Executable>,
        graph: &Subgraph,
        weights: &dyn WeightSource,
    ) -> Result<Arc<Weights>, DeviceError> {
        let compiled = executable.made::<Compiled>().filter(|c| c.device == self.id);
        let Some(Compiled { code, .. }) = compiled else {
            let why = format!("{executable:?} is none of device {}", self.options.name);
            return Err(DeviceError::Submission { task: graph.name.clone(), why });
        };
        let loaded = compile::load(self.id, self.isa, code, graph, weights)?;
        Ok(Arc::new(Weights::new(executable, loaded)))
    }

    fn queue(
        &self,
        number: usize,
        clock: Arc<dyn Clock>,
        done: SyncSender<Completion>,
    ) -> Result<Box<dyn Queue>, DeviceError> {
        start(&self.options, self.isa, self.id, number, clock, done)
    }
}
