
// The scale of sixteen weights.
fn scale_of(row: u32, part: u32, cols: u32) -> f32 {
    return half_at(row + 1u + cols / 32u, part);
}
