
const SCALED: bool = true;
const MINIMUM: bool = false;

// Twice the E2M1 number of a nibble.
fn doubled(q: u32) -> f32 {
    let magnitude = f32((0xc8643210u >> ((q & 7u) * 4u)) & 15u);
    return select(magnitude, -magnitude, (q & 8u) != 0u);
}

fn doubled4(bits: u32) -> vec4<f32> {
    return vec4<f32>(doubled(bits), doubled(bits >> 8u), doubled(bits >> 16u), doubled(bits >> 24u));
}

// The scale of a block, of the exponents that begin at unit `start`: half of 2^(e - 127), also where
// that is no normal number.
fn scale_of(start: u32, block: u32) -> f32 {
    let e = (word(start, block / 4u) >> ((block & 3u) * 8u)) & 0xffu;
    return bitcast<f32>(select((max(e, 1u) - 1u) << 23u, 0x00200000u << e, e < 2u));
}

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let block = part / 2u;
    let scale = scale_of(row + cols / 32u, block);
    let q = unit(row + block) >> vec4<u32>((part & 1u) * 4u);
    return W16(doubled4(q.x), doubled4(q.y), doubled4(q.z), doubled4(q.w), scale, 0.0);
}

// 32 weights.
struct Block {
    u: vec4<u32>,
    scale: f32,
}

fn load_block(row: u32, block: u32, cols: u32) -> Block {
    return Block(unit(row + block), scale_of(row + cols / 32u, block));
}

fn doubled16(q: vec4<u32>, scale: f32) -> W16 {
    return W16(doubled4(q.x), doubled4(q.y), doubled4(q.z), doubled4(q.w), scale, 0.0);
}

fn first16(b: Block) -> W16 {
    return doubled16(b.u, b.scale);
}

fn second16(b: Block) -> W16 {
    return doubled16(b.u >> vec4<u32>(4u), b.scale);
}
