
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
