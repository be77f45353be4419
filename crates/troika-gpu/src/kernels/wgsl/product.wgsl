
// What products of a weight are bound to, their immediates, and what becomes of results.

// Whether results have a bias added, are activated, are multiplied by the sigmoid of a number of
// their row, and how many values are added to them in the end.
override BIAS: u32 = 0;
override ACTIVATE: u32 = 0;
override GATED: u32 = 0;
override ADDENDS: u32 = 0;

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
    // Where biases begin among the vectors: that of the binding's first weight row.
    bias: u32,
    act_first: f32,
    act_second: f32,
    gate: u32,
    gate_stride: u32,
    a: u32,
    a_stride: u32,
    b: u32,
    b_stride: u32,
    eps: f32,
    norm_offset: f32,
    normed: u32,
    normed_stride: u32,
}

const VECTORS_BINDING: u32 = 1u;
const X_BINDING: u32 = 2u;

var<immediate> p: Params;

@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read_write> gates: array<f32>;
@group(0) @binding(5) var<storage, read_write> a: array<f32>;
@group(0) @binding(6) var<storage, read_write> b: array<f32>;
@group(0) @binding(7) var<storage, read_write> normed: array<f32>;

// Writes the product of weight row `row` of a head with row `r` of activations.
fn put_result(sum: f32, head: u32, r: u32, row: u32) {
    let col = head * p.rows + p.first + row;
    var v = sum;
    if BIAS == 1u {
        v += vector_at(p.bias + row);
    }
    if ACTIVATE == 1u {
        v = activated(v, vec2<f32>(p.act_first, p.act_second));
    }
    if GATED == 1u {
        v *= sigmoid(gates[p.gate + r * p.gate_stride]);
    }
    if ADDENDS > 0u {
        v += a[p.a + r * p.a_stride + col];
    }
    if ADDENDS > 1u {
        v += b[p.b + r * p.b_stride + col];
    }
    y[p.y + r * p.y_stride + col] = v;
}
