//! The plan applied to a lowered model: for each segment and phase, which device runs which
//! executable.

use std::sync::Arc;

use troika_device::{Device, Executable, WeightSource};
use troika_graph::{ActivationFormat, restrict_activations};
use troika_model::lower::{Lowered, Segment};
use troika_plan::{Phase, Plan};

use crate::error::EngineError;

/// A segment as it runs in a phase.
#[derive(Clone)]
pub(crate) struct Placed {
    /// Index of the device among the plan's.
    pub device: usize,
    /// What the device made of the segment.
    pub executable: Arc<Executable>,
}

/// Which device runs what. Built once, when a model is opened.
pub(crate) struct Program {
    /// The plan's devices, in its order.
    pub devices: Vec<Arc<dyn Device>>,
    /// Names of the segments, for traces.
    pub names: Vec<Arc<str>>,
    /// Most bytes of scratch memory that a run needs.
    pub scratch_bytes: u64,
    prefill: Vec<Placed>,
    decode: Vec<Placed>,
}

/// An executable with what it was made of: phases that agree on it share it.
struct Compiled {
    device: usize,
    activations: Vec<ActivationFormat>,
    executable: Arc<Executable>,
}

impl Program {
    /// Compiles each segment where the plan, which was checked before, places it. A failure leaves
    /// nothing behind.
    ///
    /// # Errors
    /// A segment without a device, or one that its device refuses.
    pub fn new(
        lowered: &Lowered,
        plan: &Plan,
        at_hand: &[Arc<dyn Device>],
        weights: &dyn WeightSource,
    ) -> Result<Program, EngineError> {
        let find = |name: &String| at_hand.iter().find(|d| d.name() == name).cloned();
        let mut program = Program {
            devices: plan.devices.iter().filter_map(find).collect(),
            names: lowered.segments.iter().map(|s| s.graph.name.as_str().into()).collect(),
            scratch_bytes: 0,
            prefill: Vec::new(),
            decode: Vec::new(),
        };
        for segment in &lowered.segments {
            let mut compiled = Vec::new();
            for phase in [Phase::Prefill, Phase::Decode] {
                let placed = program.place(segment, (plan, phase), weights, &mut compiled)?;
                match phase {
                    Phase::Prefill => program.prefill.push(placed),
                    Phase::Decode => program.decode.push(placed),
                }
            }
        }
        Ok(program)
    }

    /// A segment's place in a phase.
    pub fn placed(&self, phase: Phase, segment: usize) -> Placed {
        match phase {
            Phase::Prefill => self.prefill[segment].clone(),
            Phase::Decode => self.decode[segment].clone(),
        }
    }

    fn place(
        &mut self,
        segment: &Segment,
        (plan, phase): (&Plan, Phase),
        weights: &dyn WeightSource,
        compiled: &mut Vec<Compiled>,
    ) -> Result<Placed, EngineError> {
        let rule = plan.rule(phase, segment.kind, segment.layer);
        let device = rule.and_then(|r| plan.devices.iter().position(|d| *d == r.device));
        let unplaced = || EngineError::Unplaced(segment.graph.name.clone());
        let (rule, device) = rule.zip(device).ok_or_else(unplaced)?;
        let same = |c: &&Compiled| c.device == device && c.activations == rule.activations;
        if let Some(made) = compiled.iter().find(same) {
            return Ok(Placed { device, executable: made.executable.clone() });
        }
        let graph = restrict_activations(&segment.graph, &rule.activations);
        let executable = self.devices[device].compile(&graph, weights)?;
        self.scratch_bytes = self.scratch_bytes.max(executable.scratch_bytes());
        let activations = rule.activations.clone();
        compiled.push(Compiled { device, activations, executable: executable.clone() });
        Ok(Placed { device, executable })
    }
}
