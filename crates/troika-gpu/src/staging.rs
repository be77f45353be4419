//! Memory through which the host's bytes reach the device: kept, and mapped when it is free.

use std::sync::{Arc, Mutex, PoisonError};

use troika_device::DeviceError;

use crate::gpu::{Gpu, Memory, Use};

/// Bytes of a piece. Weights go through several pieces in turn.
pub(crate) const PIECE: u64 = 8 << 20;
/// The most pieces.
const MOST: usize = 4;

/// Pieces of staging memory.
#[derive(Default)]
pub(crate) struct Staging {
    pieces: Arc<Mutex<Pieces>>,
}

#[derive(Default)]
struct Pieces {
    free: Vec<Memory>,
    made: usize,
}

impl Staging {
    /// A mapped piece; waits for one where all are in use.
    ///
    /// # Errors
    /// There is no memory for one, or the device is lost.
    pub fn take(&self, gpu: &Gpu) -> Result<Memory, DeviceError> {
        for _ in 0..1000 {
            {
                let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(piece) = pieces.free.pop() {
                    return Ok(piece);
                }
                if pieces.made < MOST {
                    let what = format!("copies to device {}", gpu.name);
                    let made = gpu.memory(PIECE, Use::Upload).map_err(DeviceError::memory(what))?;
                    pieces.made += 1;
                    return Ok(made);
                }
            }
            // Callbacks of what is done run here.
            gpu.wait(None)?;
            std::thread::yield_now();
        }
        Err(gpu.error("its driver does not give back memory that it has copied"))
    }

    /// Gives back a mapped piece that no command reads.
    pub fn give_back_unused(&self, piece: Memory) {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner).free.push(piece);
    }

    /// Gives a piece back whose copies were submitted: it is free when they are done.
    pub fn give_back(&self, piece: Memory) {
        let pieces = self.pieces.clone();
        let buffer = piece.buffer.clone();
        buffer.slice(..).map_async(wgpu::MapMode::Write, move |mapped| {
            let mut pieces = pieces.lock().unwrap_or_else(PoisonError::into_inner);
            match mapped {
                Ok(()) => pieces.free.push(piece),
                // One that cannot be mapped again is made anew.
                Err(_) => pieces.made -= 1,
            }
        });
    }
}
