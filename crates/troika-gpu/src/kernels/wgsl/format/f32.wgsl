
const SCALED: bool = false;
const MINIMUM: bool = false;

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let u = row + 4u * part;
    return plain(
        bitcast<vec4<f32>>(unit(u)),
        bitcast<vec4<f32>>(unit(u + 1u)),
        bitcast<vec4<f32>>(unit(u + 2u)),
        bitcast<vec4<f32>>(unit(u + 3u)),
    );
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
