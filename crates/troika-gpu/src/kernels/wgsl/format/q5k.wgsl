
const SCALED: bool = true;
const SIGNED: bool = false;
const MINIMUM: bool = true;

// Four numbers: nibbles at `shift`, fifth bits at `g`.
fn five(low: u32, high: u32, shift: u32, g: u32) -> u32 {
    return ((low >> shift) & 0x0f0f0f0fu) | (((high >> g) & 0x01010101u) << 4u);
}

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let block = row + 11u * (part / 16u);
    let g = (part & 15u) / 2u;
    let s = scale_min(unit(block), g);
    let high = unit(block + 1u + (part & 1u));
    let low = unit(block + 3u + (g / 2u) * 2u + (part & 1u));
    let shift = (g & 1u) * 4u;
    let q = vec4<u32>(
        five(low.x, high.x, shift, g),
        five(low.y, high.y, shift, g),
        five(low.z, high.z, shift, g),
        five(low.w, high.w, shift, g),
    );
    return Q16(q, s.x, -s.y);
}
