
const SCALED: bool = true;
const SIGNED: bool = true;
const MINIMUM: bool = false;

// Twice the E2M1 number of a nibble.
fn doubled(q: u32) -> i32 {
    let magnitude = i32((0xc8643210u >> ((q & 7u) * 4u)) & 15u);
    return select(magnitude, -magnitude, (q & 8u) != 0u);
}

fn doubled4(bits: u32) -> u32 {
    return pack4xI8(vec4<i32>(doubled(bits), doubled(bits >> 8u), doubled(bits >> 16u), doubled(bits >> 24u)));
}

fn doubled16(q: vec4<u32>, scale: f32) -> Q16 {
    return Q16(vec4<u32>(doubled4(q.x), doubled4(q.y), doubled4(q.z), doubled4(q.w)), scale, 0.0);
}

// The scale of a block, of the exponents that begin at unit `start`: half of 2^(e - 127), also where
// that is no normal number.
fn scale_of(start: u32, block: u32) -> f32 {
    let e = (word(start, block / 4u) >> ((block & 3u) * 8u)) & 0xffu;
    return bitcast<f32>(select((max(e, 1u) - 1u) << 23u, 0x00200000u << e, e < 2u));
}

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let block = part / 2u;
    let scale = scale_of(row + cols / 32u, block);
    return doubled16(unit(row + block) >> vec4<u32>((part & 1u) * 4u), scale);
}

// 32 weights.
struct Block {
    u: vec4<u32>,
    scale: f32,
}

fn load_block(row: u32, block: u32, cols: u32) -> Block {
    return Block(unit(row + block), scale_of(row + cols / 32u, block));
}

fn first_packed(b: Block) -> Q16 {
    return doubled16(b.u, b.scale);
}

fn second_packed(b: Block) -> Q16 {
    return doubled16(b.u >> vec4<u32>(4u), b.scale);
}
