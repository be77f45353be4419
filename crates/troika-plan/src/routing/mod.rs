//! Which experts routers choose: recorded traces, what they show, and a predictor.
//!
//! A [`RoutingTrace`] has the chosen experts of each token of a text. [`ExpertUse`] counts them,
//! [`Transitions`] says which experts follow which in the next layer, and [`median_overlap`] how much
//! of what one text shows holds on another. A [`RoutingPredictor`] says before a router runs which
//! experts it will choose.

mod container;
mod expert_use;
mod predictor;
mod trace;
mod transitions;

#[cfg(test)]
pub(crate) use expert_use::tests::of as used_experts;

pub use container::RoutingFileError;
pub use expert_use::{ExpertUse, median_overlap};
pub use predictor::{LayerPredictor, Prediction, PredictorSource, RoutingPredictor};
pub use trace::{LayerRouting, RoutingTrace};
pub use transitions::Transitions;
