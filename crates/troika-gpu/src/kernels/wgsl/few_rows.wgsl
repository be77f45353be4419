
// Products for a few rows of activations: each weight is read once. A team of LANES threads takes
// EACH weight rows; a thread takes 32 of their columns at a time.

override ROWS: u32 = 1;
override LANES: u32 = 32;
override TEAMS: u32 = 2;
override EACH: u32 = 4;
override BIAS: u32 = 0;
override WG: u32 = LANES * TEAMS;

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

// A sum of each thread for each weight row and row of activations.
var<workgroup> sums: array<f32, WG * EACH * ROWS>;

fn dot16(w: W16, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> f32 {
    return dot(w.a, a) + dot(w.b, b) + (dot(w.c, c) + dot(w.d, d));
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    let lane = thread % LANES;
    let team = thread / LANES;
    let head = at.z;
    let start = (at.x * TEAMS + team) * EACH;
    let x_start = p.x + head * p.cols;
    var acc: array<f32, 16>;
    for (var i = 0u; i < EACH * ROWS; i++) {
        acc[i] = 0.0;
    }
    for (var block = lane; block * 32u < p.cols; block += LANES) {
        let col = block * 32u;
        for (var half = 0u; half < 2u; half++) {
            let c = col + half * 16u;
            // Columns are padded to 16 only.
            if c >= p.cols {
                break;
            }
            if ROWS == 1u {
                let a = x4(x_start, c, p.cols);
                let b = x4(x_start, c + 4u, p.cols);
                let e = x4(x_start, c + 8u, p.cols);
                let f = x4(x_start, c + 12u, p.cols);
                for (var n = 0u; n < EACH; n++) {
                    let w_row = head * p.rows + min(start + n, p.rows - 1u);
                    let w = load16(w_row * p.units, block * 2u + half, p.cols);
                    acc[n] += dot16(w, a, b, e, f);
                }
            } else {
                for (var n = 0u; n < EACH; n++) {
                    let w_row = head * p.rows + min(start + n, p.rows - 1u);
                    let w = load16(w_row * p.units, block * 2u + half, p.cols);
                    for (var r = 0u; r < ROWS; r++) {
                        let row = x_start + min(r, p.x_rows - 1u) * p.x_stride;
                        let a = x4(row, c, p.cols);
                        let b = x4(row, c + 4u, p.cols);
                        let e = x4(row, c + 8u, p.cols);
                        let f = x4(row, c + 12u, p.cols);
                        acc[n * ROWS + r] += dot16(w, a, b, e, f);
                    }
                }
            }
        }
    }
    for (var i = 0u; i < EACH * ROWS; i++) {
        sums[i * WG + thread] = acc[i];
    }
    for (var n = LANES / 2u; n > 0u; n = n / 2u) {
        workgroupBarrier();
        if lane < n {
            for (var i = 0u; i < EACH * ROWS; i++) {
                sums[i * WG + thread] += sums[i * WG + thread + n];
            }
        }
    }
    workgroupBarrier();
    // Results of all teams, one a thread.
    for (var i = thread; i < TEAMS * EACH * ROWS; i += WG) {
        let other_team = i / (EACH * ROWS);
        let which = i % (EACH * ROWS);
        let row = (at.x * TEAMS + other_team) * EACH + which / ROWS;
        let r = which % ROWS;
        if row < p.rows && r < p.x_rows {
            var v = sums[which * WG + other_team * LANES];
            if BIAS == 1u {
                v += bias[p.first + row];
            }
            y[p.y + r * p.y_stride + head * p.rows + p.first + row] = v;
        }
    }
}
