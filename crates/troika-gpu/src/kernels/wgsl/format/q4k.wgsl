
const SCALED: bool = true;
const SIGNED: bool = false;
const MINIMUM: bool = true;

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let block = row + 9u * (part / 16u);
    let g = (part & 15u) / 2u;
    let s = scale_min(unit(block), g);
    return nibbles(unit(block + 1u + (g / 2u) * 2u + (part & 1u)), (g & 1u) * 4u, s.x, -s.y);
}

// 32 weights: nibbles at `shift` of two units.
struct Block {
    u: vec4<u32>,
    v: vec4<u32>,
    shift: u32,
    scale: f32,
    minimum: f32,
}

fn load_block(row: u32, block: u32, cols: u32) -> Block {
    let start = row + 9u * (block / 8u);
    let g = block & 7u;
    let s = scale_min(unit(start), g);
    let u = start + 1u + (g / 2u) * 2u;
    return Block(unit(u), unit(u + 1u), (g & 1u) * 4u, s.x, -s.y);
}

fn first_packed(b: Block) -> Q16 {
    return nibbles(b.u, b.shift, b.scale, b.minimum);
}

fn second_packed(b: Block) -> Q16 {
    return nibbles(b.v, b.shift, b.scale, b.minimum);
}
