//! How a CPU device is opened.

use troika_device::SpaceId;

use crate::machine::Isa;

/// The parameters of a [`super::CpuDevice`].
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Name, unique in the process.
    pub name: String,
    /// Threads of each queue, including its own.
    pub threads: usize,
    /// Cores to pin the threads to, in turn.
    pub cores: Option<Vec<usize>>,
    /// An instruction set below the machine's best.
    pub isa: Option<Isa>,
    /// Memory spaces that it reaches besides the host's: those of virtual devices whose values it
    /// computes.
    pub spaces: Vec<SpaceId>,
}
