//! Profiles: measurements of a model's segments on devices. `troika profile` writes this JSON file;
//! the solver uses the fits in it. See the README beside this file.

mod chunk_length;
mod costs;
mod measured;
mod regret;
mod shapes;

pub use chunk_length::{CHUNK_ROWS, ChunkTime};
pub use costs::ProfiledCosts;
pub use measured::{
    DeviceSample, PROFILE_VERSION, PairSample, Profile, ProfileError, ProfileSubject,
    ProfiledDevice, Regret, RunAt, RunSample, Slowdown, Spread,
};
pub use shapes::{Apart, ProfiledGraph, profiled_graphs};
