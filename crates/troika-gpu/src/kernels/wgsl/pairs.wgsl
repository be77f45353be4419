
// A word of two numbers.
fn pair_bits(a: f32, b: f32, format: u32) -> u32 {
    if format == 1u {
        if is_beyond(a) || is_beyond(b) {
            batch[p.flag] = 1u;
        }
        return f16_bits(a) | (f16_bits(b) << 16u);
    }
    return bf16_bits(a) | (bf16_bits(b) << 16u);
}
