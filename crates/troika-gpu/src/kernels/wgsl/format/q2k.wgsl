
const SCALED: bool = true;
const SIGNED: bool = false;
const MINIMUM: bool = true;

// A block has a unit of scales and minima, then two for each 128 weights.
fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let block = part / 16u;
    let p = part & 15u;
    let start = row + 5u * block;
    let s = (word(start, p / 4u) >> ((p & 3u) * 8u)) & 0xffu;
    let d = halves_at(row + 5u * (cols / 256u), block);
    let bits = unit(start + 1u + p / 8u * 2u + (p & 1u)) >> vec4<u32>((p & 6u));
    return Q16(bits & vec4<u32>(0x03030303u), d.x * f32(s & 15u), -(d.y * f32(s >> 4u)));
}
