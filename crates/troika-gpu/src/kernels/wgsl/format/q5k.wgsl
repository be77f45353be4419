
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

// Four numbers: nibbles at `shift`, fifth bits at `g`.
fn five(low: u32, high: u32, shift: u32, g: u32) -> vec4<f32> {
    let bits = (low >> shift) & 0x0f0f0f0fu;
    let fifth = ((high >> g) & 0x01010101u) << 4u;
    return vec4<f32>(unpack4xU8(bits | fifth));
}

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let block = row + 11u * (part / 16u);
    let g = (part & 15u) / 2u;
    let s = scale_min(unit(block), g);
    let high = unit(block + 1u + (part & 1u));
    let low = unit(block + 3u + (g / 2u) * 2u + (part & 1u));
    let shift = (g & 1u) * 4u;
    let q = W16(
        five(low.x, high.x, shift, g),
        five(low.y, high.y, shift, g),
        five(low.z, high.z, shift, g),
        five(low.w, high.w, shift, g),
    );
    return affine(q, s.x, -s.y);
}
