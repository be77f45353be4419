
// What products of a weight are bound to, and their immediates.

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
