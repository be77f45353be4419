//! Experts that are read from disk when tokens choose them.
//!
//! They lie in the file of packed weights, in the layout of the device that computes them. The cache
//! holds some of them in memory, under a byte budget. A run says which it has chosen; those in memory
//! are computed while the others are read.

mod cache;
mod io;
mod read;
#[cfg(target_os = "linux")]
mod ring;
mod room;
#[cfg(test)]
mod tests;

pub(crate) use cache::ExpertCache;
pub use cache::OnWait;
pub use read::read_rate;
