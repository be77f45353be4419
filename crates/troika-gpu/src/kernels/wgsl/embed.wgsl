
// Rows of a table. A thread writes sixteen columns of a row.

struct Params {
    first: u32,
    table_rows: u32,
    cols: u32,
    units: u32,
    ids: u32,
    ids_stride: u32,
    y: u32,
    y_stride: u32,
    rows: u32,
    scale: f32,
}

var<immediate> p: Params;

@group(0) @binding(1) var<storage, read_write> ids: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

fn put(row: u32, col: u32, v: vec4<f32>) {
    let scaled = v * p.scale;
    for (var i = 0u; i < 4u; i++) {
        if col + i < p.cols {
            y[p.y + row * p.y_stride + col + i] = scaled[i];
        }
    }
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let part = at.x;
    if part * 16u >= p.cols {
        return;
    }
    for (var row = at.y; row < p.rows; row += groups.y) {
        let id = bitcast<u32>(ids[p.ids + row * p.ids_stride]);
        if id < p.first || id - p.first >= p.table_rows {
            continue;
        }
        let w = load16((id - p.first) * p.units, part, p.cols);
        put(row, part * 16u, weighed(w, w.a));
        put(row, part * 16u + 4u, weighed(w, w.b));
        put(row, part * 16u + 8u, weighed(w, w.c));
        put(row, part * 16u + 12u, weighed(w, w.d));
    }
}
