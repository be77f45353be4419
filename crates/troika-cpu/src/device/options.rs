//! How a CPU device is opened.

use std::sync::Arc;

use troika_device::SpaceId;

use crate::machine::Isa;

/// Sees what products of floats read and give, and what routers choose: for calibrations.
pub trait Observer: Send + Sync {
    /// A product with a weight: its input, of `cols` columns, and its result.
    fn product(&self, weight: &str, x: &[f32], cols: usize, y: &[f32]);

    /// What a router chose, before experts read it.
    fn routed(&self, routed: Routed<'_>);
}

/// What a router chose for some rows.
pub struct Routed<'a> {
    /// The graph that the router is part of.
    pub graph: &'a str,
    /// How many experts it chooses from.
    pub experts: usize,
    /// The chosen experts. The experts of a row lie side by side.
    pub ids: &'a [i32],
    /// Their weights. With a weight of 0 an expert adds nothing to the row: experiments drop experts
    /// like that.
    pub weights: &'a mut [f32],
}

/// The parameters of a [`super::CpuDevice`].
#[derive(Clone, Default)]
pub struct CpuOptions {
    /// Name, unique in the process.
    pub name: String,
    /// Threads of each queue, including its own.
    pub threads: usize,
    /// Cores to pin the threads to, in turn.
    pub cores: Option<Vec<usize>>,
    /// An instruction set below the machine's best.
    pub isa: Option<Isa>,
    /// Memory spaces that it reaches besides the host's: the spaces of virtual devices whose values
    /// it computes.
    pub spaces: Vec<SpaceId>,
    /// Whether plans may have it compute products in bytes by a calibration, as NPUs do.
    pub calibrated: bool,
    /// Sees products of whole values.
    pub observer: Option<Arc<dyn Observer>>,
}
