//! A token that may be chosen.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub id: u32,
    pub logit: f32,
}

impl Candidate {
    /// Plus infinity becomes the largest number.
    #[inline]
    pub fn new(id: u32, logit: f32) -> Candidate {
        Candidate { id, logit: if logit > f32::MAX { f32::MAX } else { logit } }
    }
}
