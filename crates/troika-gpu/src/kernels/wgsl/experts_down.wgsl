
// The down projections of a row's experts, weighted and added up. A team of LANES threads takes EACH
// columns of the result; a thread takes 16 of their weights' columns at a time.

override EACH: u32 = 4;

struct Params {
    rows: u32,
    cols: u32,
    units: u32,
    first: u32,
    count: u32,
    top_k: u32,
    capacity: u32,
    // What is added to: nothing, what the results hold, or another value.
    add: u32,
    h: u32,
    h_stride: u32,
    ids: u32,
    ids_stride: u32,
    weights: u32,
    weights_stride: u32,
    y: u32,
    y_stride: u32,
    a: u32,
    a_stride: u32,
}

const X_BINDING: u32 = 2u;

var<immediate> p: Params;

@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> ids: array<i32>;
@group(0) @binding(4) var<storage, read_write> shares: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<storage, read_write> a: array<f32>;

var<workgroup> sums: array<f32, WG * EACH>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    let row = at.y;
    let lane = thread % LANES;
    let team = thread / LANES;
    let start = (at.x * TEAMS + team) * EACH;
    var acc: array<f32, 4>;
    for (var n = 0u; n < EACH; n++) {
        acc[n] = 0.0;
    }
    for (var slot = 0u; slot < p.top_k; slot++) {
        var expert = row / max(p.capacity, 1u);
        var share = 1.0;
        if p.capacity == 0u {
            expert = bitcast<u32>(ids[p.ids + row * p.ids_stride + slot]);
            share = shares[p.weights + row * p.weights_stride + slot];
        }
        if expert < p.first || expert - p.first >= p.count {
            continue;
        }
        let number = expert - p.first;
        let h_row = p.h + (row * p.top_k + slot) * p.h_stride;
        for (var block = lane; EIGHT_BITS == 1u && block * 32u < p.cols; block += LANES) {
            let x32 = load_bytes(h_row, block, p.cols);
            for (var n = 0u; n < EACH; n++) {
                let w_row = (number * p.rows + min(start + n, p.rows - 1u)) * p.units;
                acc[n] += share * dot_block(w_row, block, p.cols, x32);
            }
        }
        for (var part = lane * 2u; EIGHT_BITS == 0u && part * 16u < p.cols; part = next_part(part)) {
            let x16 = load_x(h_row, part, p.cols, share);
            for (var n = 0u; n < EACH; n++) {
                let w_row = (number * p.rows + min(start + n, p.rows - 1u)) * p.units;
                acc[n] += dot_part(w_row, part, p.cols, x16);
            }
        }
        if BIAS == 1u && lane == 0u {
            for (var n = 0u; n < EACH; n++) {
                acc[n] += share * bias[number * p.rows + min(start + n, p.rows - 1u)];
            }
        }
    }
    for (var n = 0u; n < EACH; n++) {
        sums[n * WG + thread] = acc[n];
    }
    for (var i = LANES / 2u; i > 0u; i = i / 2u) {
        workgroupBarrier();
        if lane < i {
            for (var n = 0u; n < EACH; n++) {
                sums[n * WG + thread] += sums[n * WG + thread + i];
            }
        }
    }
    if lane == 0u {
        for (var n = 0u; n < EACH; n++) {
            let col = start + n;
            if col < p.rows {
                let to = p.y + row * p.y_stride + col;
                var before = 0.0;
                if p.add == 1u {
                    before = y[to];
                } else if p.add == 2u {
                    before = a[p.a + row * p.a_stride + col];
                }
                y[to] = before + sums[n * WG + thread];
            }
        }
    }
}
