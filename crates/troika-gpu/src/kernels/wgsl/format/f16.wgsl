
const SCALED: bool = false;
const MINIMUM: bool = false;

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let u = unit(row + 2u * part);
    let v = unit(row + 2u * part + 1u);
    return plain(
        vec4<f32>(unpack2x16float(u.x), unpack2x16float(u.y)),
        vec4<f32>(unpack2x16float(u.z), unpack2x16float(u.w)),
        vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y)),
        vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w)),
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
