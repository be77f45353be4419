
fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let words = unit(row + cols / 16u + part / 2u);
    let s = bitcast<vec2<f32>>(select(words.xy, words.zw, (part & 1u) == 1u));
    return affine(bytes(unit(row + part)), s.x, -s.y);
}
