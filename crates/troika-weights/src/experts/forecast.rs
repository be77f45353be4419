//! What may be chosen next.

/// Says which experts a row will probably choose, by what an earlier router read of it.
pub trait ExpertForecast: Send + Sync {
    /// After the router of a layer: calls `expect` with another layer, and the experts that it
    /// probably chooses, the most probable first.
    fn after(&self, layer: usize, row: &[f32], expect: &mut dyn FnMut(usize, &[u16]));
}
