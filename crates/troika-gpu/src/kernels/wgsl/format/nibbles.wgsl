
// Formats of nibbles, 32 to a unit. Each defines `scale_at`: the scale and minimum of a block, of those
// that begin at unit `start`.

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let block = part / 2u;
    let s = scale_at(row + cols / 32u, block);
    return nibbles(unit(row + block), (part & 1u) * 4u, s.x, s.y);
}

// 32 weights.
struct Block {
    u: vec4<u32>,
    scale: f32,
    minimum: f32,
}

fn load_block(row: u32, block: u32, cols: u32) -> Block {
    let s = scale_at(row + cols / 32u, block);
    return Block(unit(row + block), s.x, s.y);
}

fn first_packed(b: Block) -> Q16 {
    return nibbles(b.u, 0u, b.scale, b.minimum);
}

fn second_packed(b: Block) -> Q16 {
    return nibbles(b.u, 4u, b.scale, b.minimum);
}
