
// What the products of experts share: a team of LANES threads takes some rows of their weights.

override LANES: u32 = 32;
override TEAMS: u32 = 2;
override BIAS: u32 = 0;
// LANES * TEAMS.
override WG: u32 = 64;

// Activations 32 * block to 32 * block + 31 of the row that begins at element `row`, in bytes.
fn load_bytes(row: u32, block: u32, cols: u32) -> X32 {
    var v: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        v[i] = x4(row, 32u * block + 4u * i, cols);
    }
    return eight_bits(v);
}

// Activations 16 * part to 16 * part + 15 of the row that begins at element `row`, times `share`.
fn load_x(row: u32, part: u32, cols: u32, share: f32) -> X16 {
    let col = part * 16u;
    return summed(
        x4(row, col, cols) * share,
        x4(row, col + 4u, cols) * share,
        x4(row, col + 8u, cols) * share,
        x4(row, col + 12u, cols) * share,
    );
}

// The product of weights 16 * part to 16 * part + 15 of a row.
fn dot_part(row: u32, part: u32, cols: u32, x: X16) -> f32 {
    return dot16(load16(row, part, cols), x);
}

// The part that a thread takes next: it takes two neighbours in turn.
fn next_part(part: u32) -> u32 {
    return part + select(LANES * 2u - 1u, 1u, (part & 1u) == 0u);
}
