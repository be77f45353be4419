
// Activations 32 * block to 32 * block + 31 of the row that begins at element `row`, in bytes.
fn load_bytes(row: u32, block: u32, cols: u32) -> X32 {
    var v: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        v[i] = x4(row, 32u * block + 4u * i, cols);
    }
    return eight_bits(v);
}
