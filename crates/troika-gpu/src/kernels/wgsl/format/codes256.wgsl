
// The scale of sixteen weights: a whole number, times the scale of 256.
fn scale_of(row: u32, part: u32, cols: u32) -> f32 {
    let numbers = row + 1u + cols / 32u;
    let number = extractBits(bitcast<i32>(word(numbers, part / 4u)), (part & 3u) * 8u, 8u);
    return bitcast<f32>(word(numbers + cols / 256u, part / 16u)) * f32(number);
}
