// Weights of three matrices with as many columns, in units of 16 bytes and in words of 4.

@group(0) @binding(0) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> seconds: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> thirds: array<vec4<u32>>;

// Which of them: 0, 1 or 2.
var<private> which: u32;

// There are no two whose products are computed at once.
const PAIR: bool = false;

fn take_other(other: bool) {}

fn unit(i: u32) -> vec4<u32> {
    if which == 1u {
        return seconds[i];
    }
    if which == 2u {
        return thirds[i];
    }
    return weights[i];
}

// Word `i` of the words that begin at unit `start`.
fn word(start: u32, i: u32) -> u32 {
    if which == 1u {
        return seconds[start + i / 4u][i & 3u];
    }
    if which == 2u {
        return thirds[start + i / 4u][i & 3u];
    }
    return weights[start + i / 4u][i & 3u];
}
