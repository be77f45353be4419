//! Names of the ways to divide a model over the processors of a SoC.

use troika::sim::{Processor, ProcessorKind, Soc};
use troika_plan::{Dispatch, ExpertPolicy};

use super::SimulateError;

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

impl SocStrategy {
    /// All strategies.
    pub const ALL: [SocStrategy; 21] = [
        SocStrategy::HeteroTensor,
        SocStrategy::HeteroLayer,
        SocStrategy::ActivationCentric,
        SocStrategy::Padding,
        SocStrategy::NpuPipe,
        SocStrategy::ChunkedPrefill,
        SocStrategy::OnlinePrepare,
        SocStrategy::GpuOnly,
        SocStrategy::NpuOnly,
        SocStrategy::CpuOnly,
        SocStrategy::Solved,
        SocStrategy::Experts(ExpertPolicy::Base, Dispatch::PerChunk),
        SocStrategy::Experts(ExpertPolicy::Tiers, Dispatch::PerChunk),
        SocStrategy::Experts(ExpertPolicy::Groups, Dispatch::PerChunk),
        SocStrategy::Experts(ExpertPolicy::All, Dispatch::PerChunk),
        SocStrategy::Experts(ExpertPolicy::Cache, Dispatch::PerChunk),
        SocStrategy::Experts(ExpertPolicy::Base, Dispatch::LayerMajor),
        SocStrategy::Experts(ExpertPolicy::Tiers, Dispatch::LayerMajor),
        SocStrategy::Experts(ExpertPolicy::Groups, Dispatch::LayerMajor),
        SocStrategy::Experts(ExpertPolicy::All, Dispatch::LayerMajor),
        SocStrategy::Experts(ExpertPolicy::Cache, Dispatch::LayerMajor),
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            SocStrategy::HeteroTensor => "hetero-tensor",
            SocStrategy::HeteroLayer => "hetero-layer",
            SocStrategy::ActivationCentric => "activation-centric",
            SocStrategy::Padding => "padding",
            SocStrategy::NpuPipe => "npu-pipe",
            SocStrategy::ChunkedPrefill => "chunked-prefill",
            SocStrategy::OnlinePrepare => "online-prepare",
            SocStrategy::GpuOnly => "gpu-only",
            SocStrategy::NpuOnly => "npu-only",
            SocStrategy::CpuOnly => "cpu-only",
            SocStrategy::Solved => "solved",
            SocStrategy::Experts(policy, Dispatch::PerChunk) => match policy {
                ExpertPolicy::Base => "experts=base",
                ExpertPolicy::Tiers => "experts=t",
                ExpertPolicy::Groups => "experts=tg",
                ExpertPolicy::All => "experts",
                ExpertPolicy::Cache => "experts=cache",
            },
            SocStrategy::Experts(policy, Dispatch::LayerMajor) => match policy {
                ExpertPolicy::Base => "layer-major=base",
                ExpertPolicy::Tiers => "layer-major=t",
                ExpertPolicy::Groups => "layer-major=tg",
                ExpertPolicy::All => "layer-major",
                ExpertPolicy::Cache => "layer-major=cache",
            },
        }
    }

    /// The strategy with a given name.
    ///
    /// # Errors
    /// A sentence with the known names.
    pub fn parse(name: &str) -> Result<SocStrategy, String> {
        let short = name.strip_suffix("=all").unwrap_or(name);
        SocStrategy::ALL.into_iter().find(|s| s.name() == short).ok_or_else(|| {
            let known = SocStrategy::ALL.map(SocStrategy::name).join(", ");
            format!("there is no strategy {name:?} for a SoC; the strategies are {known}")
        })
    }

    /// Whether code is compiled when the prompt is known.
    pub(super) fn prepares_online(self) -> bool {
        self == SocStrategy::OnlinePrepare
    }

    /// The processor that it needs.
    pub(super) fn processor(
        self,
        soc: &Soc,
        kind: ProcessorKind,
    ) -> Result<&Processor, SimulateError> {
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
