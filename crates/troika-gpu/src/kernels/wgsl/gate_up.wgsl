
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
    let start = at.x * TEAMS * TEAM_ROWS;
    let w = Rows(0u, p.rows, p.units);
    let x_rows = Activations(p.x, p.x_stride, p.x_rows, p.cols);
    // A thread has at most one result, of four rows.
    let r = x_row_of(thread);
    let has = thread < TEAMS * ROWS && r < p.x_rows;
    let sums = multiply(thread, start, w, x_rows);
    gather(thread, sums.own);
    var gates = vec4<f32>(0.0);
    if has {
        gates = result(thread);
    }
    gather(thread, sums.other);
    if !has {
        return;
    }
    let ups = result(thread);
    let numbers = vec2<f32>(p.act_first, p.act_second);
    for (var n = 0u; n < 4u; n++) {
        let row = start + row_of(thread) + n;
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
