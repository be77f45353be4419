
// Formats of codes, 32 to a unit, behind a unit with the numbers that they stand for. Each defines
// `scale_of`: the scale of part `part` of sixteen weights.

const SCALED: bool = true;
const SIGNED: bool = true;
const MINIMUM: bool = false;

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let scale = scale_of(row, part, cols);
    return coded(unit(row + 1u + part / 2u), (part & 1u) * 4u, unit(row), scale);
}

// 32 weights.
struct Block {
    u: vec4<u32>,
    table: vec4<u32>,
    first: f32,
    second: f32,
}

fn load_block(row: u32, block: u32, cols: u32) -> Block {
    let first = scale_of(row, 2u * block, cols);
    let second = scale_of(row, 2u * block + 1u, cols);
    return Block(unit(row + 1u + block), unit(row), first, second);
}

fn first_packed(b: Block) -> Q16 {
    return coded(b.u, 0u, b.table, b.first);
}

fn second_packed(b: Block) -> Q16 {
    return coded(b.u, 4u, b.table, b.second);
}
