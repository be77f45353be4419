
fn widened(x: u32, y: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(x << 16u, x & 0xffff0000u, y << 16u, y & 0xffff0000u));
}

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let u = unit(row + 2u * part);
    let v = unit(row + 2u * part + 1u);
    return plain(widened(u.x, u.y), widened(u.z, u.w), widened(v.x, v.y), widened(v.z, v.w));
}
