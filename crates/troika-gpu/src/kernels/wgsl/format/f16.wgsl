
fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let u = unit(row + 2u * part);
    let v = unit(row + 2u * part + 1u);
    return plain(
        vec4<f32>(unpack2x16float(u.x), unpack2x16float(u.y)),
        vec4<f32>(unpack2x16float(u.z), unpack2x16float(u.w)),
        vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y)),
        vec4<f32>(unpack2x16float(v.z), unpack2x16float(v.w)),
    );
}
