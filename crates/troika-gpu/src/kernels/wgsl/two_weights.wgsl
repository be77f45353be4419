// Weights of two matrices of one shape.

@group(0) @binding(0) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> others: array<vec4<u32>>;

var<private> of_others: bool;

fn unit(i: u32) -> vec4<u32> {
    if of_others {
        return others[i];
    }
    return weights[i];
}
