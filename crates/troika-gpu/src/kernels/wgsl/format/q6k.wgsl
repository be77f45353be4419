
const SCALED: bool = true;
const SIGNED: bool = false;
const MINIMUM: bool = true;

// Four numbers: nibbles at `shift` of `low`, two bits at `pair` of `high`.
fn six(low: u32, high: u32, shift: u32, pair: u32) -> u32 {
    return ((low >> shift) & 0x0f0f0f0fu) | (((high >> pair) & 0x03030303u) << 4u);
}

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let number = part / 16u;
    let block = row + 13u * number;
    // Halves of 128; within a half, four quarters of 32 share bytes.
    let group = part & 15u;
    let half = group / 8u;
    let quarter = (group & 7u) / 2u;
    let side = group & 1u;
    let low = unit(block + half * 4u + (quarter & 1u) * 2u + side);
    let high = unit(block + 8u + half * 2u + side);
    let signed = bitcast<i32>(word(block + 12u, group / 4u) << (24u - (group & 3u) * 8u));
    let scale = half_at(row + 13u * (cols / 256u), number) * f32(signed >> 24u);
    let shift = (quarter / 2u) * 4u;
    let pair = quarter * 2u;
    let q = vec4<u32>(
        six(low.x, high.x, shift, pair),
        six(low.y, high.y, shift, pair),
        six(low.z, high.z, shift, pair),
        six(low.w, high.w, shift, pair),
    );
    return Q16(q, scale, -32.0 * scale);
}
