
fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let u = row + 4u * part;
    return plain(
        bitcast<vec4<f32>>(unit(u)),
        bitcast<vec4<f32>>(unit(u + 1u)),
        bitcast<vec4<f32>>(unit(u + 2u)),
        bitcast<vec4<f32>>(unit(u + 3u)),
    );
}
