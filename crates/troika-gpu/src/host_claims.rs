//! Claims on the host's memory that kernels use: they last until the device is done.

use troika_device::{Access, AccessError, Buffer, HeldClaim, Rect};

/// What kernels under way use of the host's memory.
#[derive(Default)]
pub(crate) struct HostClaims(Vec<Held>);

struct Held {
    buffer: Buffer,
    wanted: Vec<(Rect, Access)>,
    claim: Option<HeldClaim>,
}

impl HostClaims {
    /// Claims rectangles besides those that are claimed already: uses of one queue, which follow
    /// each other, do not exclude each other.
    ///
    /// # Errors
    /// Somebody else uses the bytes.
    pub fn add(&mut self, buffer: &Buffer, wanted: &[(Rect, Access)]) -> Result<(), AccessError> {
        let known = self.0.iter().position(|held| held.buffer.id() == buffer.id());
        let at = known.unwrap_or_else(|| {
            self.0.push(Held { buffer: buffer.clone(), wanted: Vec::new(), claim: None });
            self.0.len() - 1
        });
        let held = &mut self.0[at];
        let before = held.wanted.len();
        for each in wanted {
            if !held.wanted.contains(each) {
                held.wanted.push(*each);
            }
        }
        if held.wanted.len() > before {
            held.claim = None;
            held.claim = Some(buffer.hold(&held.wanted)?);
        }
        Ok(())
    }

    /// Ends all claims: the device is done.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
