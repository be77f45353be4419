
const SCALED: bool = true;
const MINIMUM: bool = false;

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    return bytes(unit(row + part), half_at(row + cols / 16u, part / 2u), 0.0);
}

// 32 weights, whose halves share their scale.
struct Block {
    u: vec4<u32>,
    v: vec4<u32>,
    scale: f32,
    minimum: f32,
}

fn load_block(row: u32, block: u32, cols: u32) -> Block {
    let u = row + 2u * block;
    return Block(unit(u), unit(u + 1u), half_at(row + cols / 16u, block), 0.0);
}

fn first16(b: Block) -> W16 {
    return bytes(b.u, b.scale, b.minimum);
}

fn second16(b: Block) -> W16 {
    return bytes(b.v, b.scale, b.minimum);
}
