//! Checks of devices: cases for every op and for every kernel, what runs them on any device, and
//! a wrapper that watches a device. The conformance suite judges devices by them, and so does
//! whoever asks whether a device computes what another one does.

mod bench;
mod build;
mod check;
mod kernel;
mod ops;
mod random;
mod runner;
mod values;
mod watched;

pub use bench::Bench;
pub use build::{CaseWeights, DeviceCase, MAX_ROWS, POSITIONS};
pub use check::{Check, CheckedKernel};
pub use kernel::Kernel;
pub use ops::op_cases;
pub use random::Random;
pub use runner::{CaseRunner, Layout, Ran};
pub use values::{Values, floats, relative_error, snr_db};
pub use watched::{Doing, Hook, Hooked, Watch, Watched, told_to_fail};
