// Weights of one matrix, in units of 16 bytes and in words of 4.

@group(0) @binding(0) var<storage, read> weights: array<vec4<u32>>;

// There are no two whose products are computed at once.
const PAIR: bool = false;

fn take_other(other: bool) {}

fn unit(i: u32) -> vec4<u32> {
    return weights[i];
}

// Word `i` of the words that begin at unit `start`.
fn word(start: u32, i: u32) -> u32 {
    return weights[start + i / 4u][i & 3u];
}
