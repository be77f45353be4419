//! The plain reference.

use troika_device::ForwardBatch;

/// Writes rows one by one into an f32 cache.
pub fn append(
    forward: &ForwardBatch,
    page_group: usize,
    x: &[f32],
    width: usize,
    cache: &mut [f32],
) {
    for s in &forward.seqs {
        for row in s.rows.clone() {
            if let Some(at) = s.tables[page_group].row(s.pos + row - s.rows.start) {
                cache[at * width..][..width].copy_from_slice(&x[row * width..][..width]);
            }
        }
    }
}
