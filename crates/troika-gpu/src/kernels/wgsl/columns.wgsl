// Moves columns: each group of results is some columns of a group of a, then a group of b. A thread
// writes a column of a row.

struct Params {
    rows: u32,
    groups: u32,
    a_group: u32,
    a_start: u32,
    a_len: u32,
    b_len: u32,
    a: u32,
    a_stride: u32,
    b: u32,
    b_stride: u32,
    y: u32,
    y_stride: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let len = p.a_len + p.b_len;
    let group = at.x / len;
    let i = at.x % len;
    if group >= p.groups {
        return;
    }
    for (var row = at.y; row < p.rows; row += groups.y) {
        var v = 0.0;
        if i < p.a_len {
            v = a[p.a + row * p.a_stride + group * p.a_group + p.a_start + i];
        } else {
            v = b[p.b + row * p.b_stride + group * p.b_len + i - p.a_len];
        }
        y[p.y + row * p.y_stride + at.x] = v;
    }
}
