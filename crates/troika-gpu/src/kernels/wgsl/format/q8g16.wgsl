
const SCALED: bool = true;
const SIGNED: bool = true;
const MINIMUM: bool = true;

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let scales = row + cols / 16u;
    let scale = bitcast<f32>(word(scales, 2u * part));
    let minimum = bitcast<f32>(word(scales, 2u * part + 1u));
    return Q16(unit(row + part), scale, -minimum);
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

fn first_packed(b: Block) -> Q16 {
    return packed16(b.row, b.part, b.cols);
}

fn second_packed(b: Block) -> Q16 {
    return packed16(b.row, b.part + 1u, b.cols);
}
