//! x86: registers of AVX2 and AVX-512 with products of bytes (VNNI), and tiles (AMX).

#[cfg(any(test, feature = "emulate"))]
mod emulated;
#[cfg(target_arch = "x86_64")]
mod native;
#[cfg(any(test, feature = "emulate"))]
mod tiles;
mod vector;

#[cfg(any(test, feature = "emulate"))]
pub(crate) use emulated::Emulated;
#[cfg(target_arch = "x86_64")]
pub(crate) use native::{Tmm, Ymm, Zmm};
#[cfg(any(test, feature = "emulate"))]
pub(crate) use tiles::EmulatedTiles;
pub(crate) use vector::{Held, TileConfig, TileRegisters, Vector, tiles_multiply_pairs};

#[cfg(test)]
mod tests;
