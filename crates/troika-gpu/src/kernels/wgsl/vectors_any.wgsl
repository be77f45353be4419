
// Vectors that belong to products, one after another: the weight of a norm, its bias, and biases.

@group(0) @binding(VECTORS_BINDING) var<storage, read> vectors: array<f32>;

fn vector_at(i: u32) -> f32 {
    return vectors[i];
}

// Numbers `col` to `col + 3` of the vector of `cols` numbers that begins at `start`; those past its
// end are 0.
fn vectors4(start: u32, col: u32, cols: u32) -> vec4<f32> {
    var v = vec4<f32>(0.0);
    for (var i = 0u; i < 4u; i++) {
        if col + i < cols {
            v[i] = vectors[start + col + i];
        }
    }
    return v;
}
