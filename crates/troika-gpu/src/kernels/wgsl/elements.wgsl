
// Ops on elements. A thread takes a column of a row.

override OP: u32 = 0;

struct Params {
    rows: u32,
    cols: u32,
    first: f32,
    second: f32,
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
    let col = at.x;
    if col >= p.cols {
        return;
    }
    let numbers = vec2<f32>(p.first, p.second);
    for (var row = at.y; row < p.rows; row += groups.y) {
        let x = a[p.a + row * p.a_stride + col];
        let i = p.b + row * p.b_stride;
        var v = x;
        switch OP {
            case 0u: {
                v = activated(x, numbers);
                if ACT == 4u {
                    // Without a second operand its place has 0.
                    v = v * gated(0.0, numbers);
                }
            }
            case 1u: {
                v = activated(x, numbers) * gated(b[i + col], numbers);
            }
            case 2u: {
                v = x + b[i + col];
            }
            case 3u: {
                v = x * p.first;
            }
            case 4u: {
                v = clamp(x, -p.first, p.first);
            }
            case 5u: {
                v = p.first * tanh_of(x / p.first);
            }
            default: {
                v = x * sigmoid(b[i]);
            }
        }
        y[p.y + row * p.y_stride + col] = v;
    }
}
