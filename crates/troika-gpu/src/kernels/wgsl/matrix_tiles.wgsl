
// Products for many rows of activations by matrix units: a workgroup of eight subgroups computes 128
// weight rows x 64 rows of activations, a subgroup 32 x 32 of them as four matrices. Tiles of 64
// columns go through workgroup memory as f16; the next tiles are fetched meanwhile.

// Fours of columns of a tile, and of its rows in memory: with a gap, so that neighbouring rows lie in
// different banks.
const FOURS: u32 = 16u;
const PITCH: u32 = 18u;
const THREADS: u32 = 256u;
// The largest scale of whole numbers up to 127 whose products are finite in f16.
const MOST: f32 = 515.0;

var<workgroup> w_tile: array<vec4<f16>, 2304>;
var<workgroup> x_tile: array<vec4<f16>, 1152>;
// A matrix of results of each subgroup.
var<workgroup> results: array<f32, 2048>;

fn store_w(slot: u32, w: W16) {
    w_tile[slot] = vec4<f16>(weighed(w, w.a));
    w_tile[slot + 1u] = vec4<f16>(weighed(w, w.b));
    w_tile[slot + 2u] = vec4<f16>(weighed(w, w.c));
    w_tile[slot + 3u] = vec4<f16>(weighed(w, w.d));
}

// Writes the subgroups' matrices that begin at weight row `w` and at row `r` of activations of theirs.
fn put_results(thread: u32, head: u32, w: u32, r: u32) {
    workgroupBarrier();
    for (var i = thread; i < 2048u; i += THREADS) {
        let group = i / 256u;
        let row = w + (group % 4u) * 32u + i % 16u;
        let x_row = r + (group / 4u) * 32u + (i / 16u) % 16u;
        if row < p.rows && x_row < p.x_rows {
            put_result(results[i], head, x_row, row);
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) at: vec3<u32>,
    @builtin(subgroup_id) group: u32,
) {
    let head = at.z;
    let w_start = at.x * 128u;
    let x_start = at.y * 64u;
    // Each thread fetches 32 columns of a weight row, the first half of them also of a row of
    // activations.
    let line = thread / 2u;
    let part = thread & 1u;
    let slot = line * PITCH + part * 8u;
    let has_x = thread < 128u;
    let w_row = (head * p.rows + min(w_start + line, p.rows - 1u)) * p.units;
    let x_row = p.x + min(x_start + line, p.x_rows - 1u) * p.x_stride + head * p.cols;
    let own_w = (group % 4u) * 32u * PITCH;
    let own_x = (group / 4u) * 32u * PITCH;
    var c00: coop_mat16x16<f32, C>;
    var c01: coop_mat16x16<f32, C>;
    var c10: coop_mat16x16<f32, C>;
    var c11: coop_mat16x16<f32, C>;
    let blocks = p.cols / 32u;
    var block = load_block(w_row, min(part, blocks - 1u), p.cols);
    var v: array<vec4<f32>, 8>;
    if has_x {
        for (var u = 0u; u < 8u; u++) {
            v[u] = x4(x_row, min(part, blocks - 1u) * 32u + 4u * u, p.cols);
        }
    }
    for (var b = 0u; b < blocks; b += 2u) {
        store_w(slot, first16(block));
        store_w(slot + 4u, second16(block));
        if has_x {
            var largest = 0.0;
            for (var u = 0u; u < 8u; u++) {
                largest = max(largest, largest_of(v[u]));
            }
            // What is past the last column is multiplied by zeros.
            let inside = b + part < blocks;
            let inverse = inverse_byte_scale(largest);
            let scale = select(0.0, min(byte_scale(largest), MOST), inside);
            for (var u = 0u; u < 8u; u++) {
                x_tile[slot + u] = vec4<f16>(whole4(v[u], inverse) * scale);
            }
        }
        workgroupBarrier();
        let next = min(b + 2u + part, blocks - 1u);
        block = load_block(w_row, next, p.cols);
        if has_x {
            for (var u = 0u; u < 8u; u++) {
                v[u] = x4(x_row, next * 32u + 4u * u, p.cols);
            }
        }
        for (var k = 0u; k < FOURS; k += 4u) {
            let x0 = coopLoadT<coop_mat16x16<f16, A>>(&x_tile[own_x + k], PITCH);
            let x1 = coopLoadT<coop_mat16x16<f16, A>>(&x_tile[own_x + 16u * PITCH + k], PITCH);
            let w0 = coopLoad<coop_mat16x16<f16, B>>(&w_tile[own_w + k], PITCH);
            let w1 = coopLoad<coop_mat16x16<f16, B>>(&w_tile[own_w + 16u * PITCH + k], PITCH);
            c00 = coopMultiplyAdd(x0, w0, c00);
            c01 = coopMultiplyAdd(x0, w1, c01);
            c10 = coopMultiplyAdd(x1, w0, c10);
            c11 = coopMultiplyAdd(x1, w1, c11);
        }
        workgroupBarrier();
    }
    coopStoreT(c00, &results[group * 256u], 16u);
    put_results(thread, head, w_start, x_start);
    coopStoreT(c01, &results[group * 256u], 16u);
    put_results(thread, head, w_start + 16u, x_start);
    coopStoreT(c10, &results[group * 256u], 16u);
    put_results(thread, head, w_start, x_start + 16u);
    coopStoreT(c11, &results[group * 256u], 16u);
    put_results(thread, head, w_start + 16u, x_start + 16u);
}
