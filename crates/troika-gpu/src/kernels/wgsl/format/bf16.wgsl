
const SCALED: bool = false;
const MINIMUM: bool = false;

fn widened(x: u32, y: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(x << 16u, x & 0xffff0000u, y << 16u, y & 0xffff0000u));
}

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let u = unit(row + 2u * part);
    let v = unit(row + 2u * part + 1u);
    return plain(widened(u.x, u.y), widened(u.z, u.w), widened(v.x, v.y), widened(v.z, v.w));
}

// 32 weights: nothing is shared by their halves.
struct Block {
    row: u32,
    part: u32,
    cols: u32,
}

fn load_block(row: u32, block: u32, cols: u32) -> Block {
    return Block(row, 2u * block, cols);
}

fn first16(b: Block) -> W16 {
    return load16(b.row, b.part, b.cols);
}

fn second16(b: Block) -> W16 {
    return load16(b.row, b.part + 1u, b.cols);
}
