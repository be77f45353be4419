
const SCALED: bool = true;
const SIGNED: bool = false;
const MINIMUM: bool = true;

// Sixteen of the 64 weights of a unit, which count from -1.
fn two_bits(bits: vec4<u32>, quarter: u32, scale: f32) -> Q16 {
    return Q16((bits >> vec4<u32>(2u * quarter)) & vec4<u32>(0x03030303u), scale, -scale);
}

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    return two_bits(unit(row + part / 4u), part & 3u, half_at(row + cols / 64u, part / 4u));
}

// 32 weights, whose halves share their scale.
struct Block {
    u: vec4<u32>,
    quarter: u32,
    scale: f32,
}

fn load_block(row: u32, block: u32, cols: u32) -> Block {
    let u = row + block / 2u;
    return Block(unit(u), 2u * (block & 1u), half_at(row + cols / 64u, block / 2u));
}

fn first_packed(b: Block) -> Q16 {
    return two_bits(b.u, b.quarter, b.scale);
}

fn second_packed(b: Block) -> Q16 {
    return two_bits(b.u, b.quarter + 1u, b.scale);
}
