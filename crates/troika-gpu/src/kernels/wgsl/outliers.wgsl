
// What clipping takes from rows of activations, times a weight. A workgroup takes a row of activations
// and 64 rows of the weight. It looks at 1024 columns at a time; of these only parts of sixteen that
// have outliers are multiplied.

const WG: u32 = 64u;

struct Params {
    first: u32,
    rows: u32,
    cols: u32,
    units: u32,
    x_rows: u32,
    x: u32,
    x_stride: u32,
    y: u32,
    y_stride: u32,
}

var<immediate> p: Params;

// The step of numbers, the largest of them, then what each column is divided by.
@group(0) @binding(1) var<storage, read> clipping: array<f32>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

var<workgroup> rests: array<vec4<f32>, 256>;
var<workgroup> found: array<u32, WG>;

// What clipping takes from a value of a column: nothing up to the limit.
fn taken(value: f32, col: u32) -> f32 {
    let step = clipping[0];
    let most = clipping[1];
    let factor = clipping[2u + col];
    let divided = value / factor;
    let number = round(divided / step);
    if number >= -most - 1.0 && number <= most {
        return 0.0;
    }
    return factor * (divided - clamp(number, -most - 1.0, most) * step);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) at: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let w_row = at.x * WG + thread;
    for (var row = at.y; row < p.x_rows; row += groups.y) {
        var sum = 0.0;
        for (var start = 0u; start < p.cols; start += 16u * WG) {
            workgroupBarrier();
            found[thread] = 0u;
            for (var i = 0u; i < 16u; i++) {
                let col = start + thread * 16u + i;
                var rest = 0.0;
                if col < p.cols {
                    rest = taken(x[p.x + row * p.x_stride + col], col);
                }
                rests[thread * 4u + i / 4u][i % 4u] = rest;
                if rest != 0.0 {
                    found[thread] = 1u;
                }
            }
            workgroupBarrier();
            for (var part = 0u; part < WG; part++) {
                if found[part] == 1u && w_row < p.rows {
                    let r = part * 4u;
                    let x16 = summed(rests[r], rests[r + 1u], rests[r + 2u], rests[r + 3u]);
                    sum += dot16(load16(w_row * p.units, start / 16u + part, p.cols), x16);
                }
            }
        }
        if w_row < p.rows {
            y[p.y + row * p.y_stride + p.first + w_row] = sum;
        }
    }
}
