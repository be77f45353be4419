//! The laboratory: what is asked about models and devices rather than of them. Simulations of
//! virtual SoCs, profiles for the solver, and measurements of this machine; and the tables of
//! papers, made again by these.

mod ablation;
mod error;
mod hand_over;
mod profile;
mod reproduce;
mod simulate;
mod subject;

pub use ablation::{Ablation, StepTime};
pub use error::LabError;
pub(crate) use error::Result;
pub use hand_over::{HandOverBy, HandOvers, measure_hand_overs};
pub use profile::{OnProfiled, ProfileOptions, ProfileOutcome, kept_profile, profile};
pub use reproduce::{Report, reproduce_on, reproduced_ids};
pub use simulate::{
    Figures, ProductChoice, ProductShape, ProductTime, SimulateOptions, Simulation, SocStrategy,
    WEIGHTS,
};
pub use subject::{Shape, Subject};
