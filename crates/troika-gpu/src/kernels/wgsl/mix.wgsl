// Sums of streams: a thread takes a column of all sums of a row.

struct Params {
    rows: u32,
    width: u32,
    // Streams, and sums of them.
    streams: u32,
    sums: u32,
    x: u32,
    x_stride: u32,
    c: u32,
    c_stride: u32,
    y: u32,
    y_stride: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> c: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let col = at.x;
    if col >= p.width {
        return;
    }
    for (var row = at.y; row < p.rows; row += groups.y) {
        let source = p.x + row * p.x_stride + col;
        for (var i = 0u; i < p.sums; i++) {
            var sum = x[source + i % p.streams * p.width];
            for (var j = 0u; j < p.streams; j++) {
                let factor = c[p.c + row * p.c_stride + i * p.streams + j];
                sum += factor * x[source + j * p.width];
            }
            y[p.y + row * p.y_stride + i * p.width + col] = sum;
        }
    }
}
