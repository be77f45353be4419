
// Vectors that belong to products, one after another: the weight of a norm, its bias, and biases.
// Those of a norm begin at whole units of four.

@group(0) @binding(VECTORS_BINDING) var<storage, read> vectors: array<vec4<f32>>;

fn vector_at(i: u32) -> f32 {
    return vectors[i / 4u][i & 3u];
}

// Numbers `col` to `col + 3` of the vector of `cols` numbers that begins at `start`.
fn vectors4(start: u32, col: u32, cols: u32) -> vec4<f32> {
    return vectors[(start + col) / 4u];
}
