
const SCALED: bool = true;
const SIGNED: bool = false;
const MINIMUM: bool = true;

// 128 bits to a unit, which stand for minus the scale and the scale.
fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let bits = unit(row + part / 8u) >> vec4<u32>(part & 7u);
    let scale = half_at(row + cols / 128u, part / 8u);
    return Q16(bits & vec4<u32>(0x01010101u), 2.0 * scale, -scale);
}
