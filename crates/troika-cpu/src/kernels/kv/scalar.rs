//! The plain reference.

use troika_device::Step;

/// Writes rows one by one into an f32 cache.
pub fn append(step: &Step, group: usize, x: &[f32], width: usize, cache: &mut [f32]) {
    for s in &step.seqs {
        for row in s.rows.clone() {
            if let Some(at) = s.tables[group].row(s.pos + row - s.rows.start) {
                cache[at * width..][..width].copy_from_slice(&x[row * width..][..width]);
            }
        }
    }
}
