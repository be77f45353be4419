
const SCALED: bool = true;
const MINIMUM: bool = true;

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let scales = row + cols / 16u;
    let scale = bitcast<f32>(word(scales, 2u * part));
    let minimum = bitcast<f32>(word(scales, 2u * part + 1u));
    return bytes(unit(row + part), scale, -minimum);
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
