// The rows to normalise are those of one value.

struct Params {
    rows: u32,
    group: u32,
    eps: f32,
    offset: f32,
    x: u32,
    x_stride: u32,
    y: u32,
    y_stride: u32,
}

var<immediate> p: Params;

@group(0) @binding(2) var<storage, read_write> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

fn read_first(row: u32, col: u32) -> f32 {
    return x[p.x + row * p.x_stride + col];
}

fn read_again(row: u32, col: u32) -> f32 {
    return read_first(row, col);
}
