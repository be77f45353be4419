
// Formats of bytes in blocks of 32. Each defines `scale_at`: the scale and minimum of a block, of those
// that begin at unit `start`.

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let s = scale_at(row + cols / 16u, part / 2u);
    return Q16(unit(row + part), s.x, s.y);
}

// 32 weights, whose halves share their scale.
struct Block {
    u: vec4<u32>,
    v: vec4<u32>,
    scale: f32,
    minimum: f32,
}

fn load_block(row: u32, block: u32, cols: u32) -> Block {
    let s = scale_at(row + cols / 16u, block);
    let u = row + 2u * block;
    return Block(unit(u), unit(u + 1u), s.x, s.y);
}

fn first_packed(b: Block) -> Q16 {
    return Q16(b.u, b.scale, b.minimum);
}

fn second_packed(b: Block) -> Q16 {
    return Q16(b.v, b.scale, b.minimum);
}
