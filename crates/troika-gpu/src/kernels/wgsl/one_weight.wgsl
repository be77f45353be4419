// Weights of one matrix.

@group(0) @binding(0) var<storage, read> weights: array<vec4<u32>>;

fn unit(i: u32) -> vec4<u32> {
    return weights[i];
}
