
// Products of a few rows of activations with three weights. A workgroup serves one of them.

// Whether results have a bias added.
override BIAS: u32 = 0;

struct Params {
    cols: u32,
    units: u32,
    x_rows: u32,
    x: u32,
    x_stride: u32,
    rows0: u32,
    rows1: u32,
    rows2: u32,
    // Workgroups of the first weight, and of the first two.
    groups0: u32,
    groups1: u32,
    y0: u32,
    y0_stride: u32,
    y1: u32,
    y1_stride: u32,
    y2: u32,
    y2_stride: u32,
    // Where biases begin among the vectors.
    bias: u32,
    eps: f32,
    norm_offset: f32,
}

const VECTORS_BINDING: u32 = 3u;
const X_BINDING: u32 = 4u;

var<immediate> p: Params;

@group(0) @binding(5) var<storage, read_write> y0: array<f32>;
@group(0) @binding(6) var<storage, read_write> y1: array<f32>;
@group(0) @binding(7) var<storage, read_write> y2: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    var group = at.x;
    var rows = p.rows0;
    var bias = p.bias;
    which = 0u;
    if group >= p.groups1 {
        which = 2u;
        rows = p.rows2;
        group -= p.groups1;
        bias += p.rows0 + p.rows1;
    } else if group >= p.groups0 {
        which = 1u;
        rows = p.rows1;
        group -= p.groups0;
        bias += p.rows0;
    }
    let start = group * TEAMS * TEAM_ROWS;
    let x_rows = Activations(p.x, p.x_stride, p.x_rows, p.cols);
    gather(thread, multiply(thread, start, Rows(0u, rows, p.units), x_rows, false).own);
    for (var i = thread; i < TEAMS * ROWS; i += WG) {
        let r = x_row_of(i);
        if r >= p.x_rows {
            continue;
        }
        let v = result(i);
        for (var n = 0u; n < 4u; n++) {
            let row = start + row_of(i) + n;
            if row < rows {
                var sum = v[n];
                if BIAS == 1u {
                    sum += vector_at(bias + row);
                }
                switch which {
                    case 0u: {
                        y0[p.y0 + r * p.y0_stride + row] = sum;
                    }
                    case 1u: {
                        y1[p.y1 + r * p.y1_stride + row] = sum;
                    }
                    default: {
                        y2[p.y2 + r * p.y2_stride + row] = sum;
                    }
                }
            }
        }
    }
}
