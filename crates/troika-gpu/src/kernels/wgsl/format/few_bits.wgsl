
// Codes of two bits, 64 to a unit, then a third bit of each, 128 to a unit, or of each eight
// (`BY_EIGHT`), then four bits for the scale of each `SCALE_PARTS` times sixteen weights, then f16
// scales of 256. `TABLE` has what the codes stand for.

const SCALED: bool = true;
const SIGNED: bool = true;
const MINIMUM: bool = false;

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let low = (unit(row + part / 4u) >> vec4<u32>(2u * (part & 3u))) & vec4<u32>(0x03030303u);
    var start = row + cols / 64u;
    var scales = 0u;
    var high: vec4<u32>;
    if BY_EIGHT {
        let bits = word(start, part / 16u) >> (2u * (part & 15u));
        high = vec4<u32>(0x01010101u) * vec4<u32>(bits & 1u, bits & 1u, (bits >> 1u) & 1u, (bits >> 1u) & 1u);
        scales = cols / 256u;
    } else {
        high = (unit(start + part / 8u) >> vec4<u32>(part & 7u)) & vec4<u32>(0x01010101u);
        start += cols / 128u;
    }
    let group = part / SCALE_PARTS;
    let number = (word(start, scales + group / 8u) >> (4u * (group & 7u))) & 15u;
    let halves = 2u * (scales + cols / (128u * SCALE_PARTS));
    let scale = half_at(start, halves + part / 16u) * 0.125 * f32(2u * number + 1u);
    return coded(low | (high << vec4<u32>(2u)), 0u, TABLE, scale);
}
