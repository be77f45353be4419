//! Claims on the host's memory that kernels use: they last until the device is done.

use smallvec::SmallVec;
use troika_device::{Access, AccessError, Buffer, HeldClaim, Rect};

/// What kernels under way use of the host's memory.
#[derive(Default)]
pub(crate) struct HostClaims(Vec<Held>);

struct Held {
    claim: HeldClaim,
    claimed: Vec<(Rect, Access)>,
}

impl HostClaims {
    /// Claims rectangles besides those that are claimed already: uses of one queue, which follow
    /// each other, do not exclude each other.
    ///
    /// # Errors
    /// Somebody else uses the bytes.
    pub fn add(&mut self, buffer: &Buffer, wanted: &[(Rect, Access)]) -> Result<(), AccessError> {
        let known = self.0.iter_mut().find(|held| held.claim.buffer().id() == buffer.id());
        let Some(held) = known else {
            self.0.push(Held { claim: buffer.hold(wanted)?, claimed: wanted.to_vec() });
            return Ok(());
        };
        let new = wanted.iter().filter(|each| !held.claimed.contains(each)).copied();
        let new: SmallVec<[_; 4]> = new.collect();
        held.claim.extend(&new)?;
        held.claimed.extend(new);
        Ok(())
    }

    /// Ends all claims: the device is done.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
