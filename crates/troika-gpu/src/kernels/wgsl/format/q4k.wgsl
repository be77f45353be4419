
// Byte `i` of the twelve that follow the two f16 numbers of a block.
fn packed(head: vec4<u32>, i: u32) -> u32 {
    return (head[1u + i / 4u] >> ((i & 3u) * 8u)) & 0xffu;
}

// The scale and minimum of group `g` of eight.
fn scale_min(head: vec4<u32>, g: u32) -> vec2<f32> {
    let d = unpack2x16float(head.x);
    var q: vec2<u32>;
    if g < 4u {
        q = vec2<u32>(packed(head, g) & 63u, packed(head, g + 4u) & 63u);
    } else {
        let both = packed(head, g + 4u);
        q = vec2<u32>(
            (both & 15u) | ((packed(head, g - 4u) >> 6u) << 4u),
            (both >> 4u) | ((packed(head, g) >> 6u) << 4u),
        );
    }
    return d * vec2<f32>(q);
}

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let block = row + 9u * (part / 16u);
    let g = (part & 15u) / 2u;
    let s = scale_min(unit(block), g);
    let q = nibbles(unit(block + 1u + (g / 2u) * 2u + (part & 1u)), (g & 1u) * 4u);
    return affine(q, s.x, -s.y);
}
