// Weights of two matrices of one shape, in units of 16 bytes and in words of 4.

@group(0) @binding(0) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> others: array<vec4<u32>>;

var<private> of_others: bool;

// Whether there are two.
const PAIR: bool = true;

// Says which of the two are read from now on.
fn take_other(other: bool) {
    of_others = other;
}

fn unit(i: u32) -> vec4<u32> {
    if of_others {
        return others[i];
    }
    return weights[i];
}

// Word `i` of the words that begin at unit `start`.
fn word(start: u32, i: u32) -> u32 {
    if of_others {
        return others[start + i / 4u][i & 3u];
    }
    return weights[start + i / 4u][i & 3u];
}
