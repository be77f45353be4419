//! Checks of a plan against the model and the devices at hand.

use troika_graph::DType;
use troika_model::spec::ModelSpec;

use crate::{ModelId, PLAN_VERSION, Plan};

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// Written by another version.
    #[error("the plan has version {found}, this build reads {PLAN_VERSION}; make it again")]
    Version {
        /// The plan's version.
        found: u32,
    },
    /// Made for another model.
    #[error("the plan was made for {found:?}, the model is {need:?}; make it again")]
    Model {
        /// The plan's model.
        found: Box<ModelId>,
        /// The model at hand.
        need: Box<ModelId>,
    },
    /// A device that is not there.
    #[error("the plan uses device {0}, which this machine does not have")]
    Device(String),
    /// A placement out of range.
    #[error("placement {index} of the plan names device number {device}, the plan lists {count}")]
    Placement {
        /// Index of the placement.
        index: usize,
        /// Device number.
        device: usize,
        /// Devices listed.
        count: usize,
    },
    /// A length of zero or too large.
    #[error("{what} is {got}; it must be between {low} and {high}")]
    Range {
        /// Which figure.
        what: &'static str,
        /// Its value.
        got: usize,
        /// Smallest allowed.
        low: usize,
        /// Largest allowed.
        high: usize,
    },
    /// KV cache type.
    #[error("the KV cache cannot be {0}; use F32, F16 or BF16")]
    KvType(DType),
}

/// The longest context: ops are given positions in 32 bits.
pub(crate) const MAX_CONTEXT: usize = i32::MAX as usize;

impl Plan {
    /// Checks the plan.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check(&self, spec: &ModelSpec, devices: &[&str]) -> Result<(), PlanError> {
        if self.version != PLAN_VERSION {
            return Err(PlanError::Version { found: self.version });
        }
        let need = ModelId::of(spec);
        if self.model != need {
            let (found, need) = (Box::new(self.model.clone()), Box::new(need));
            return Err(PlanError::Model { found, need });
        }
        range("the context", self.context, 1, spec.context.clamp(1, MAX_CONTEXT))?;
        range("the chunk length", self.chunk, 1, 1 << 16)?;
        range("the page length", self.page_len, 1, 1 << 16)?;
        if !self.page_len.is_power_of_two() {
            let next = self.page_len.next_power_of_two();
            return Err(PlanError::Range {
                what: "the page length (a power of two)",
                got: self.page_len,
                low: next,
                high: next,
            });
        }
        if !matches!(self.kv_dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(PlanError::KvType(self.kv_dtype));
        }
        if let Some(d) = self.devices.iter().find(|d| !devices.contains(&d.as_str())) {
            return Err(PlanError::Device(d.clone()));
        }
        let count = self.devices.len();
        match self.placements.iter().enumerate().find(|(_, p)| p.device >= count) {
            Some((index, p)) => Err(PlanError::Placement { index, device: p.device, count }),
            None => Ok(()),
        }
    }
}

fn range(what: &'static str, got: usize, low: usize, high: usize) -> Result<(), PlanError> {
    if (low..=high).contains(&got) {
        Ok(())
    } else {
        Err(PlanError::Range { what, got, low, high })
    }
}
