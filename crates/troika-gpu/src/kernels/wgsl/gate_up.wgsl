
// An activated gate times up, for a few rows of activations.

// Whether both have a bias added.
override BIAS: u32 = 0;

struct Params {
    rows: u32,
    cols: u32,
    units: u32,
    first: u32,
    x_rows: u32,
    act_first: f32,
    act_second: f32,
    x: u32,
    x_stride: u32,
    y: u32,
    y_stride: u32,
    // Where biases of the gate and of up begin among the vectors: those of the binding's first rows.
    gate_bias: u32,
    up_bias: u32,
    eps: f32,
    norm_offset: f32,
}

const VECTORS_BINDING: u32 = 2u;
const X_BINDING: u32 = 3u;

var<immediate> p: Params;

@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    let w = Rows(0u, p.rows, p.units);
    let x_rows = Activations(p.x, p.x_stride, p.x_rows, p.cols);
    // A thread has at most one result, of four rows.
    let r = x_row_of(thread);
    let has = thread < TEAMS * ROWS && r < p.x_rows;
    for (var round = 0u; round < ROUNDS; round++) {
        let start = round_start(at.x, round);
        if start >= p.rows {
            return;
        }
        let sums = multiply(thread, start, w, x_rows, round > 0u);
        gather(thread, sums.own);
        var gates = vec4<f32>(0.0);
        if has {
            gates = result(thread);
        }
        gather(thread, sums.other);
        if has {
            put(start + row_of(thread), r, gates, result(thread));
        }
    }
}

// Writes the results of four weight rows from `start` on.
fn put(start: u32, r: u32, gates: vec4<f32>, ups: vec4<f32>) {
    let numbers = vec2<f32>(p.act_first, p.act_second);
    for (var n = 0u; n < 4u; n++) {
        let row = start + n;
        if row < p.rows {
            var g = gates[n];
            var u = ups[n];
            if BIAS == 1u {
                g += vector_at(p.gate_bias + row);
                u += vector_at(p.up_bias + row);
            }
            y[p.y + r * p.y_stride + p.first + row] = activated(g, numbers) * gated(u, numbers);
        }
    }
}
