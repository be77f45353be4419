
// 32 weights whose halves share nothing.
struct Block {
    row: u32,
    part: u32,
    cols: u32,
}

fn load_block(row: u32, block: u32, cols: u32) -> Block {
    return Block(row, 2u * block, cols);
}
