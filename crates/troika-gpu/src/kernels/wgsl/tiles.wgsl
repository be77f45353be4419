
// Products for many rows of activations: a workgroup computes 64 x 64 results, a thread 4 x 4 of
// them. Tiles of 32 columns go through workgroup memory, as units of four columns; a row's units are
// stored in an order of their own, so that neighbouring rows lie in different banks.

override BIAS: u32 = 0;

struct Params {
    // Weight rows of a head.
    rows: u32,
    cols: u32,
    units: u32,
    first: u32,
    x_rows: u32,
    x: u32,
    x_stride: u32,
    y: u32,
    y_stride: u32,
}

const X_BINDING: u32 = 2u;

var<immediate> p: Params;

@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

var<workgroup> w_tile: array<vec4<f32>, 512>;
var<workgroup> x_tile: array<vec4<f32>, 512>;

struct Fetched {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

// Where unit `u` of a tile's row lies.
fn slot(row: u32, u: u32) -> u32 {
    return row * 8u + (u ^ (row & 7u));
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    let head = at.z;
    let w_start = at.x * 64u;
    let x_start = at.y * 64u;
    let tx = thread % 16u;
    let ty = thread / 16u;
    // Half of the threads fetch weights, half activations: 16 columns of a row each.
    let fetches_x = thread >= 128u;
    let fetched = (thread % 128u) / 2u;
    let part = thread % 2u;
    let w_row = (head * p.rows + min(w_start + fetched, p.rows - 1u)) * p.units;
    let x_row = p.x + min(x_start + fetched, p.x_rows - 1u) * p.x_stride + head * p.cols;
    var acc0 = vec4<f32>(0.0);
    var acc1 = vec4<f32>(0.0);
    var acc2 = vec4<f32>(0.0);
    var acc3 = vec4<f32>(0.0);
    for (var col = 0u; col < p.cols; col += 32u) {
        let c = col + part * 16u;
        var v = Fetched(vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0), vec4<f32>(0.0));
        // Columns are padded to 16 only.
        if c < p.cols {
            if fetches_x {
                v = Fetched(
                    x4(x_row, c, p.cols),
                    x4(x_row, c + 4u, p.cols),
                    x4(x_row, c + 8u, p.cols),
                    x4(x_row, c + 12u, p.cols),
                );
            } else {
                let w = load16(w_row, c / 16u, p.cols);
                v = Fetched(weighed(w, w.a), weighed(w, w.b), weighed(w, w.c), weighed(w, w.d));
            }
        }
        workgroupBarrier();
        let u = part * 4u;
        if fetches_x {
            x_tile[slot(fetched, u)] = v.a;
            x_tile[slot(fetched, u + 1u)] = v.b;
            x_tile[slot(fetched, u + 2u)] = v.c;
            x_tile[slot(fetched, u + 3u)] = v.d;
        } else {
            w_tile[slot(fetched, u)] = v.a;
            w_tile[slot(fetched, u + 1u)] = v.b;
            w_tile[slot(fetched, u + 2u)] = v.c;
            w_tile[slot(fetched, u + 3u)] = v.d;
        }
        workgroupBarrier();
        for (var k = 0u; k < 8u; k++) {
            let w0 = w_tile[slot(tx, k)];
            let w1 = w_tile[slot(tx + 16u, k)];
            let w2 = w_tile[slot(tx + 32u, k)];
            let w3 = w_tile[slot(tx + 48u, k)];
            let x0 = x_tile[slot(ty, k)];
            let x1 = x_tile[slot(ty + 16u, k)];
            let x2 = x_tile[slot(ty + 32u, k)];
            let x3 = x_tile[slot(ty + 48u, k)];
            acc0 += vec4<f32>(dot(x0, w0), dot(x0, w1), dot(x0, w2), dot(x0, w3));
            acc1 += vec4<f32>(dot(x1, w0), dot(x1, w1), dot(x1, w2), dot(x1, w3));
            acc2 += vec4<f32>(dot(x2, w0), dot(x2, w1), dot(x2, w2), dot(x2, w3));
            acc3 += vec4<f32>(dot(x3, w0), dot(x3, w1), dot(x3, w2), dot(x3, w3));
        }
    }
    put(head, w_start + tx, x_start + ty, acc0);
    put(head, w_start + tx, x_start + ty + 16u, acc1);
    put(head, w_start + tx, x_start + ty + 32u, acc2);
    put(head, w_start + tx, x_start + ty + 48u, acc3);
}

// Results of a row of activations for four weight rows, 16 apart.
fn put(head: u32, w: u32, r: u32, v: vec4<f32>) {
    if r >= p.x_rows {
        return;
    }
    for (var i = 0u; i < 4u; i++) {
        let row = w + i * 16u;
        if row < p.rows {
            var sum = v[i];
            if BIAS == 1u {
                sum += bias[p.first + row];
            }
            y[p.y + r * p.y_stride + head * p.rows + p.first + row] = sum;
        }
    }
}
