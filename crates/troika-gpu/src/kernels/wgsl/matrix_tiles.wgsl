
// Products for many rows of activations by matrix units: a workgroup of eight subgroups computes 128
// weight rows x 128 rows of activations, a subgroup 32 x 64 of them as eight matrices. Tiles of 64
// columns go through workgroup memory as f16; the next tiles are fetched meanwhile.

// Fours of columns of a tile, and of its rows in memory: with a gap, so that neighbouring rows lie in
// different banks.
const FOURS: u32 = 16u;
const PITCH: u32 = 18u;
const TILE: u32 = 128u;
const THREADS: u32 = 256u;
// The largest scale of whole numbers up to 127 whose products are finite in f16.
const MOST: f32 = 515.0;

var<workgroup> w_tile: array<vec4<f16>, 2304>;
var<workgroup> x_tile: array<vec4<f16>, 2304>;
// A matrix of results of each subgroup.
var<workgroup> results: array<f32, 2048>;

fn store_w(slot: u32, w: W16) {
    w_tile[slot] = vec4<f16>(weighed(w, w.a));
    w_tile[slot + 1u] = vec4<f16>(weighed(w, w.b));
    w_tile[slot + 2u] = vec4<f16>(weighed(w, w.c));
    w_tile[slot + 3u] = vec4<f16>(weighed(w, w.d));
}

// Four activations of 32 that eight neighbouring threads have, rounded to eight bits; zeros if they
// are past the last column.
fn rounded4(v: vec4<f32>, inside: bool) -> vec4<f16> {
    var largest = largest_of(v);
    largest = max(largest, subgroupShuffleXor(largest, 1u));
    largest = max(largest, subgroupShuffleXor(largest, 2u));
    largest = max(largest, subgroupShuffleXor(largest, 4u));
    let scale = select(0.0, min(byte_scale(largest), MOST), inside);
    return vec4<f16>(whole4(v, inverse_byte_scale(largest)) * scale);
}

// Writes the subgroups' matrices that begin at weight row `w` and at row `r` of activations of theirs.
fn put_results(thread: u32, head: u32, w: u32, r: u32) {
    workgroupBarrier();
    for (var i = thread; i < 2048u; i += THREADS) {
        let group = i / 256u;
        let row = w + (group % 4u) * 32u + i % 16u;
        let x_row = r + (group / 4u) * 64u + (i / 16u) % 16u;
        if row < p.rows && x_row < p.x_rows {
            put_result(results[i], head, x_row, row);
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) at: vec3<u32>,
    @builtin(subgroup_id) group: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let thread = group * 32u + lane;
    let head = at.z;
    let w_start = at.x * TILE;
    let x_start = at.y * TILE;
    let blocks = p.cols / 32u;
    // Each thread fetches 32 columns of a weight row, and four columns of eight rows of activations,
    // sixteen rows apart.
    let w_part = thread & 1u;
    let w_slot = thread / 2u * PITCH + w_part * 8u;
    let w_row = (head * p.rows + min(w_start + thread / 2u, p.rows - 1u)) * p.units;
    let x_line = thread / 16u;
    let x_part = (thread / 8u) & 1u;
    let x_slot = x_line * PITCH + (thread & 15u);
    let x_col = p.x + head * p.cols + (thread & 7u) * 4u;
    let own_w = (group % 4u) * 32u * PITCH;
    let own_x = (group / 4u) * 64u * PITCH;
    var c00: coop_mat16x16<f32, C>;
    var c01: coop_mat16x16<f32, C>;
    var c10: coop_mat16x16<f32, C>;
    var c11: coop_mat16x16<f32, C>;
    var c20: coop_mat16x16<f32, C>;
    var c21: coop_mat16x16<f32, C>;
    var c30: coop_mat16x16<f32, C>;
    var c31: coop_mat16x16<f32, C>;
    var rows: array<u32, 8>;
    var v: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        rows[i] = x_col + min(x_start + x_line + 16u * i, p.x_rows - 1u) * p.x_stride;
        v[i] = x4(rows[i], min(x_part, blocks - 1u) * 32u, p.cols);
    }
    var block = load_block(w_row, min(w_part, blocks - 1u), p.cols);
    for (var b = 0u; b < blocks; b += 2u) {
        store_w(w_slot, first16(block));
        store_w(w_slot + 4u, second16(block));
        for (var i = 0u; i < 8u; i++) {
            x_tile[x_slot + 16u * i * PITCH] = rounded4(v[i], b + x_part < blocks);
        }
        workgroupBarrier();
        block = load_block(w_row, min(b + 2u + w_part, blocks - 1u), p.cols);
        let next = min(b + 2u + x_part, blocks - 1u) * 32u;
        for (var i = 0u; i < 8u; i++) {
            v[i] = x4(rows[i], next, p.cols);
        }
        for (var k = 0u; k < FOURS; k += 4u) {
            let w0 = coopLoad<coop_mat16x16<f16, B>>(&w_tile[own_w + k], PITCH);
            let w1 = coopLoad<coop_mat16x16<f16, B>>(&w_tile[own_w + 16u * PITCH + k], PITCH);
            let x0 = coopLoadT<coop_mat16x16<f16, A>>(&x_tile[own_x + k], PITCH);
            c00 = coopMultiplyAdd(x0, w0, c00);
            c01 = coopMultiplyAdd(x0, w1, c01);
            let x1 = coopLoadT<coop_mat16x16<f16, A>>(&x_tile[own_x + 16u * PITCH + k], PITCH);
            c10 = coopMultiplyAdd(x1, w0, c10);
            c11 = coopMultiplyAdd(x1, w1, c11);
            let x2 = coopLoadT<coop_mat16x16<f16, A>>(&x_tile[own_x + 32u * PITCH + k], PITCH);
            c20 = coopMultiplyAdd(x2, w0, c20);
            c21 = coopMultiplyAdd(x2, w1, c21);
            let x3 = coopLoadT<coop_mat16x16<f16, A>>(&x_tile[own_x + 48u * PITCH + k], PITCH);
            c30 = coopMultiplyAdd(x3, w0, c30);
            c31 = coopMultiplyAdd(x3, w1, c31);
        }
        workgroupBarrier();
    }
    let own = group * 256u;
    coopStoreT(c00, &results[own], 16u);
    put_results(thread, head, w_start, x_start);
    coopStoreT(c01, &results[own], 16u);
    put_results(thread, head, w_start + 16u, x_start);
    coopStoreT(c10, &results[own], 16u);
    put_results(thread, head, w_start, x_start + 16u);
    coopStoreT(c11, &results[own], 16u);
    put_results(thread, head, w_start + 16u, x_start + 16u);
    coopStoreT(c20, &results[own], 16u);
    put_results(thread, head, w_start, x_start + 32u);
    coopStoreT(c21, &results[own], 16u);
    put_results(thread, head, w_start + 16u, x_start + 32u);
    coopStoreT(c30, &results[own], 16u);
    put_results(thread, head, w_start, x_start + 48u);
    coopStoreT(c31, &results[own], 16u);
    put_results(thread, head, w_start + 16u, x_start + 48u);
}
