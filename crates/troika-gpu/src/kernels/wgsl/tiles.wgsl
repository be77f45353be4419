
// Products for many rows of activations: a workgroup computes 64 x 64 results, a thread 8 x 8 of
// them. Tiles of 32 columns go through workgroup memory, as units of four columns; a row's units are
// stored in an order of their own, so that neighbouring rows lie in different banks.

var<workgroup> w_tile: array<vec4<f32>, 512>;
var<workgroup> x_tile: array<vec4<f32>, 512>;

// Where unit `u` of a tile's row lies.
fn slot(row: u32, u: u32) -> u32 {
    return row * 8u + (u ^ (row & 7u));
}

// The product of four columns of a row of activations with those of four weight rows.
fn quad(x: vec4<f32>, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(dot(x, a), dot(x, b), dot(x, c), dot(x, d));
}

fn store_w(row: u32, u: u32, w: W16) {
    w_tile[slot(row, u)] = weighed(w, w.a);
    w_tile[slot(row, u + 1u)] = weighed(w, w.b);
    w_tile[slot(row, u + 2u)] = weighed(w, w.c);
    w_tile[slot(row, u + 3u)] = weighed(w, w.d);
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    let head = at.z;
    let w_start = at.x * 64u;
    let x_start = at.y * 64u;
    let tx = thread % 8u;
    let ty = thread / 8u;
    // Each thread fetches 32 columns of a weight row and of a row of activations.
    let w_row = (head * p.rows + min(w_start + thread, p.rows - 1u)) * p.units;
    let x_row = p.x + min(x_start + thread, p.x_rows - 1u) * p.x_stride + head * p.cols;
    var l0 = vec4<f32>(0.0);
    var h0 = vec4<f32>(0.0);
    var l1 = vec4<f32>(0.0);
    var h1 = vec4<f32>(0.0);
    var l2 = vec4<f32>(0.0);
    var h2 = vec4<f32>(0.0);
    var l3 = vec4<f32>(0.0);
    var h3 = vec4<f32>(0.0);
    var l4 = vec4<f32>(0.0);
    var h4 = vec4<f32>(0.0);
    var l5 = vec4<f32>(0.0);
    var h5 = vec4<f32>(0.0);
    var l6 = vec4<f32>(0.0);
    var h6 = vec4<f32>(0.0);
    var l7 = vec4<f32>(0.0);
    var h7 = vec4<f32>(0.0);
    for (var col = 0u; col < p.cols; col += 32u) {
        workgroupBarrier();
        let block = load_block(w_row, col / 32u, p.cols);
        store_w(thread, 0u, first16(block));
        // Columns are padded to 16 only.
        if WHOLE_BLOCKS || col + 16u < p.cols {
            store_w(thread, 4u, second16(block));
        }
        var largest = 0.0;
        for (var u = 0u; u < 8u; u++) {
            let v = x4(x_row, col + 4u * u, p.cols);
            x_tile[slot(thread, u)] = v;
            largest = max(largest, largest_of(v));
        }
        if EIGHT_BITS == 1u {
            for (var u = 0u; u < 8u; u++) {
                let v = x_tile[slot(thread, u)];
                x_tile[slot(thread, u)] = whole4(v, inverse_byte_scale(largest)) * byte_scale(largest);
            }
        }
        workgroupBarrier();
        let units = select(min(8u, (p.cols - col + 3u) / 4u), 8u, WHOLE_BLOCKS);
        for (var k = 0u; k < units; k++) {
            let w0 = w_tile[slot(tx + 0u, k)];
            let w1 = w_tile[slot(tx + 8u, k)];
            let w2 = w_tile[slot(tx + 16u, k)];
            let w3 = w_tile[slot(tx + 24u, k)];
            let w4 = w_tile[slot(tx + 32u, k)];
            let w5 = w_tile[slot(tx + 40u, k)];
            let w6 = w_tile[slot(tx + 48u, k)];
            let w7 = w_tile[slot(tx + 56u, k)];
            let x0 = x_tile[slot(ty + 0u, k)];
            l0 += quad(x0, w0, w1, w2, w3);
            h0 += quad(x0, w4, w5, w6, w7);
            let x1 = x_tile[slot(ty + 8u, k)];
            l1 += quad(x1, w0, w1, w2, w3);
            h1 += quad(x1, w4, w5, w6, w7);
            let x2 = x_tile[slot(ty + 16u, k)];
            l2 += quad(x2, w0, w1, w2, w3);
            h2 += quad(x2, w4, w5, w6, w7);
            let x3 = x_tile[slot(ty + 24u, k)];
            l3 += quad(x3, w0, w1, w2, w3);
            h3 += quad(x3, w4, w5, w6, w7);
            let x4 = x_tile[slot(ty + 32u, k)];
            l4 += quad(x4, w0, w1, w2, w3);
            h4 += quad(x4, w4, w5, w6, w7);
            let x5 = x_tile[slot(ty + 40u, k)];
            l5 += quad(x5, w0, w1, w2, w3);
            h5 += quad(x5, w4, w5, w6, w7);
            let x6 = x_tile[slot(ty + 48u, k)];
            l6 += quad(x6, w0, w1, w2, w3);
            h6 += quad(x6, w4, w5, w6, w7);
            let x7 = x_tile[slot(ty + 56u, k)];
            l7 += quad(x7, w0, w1, w2, w3);
            h7 += quad(x7, w4, w5, w6, w7);
        }
    }
    put(head, w_start + tx, x_start + ty + 0u, l0);
    put(head, w_start + tx + 32u, x_start + ty + 0u, h0);
    put(head, w_start + tx, x_start + ty + 8u, l1);
    put(head, w_start + tx + 32u, x_start + ty + 8u, h1);
    put(head, w_start + tx, x_start + ty + 16u, l2);
    put(head, w_start + tx + 32u, x_start + ty + 16u, h2);
    put(head, w_start + tx, x_start + ty + 24u, l3);
    put(head, w_start + tx + 32u, x_start + ty + 24u, h3);
    put(head, w_start + tx, x_start + ty + 32u, l4);
    put(head, w_start + tx + 32u, x_start + ty + 32u, h4);
    put(head, w_start + tx, x_start + ty + 40u, l5);
    put(head, w_start + tx + 32u, x_start + ty + 40u, h5);
    put(head, w_start + tx, x_start + ty + 48u, l6);
    put(head, w_start + tx + 32u, x_start + ty + 48u, h6);
    put(head, w_start + tx, x_start + ty + 56u, l7);
    put(head, w_start + tx + 32u, x_start + ty + 56u, h7);
}

// Results of a row of activations for four weight rows, 8 apart.
fn put(head: u32, w: u32, r: u32, v: vec4<f32>) {
    if r >= p.x_rows {
        return;
    }
    for (var i = 0u; i < 4u; i++) {
        let row = w + i * 8u;
        if row < p.rows {
            put_result(v[i], head, r, row);
        }
    }
}
