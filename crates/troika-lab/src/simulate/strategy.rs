//! Names of the ways to divide a model over the processors of a SoC.

use troika::sim::{Processor, ProcessorKind, Soc};
use troika_plan::{Dispatch, ExpertPolicy};

use super::{Result, SimulateError};

/// How a model is divided over the processors of a SoC. Each strategy becomes a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocStrategy {
    /// GPU and NPU share products wherever that is faster (HeteroInfer 4.2).
    HeteroTensor,
    /// A prompt's products on the NPU; everything else, and decode, on the GPU (HeteroInfer 4.1).
    HeteroLayer,
    /// Standard lengths of a prompt's products on the NPU, the rest of its rows and decode on the
    /// GPU.
    ActivationCentric,
    /// Like hetero-layer, with prompts padded to the next standard length.
    Padding,
    /// Like hetero-layer, with the prompt cut into parts of the shortest standard length.
    NpuPipe,
    /// Like hetero-layer, with the prompt in chunks of one length, one after the other (llm.npu).
    ChunkedPrefill,
    /// Like hetero-layer, compiled for the prompt's length once the prompt is known.
    OnlinePrepare,
    /// Everything on the GPU.
    GpuOnly,
    /// Products on the NPU, in both phases.
    NpuOnly,
    /// Everything on the CPU.
    CpuOnly,
    /// The solver's plan by the SoC's prices, for the time to the first token.
    Solved,
    /// A prompt's experts in groups on the NPU, all else on the CPU (NPUMoE).
    Experts(ExpertPolicy, Dispatch),
}

/// All strategies, with their names on the command line.
const NAMES: [(SocStrategy, &str); 21] = {
    use Dispatch::{LayerMajor, PerChunk};
    use SocStrategy::*;
    [
        (HeteroTensor, "hetero-tensor"),
        (HeteroLayer, "hetero-layer"),
        (ActivationCentric, "activation-centric"),
        (Padding, "padding"),
        (NpuPipe, "npu-pipe"),
        (ChunkedPrefill, "chunked-prefill"),
        (OnlinePrepare, "online-prepare"),
        (GpuOnly, "gpu-only"),
        (NpuOnly, "npu-only"),
        (CpuOnly, "cpu-only"),
        (Solved, "solved"),
        (Experts(ExpertPolicy::Base, PerChunk), "experts=base"),
        (Experts(ExpertPolicy::Tiers, PerChunk), "experts=t"),
        (Experts(ExpertPolicy::Groups, PerChunk), "experts=tg"),
        (Experts(ExpertPolicy::All, PerChunk), "experts"),
        (Experts(ExpertPolicy::Cache, PerChunk), "experts=cache"),
        (Experts(ExpertPolicy::Base, LayerMajor), "layer-major=base"),
        (Experts(ExpertPolicy::Tiers, LayerMajor), "layer-major=t"),
        (Experts(ExpertPolicy::Groups, LayerMajor), "layer-major=tg"),
        (Experts(ExpertPolicy::All, LayerMajor), "layer-major"),
        (Experts(ExpertPolicy::Cache, LayerMajor), "layer-major=cache"),
    ]
};

impl SocStrategy {
    /// All strategies.
    pub fn all() -> [SocStrategy; 21] {
        NAMES.map(|(strategy, _)| strategy)
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(strategy, _)| *strategy == self).map_or("", |named| named.1)
    }

    /// The strategy with a given name.
    ///
    /// # Errors
    /// A sentence with the known names.
    pub fn parse(name: &str) -> Result<SocStrategy, String> {
        let short = name.strip_suffix("=all").unwrap_or(name);
        let found = NAMES.iter().find(|(_, name)| *name == short).map(|(strategy, _)| *strategy);
        found.ok_or_else(|| {
            let known = NAMES.map(|(_, name)| name).join(", ");
            format!("there is no strategy {name:?} for a SoC; the strategies are {known}")
        })
    }

    /// The processor that it needs.
    pub(super) fn processor(self, soc: &Soc, kind: ProcessorKind) -> Result<&Processor> {
        soc.processors.iter().find(|p| p.kind == kind).ok_or_else(|| {
            let need = match kind {
                ProcessorKind::Cpu => "a CPU",
                ProcessorKind::Gpu => "a GPU",
                ProcessorKind::Npu => "an NPU",
            };
            let (own, soc) = (self.name(), &soc.name);
            SimulateError::Asked(format!("strategy {own} needs {need}, and SoC {soc} has none"))
        })
    }
}
