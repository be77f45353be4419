//! Names of the ways to divide a model over the processors of a SoC.

use crate::devices::sim::{Processor, ProcessorKind, Soc};

use super::SimulateError;

/// How a model is divided over the processors of a SoC. Each is a plan of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocStrategy {
    /// GPU and NPU share products wherever that is faster (HeteroInfer 4.2).
    HeteroTensor,
    /// Products of a prompt on the NPU, all else on the GPU, which also decodes (HeteroInfer 4.1).
    HeteroLayer,
    /// Standard lengths of a prompt's products on the NPU, the rest of its rows on the GPU, which
    /// also decodes.
    ActivationCentric,
    /// As hetero-layer; prompts are padded to the next standard length.
    Padding,
    /// As hetero-layer; the parts of a prompt, each of the shortest standard length, follow each
    /// other.
    NpuPipe,
    /// As hetero-layer; code is made for the prompt's length when the prompt is there.
    OnlinePrepare,
    /// All on the GPU.
    GpuOnly,
    /// Products on the NPU, in both phases.
    NpuOnly,
    /// All on the CPU.
    CpuOnly,
    /// What the solver finds by the prices of the SoC's file: for the time to the first token.
    Solved,
}

impl SocStrategy {
    /// All of them.
    pub const ALL: [SocStrategy; 10] = [
        SocStrategy::HeteroTensor,
        SocStrategy::HeteroLayer,
        SocStrategy::ActivationCentric,
        SocStrategy::Padding,
        SocStrategy::NpuPipe,
        SocStrategy::OnlinePrepare,
        SocStrategy::GpuOnly,
        SocStrategy::NpuOnly,
        SocStrategy::CpuOnly,
        SocStrategy::Solved,
    ];

    /// Stable name.
    pub const fn name(self) -> &'static str {
        match self {
            SocStrategy::HeteroTensor => "hetero-tensor",
            SocStrategy::HeteroLayer => "hetero-layer",
            SocStrategy::ActivationCentric => "activation-centric",
            SocStrategy::Padding => "padding",
            SocStrategy::NpuPipe => "npu-pipe",
            SocStrategy::OnlinePrepare => "online-prepare",
            SocStrategy::GpuOnly => "gpu-only",
            SocStrategy::NpuOnly => "npu-only",
            SocStrategy::CpuOnly => "cpu-only",
            SocStrategy::Solved => "solved",
        }
    }

    /// The strategy of a name.
    ///
    /// # Errors
    /// A sentence with the names that there are.
    pub fn parse(name: &str) -> Result<SocStrategy, String> {
        SocStrategy::ALL.into_iter().find(|s| s.name() == name).ok_or_else(|| {
            let known = SocStrategy::ALL.map(SocStrategy::name).join(", ");
            format!("there is no strategy {name:?} for a SoC; the strategies are {known}")
        })
    }

    /// Whether code is made when the prompt is there.
    pub(super) fn prepares_online(self) -> bool {
        self == SocStrategy::OnlinePrepare
    }

    /// The processor that it needs.
    pub(super) fn processor(
        self,
        soc: &Soc,
        kind: ProcessorKind,
    ) -> Result<&Processor, SimulateError> {
        soc.processors.iter().find(|p| p.kind == kind).ok_or_else(|| SimulateError::Processor {
            strategy: self.name(),
            need: match kind {
                ProcessorKind::Cpu => "a CPU",
                ProcessorKind::Gpu => "a GPU",
                ProcessorKind::Npu => "an NPU",
            },
            soc: soc.name.clone(),
        })
    }
}
