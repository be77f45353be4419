//! Claims on the host's memory that kernels use: they last until the device is done.

use troika_device::{Access, AccessError, Buffer, HeldClaim, Rect};

/// What kernels under way use of the host's memory: a claim for each buffer.
#[derive(Default)]
pub(crate) struct HostClaims(Vec<HeldClaim>);

impl HostClaims {
    /// Claims rectangles besides those that are claimed already: uses of one queue, which follow
    /// each other, do not exclude each other.
    pub fn add(&mut self, buffer: &Buffer, wanted: &[(Rect, Access)]) -> Result<(), AccessError> {
        match self.0.iter_mut().find(|held| held.buffer().id() == buffer.id()) {
            Some(held) => held.extend(wanted)?,
            None => self.0.push(buffer.hold(wanted)?),
        }
        Ok(())
    }

    /// Ends all claims: the device is done.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
