// Merges the results of an attention's parts. A workgroup takes a row and a head.

override V_DIM: u32 = 64;
override SINKS: u32 = 0;

const WG: u32 = 64u;

struct Params {
    parts_at: u32,
    parts_stride: u32,
    y: u32,
    y_stride: u32,
    parts: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> sinks: array<f32>;
@group(0) @binding(1) var<storage, read_write> parts: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    let head = at.x;
    let row = at.y;
    let size = V_DIM + 2u;
    let first = p.parts_at + row * p.parts_stride + head * p.parts * size;
    var top = -3.0e38;
    for (var i = 0u; i < p.parts; i++) {
        top = max(top, parts[first + i * size + V_DIM]);
    }
    if SINKS == 1u {
        top = max(top, sinks[head]);
    }
    var sum = 0.0;
    if SINKS == 1u {
        sum = exp(sinks[head] - top);
    }
    for (var i = 0u; i < p.parts; i++) {
        let end = first + i * size + V_DIM;
        sum += parts[end + 1u] * exp(parts[end] - top);
    }
    for (var c = thread; c < V_DIM; c += WG) {
        var v = 0.0;
        for (var i = 0u; i < p.parts; i++) {
            let start = first + i * size;
            v += parts[start + c] * exp(parts[start + V_DIM] - top);
        }
        y[p.y + row * p.y_stride + head * V_DIM + c] = v / sum;
    }
}
