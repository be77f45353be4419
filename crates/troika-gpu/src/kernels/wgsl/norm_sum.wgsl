// The rows to normalise are sums of two values, which are kept.

struct Params {
    rows: u32,
    group: u32,
    eps: f32,
    offset: f32,
    a: u32,
    a_stride: u32,
    b: u32,
    b_stride: u32,
    sum: u32,
    sum_stride: u32,
    y: u32,
    y_stride: u32,
}

var<immediate> p: Params;

@group(0) @binding(2) var<storage, read_write> a: array<f32>;
@group(0) @binding(3) var<storage, read_write> b: array<f32>;
@group(0) @binding(4) var<storage, read_write> sum: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

// Each thread reads again only what it wrote itself.
fn read_first(row: u32, col: u32) -> f32 {
    let s = a[p.a + row * p.a_stride + col] + b[p.b + row * p.b_stride + col];
    sum[p.sum + row * p.sum_stride + col] = s;
    return s;
}

fn read_again(row: u32, col: u32) -> f32 {
    return sum[p.sum + row * p.sum_stride + col];
}
