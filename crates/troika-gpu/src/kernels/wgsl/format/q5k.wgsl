
const SCALED: bool = true;
const SIGNED: bool = false;
const MINIMUM: bool = true;

// The scale and minimum of group `g` of eight.
fn scale_min(head: vec4<u32>, g: u32) -> vec2<f32> {
    let d = unpack2x16float(head.x);
    // Bytes of a word: those of group g, g + 4 and g + 8, of which the last has two nibbles.
    let shift = (g & 3u) * 8u;
    let low = head.yzw >> vec3<u32>(shift);
    let first = low.xy & vec2<u32>(63u);
    let upper = ((low.xy >> vec2<u32>(6u)) & vec2<u32>(3u)) << vec2<u32>(4u);
    let second = vec2<u32>(low.z & 15u, (low.z >> 4u) & 15u) | upper;
    return d * vec2<f32>(select(first, second, g >= 4u));
}

// Four numbers: nibbles at `shift`, fifth bits at `g`.
fn five(low: u32, high: u32, shift: u32, g: u32) -> u32 {
    return ((low >> shift) & 0x0f0f0f0fu) | (((high >> g) & 0x01010101u) << 4u);
}

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let block = row + 11u * (part / 16u);
    let g = (part & 15u) / 2u;
    let s = scale_min(unit(block), g);
    let high = unit(block + 1u + (part & 1u));
    let low = unit(block + 3u + (g / 2u) * 2u + (part & 1u));
    let shift = (g & 1u) * 4u;
    let q = vec4<u32>(
        five(low.x, high.x, shift, g),
        five(low.y, high.y, shift, g),
        five(low.z, high.z, shift, g),
        five(low.w, high.w, shift, g),
    );
    return Q16(q, s.x, -s.y);
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
