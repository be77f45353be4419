//! The laboratory: what is asked about models and devices rather than of them. Simulations of
//! virtual SoCs, profiles for the solver, and measurements of this machine; and the tables of
//! papers, made again by these.

mod bench;
mod energy;
mod hand_over;
mod no_weights;
mod profile;
pub mod reproduce;
mod simulate;

pub use bench::Bench;
pub use energy::{EnergyMeter, Metering};
pub use hand_over::{HandOverBy, HandOvers, measure_hand_overs};
pub use profile::{OnProfiled, ProfileOptions, ProfileOutcome, kept_profile, profile};
pub use simulate::{
    Figures, ProductChoice, ProductShape, ProductTime, SimulateError, SimulateOptions, Simulation,
    SocStrategy, WEIGHTS,
};
