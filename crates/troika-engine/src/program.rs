//! The plan applied to a lowered model: for each segment and phase, which device runs which
//! executable.

use std::sync::Arc;

use troika_device::{Device, ExecutableId, WeightSource};
use troika_graph::{Acts, restrict_activations};
use troika_model::lower::Lowered;
use troika_plan::{Phase, Plan};

use crate::error::EngineError;

/// A segment as it runs in a phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// Index of the device among the plan's.
    pub device: usize,
    /// What the device made of the segment.
    pub executable: ExecutableId,
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
    compiled: Vec<Compiled>,
}

/// An executable with what it was made of: phases that agree on it share it.
struct Compiled {
    segment: usize,
    device: usize,
    activations: Vec<Acts>,
    executable: ExecutableId,
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
            compiled: Vec::new(),
        };
        for segment in 0..lowered.segments.len() {
            let placed = program.place(lowered, segment, (plan, Phase::Prefill), weights)?;
            program.prefill.push(placed);
            let placed = program.place(lowered, segment, (plan, Phase::Decode), weights)?;
            program.decode.push(placed);
        }
        Ok(program)
    }

    /// A segment's place in a phase.
    pub fn placed(&self, phase: Phase, segment: usize) -> Placed {
        match phase {
            Phase::Prefill => self.prefill[segment],
            Phase::Decode => self.decode[segment],
        }
    }

    fn place(
        &mut self,
        lowered: &Lowered,
        segment: usize,
        (plan, phase): (&Plan, Phase),
        weights: &dyn WeightSource,
    ) -> Result<Placed, EngineError> {
        let s = &lowered.segments[segment];
        let rule = plan.rule(phase, s.kind, s.layer);
        let device = rule.and_then(|r| plan.devices.iter().position(|d| *d == r.device));
        let unplaced = || EngineError::Unplaced(s.graph.name.clone());
        let (rule, device) = rule.zip(device).ok_or_else(unplaced)?;
        let made = self.compiled.iter().rev().take_while(|c| c.segment == segment);
        let mut same = made.filter(|c| c.device == device && c.activations == rule.activations);
        if let Some(made) = same.next() {
            return Ok(Placed { device, executable: made.executable });
        }
        let graph = restrict_activations(&s.graph, &rule.activations);
        let info = self.devices[device].compile(&graph, weights)?;
        self.scratch_bytes = self.scratch_bytes.max(info.scratch_bytes);
        let (activations, executable) = (rule.activations.clone(), info.id);
        self.compiled.push(Compiled { segment, device, activations, executable });
        Ok(Placed { device, executable })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for c in &self.compiled {
            self.devices[c.device].release(c.executable);
        }
    }
}
