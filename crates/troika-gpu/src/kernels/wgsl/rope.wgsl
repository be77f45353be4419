
// Rotary position embedding. A thread takes a pair of elements of a head: first those that rotate,
// then those that are copied.

override INTERLEAVED: u32 = 0;

struct Params {
    x: u32,
    x_stride: u32,
    positions: u32,
    positions_stride: u32,
    y: u32,
    y_stride: u32,
    rows: u32,
    heads: u32,
    head_dim: u32,
    offset: u32,
    rotary_dim: u32,
    factor: f32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> inv_freq: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> positions: array<i32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let pairs = (p.head_dim + 1u) / 2u;
    let head = at.x / pairs;
    let i = at.x % pairs;
    if head >= p.heads {
        return;
    }
    let rotated = p.rotary_dim / 2u;
    let start = head * p.head_dim;
    if i >= rotated {
        // Elements before and behind those that rotate.
        for (var row = at.y; row < p.rows; row += groups.y) {
            for (var j = 0u; j < 2u; j++) {
                var e = (i - rotated) * 2u + j;
                if e >= p.offset {
                    e += p.rotary_dim;
                }
                if e < p.head_dim {
                    y[p.y + row * p.y_stride + start + e] = x[p.x + row * p.x_stride + start + e];
                }
            }
        }
        return;
    }
    var first = start + p.offset + i;
    var second = first + rotated;
    if INTERLEAVED == 1u {
        first = start + p.offset + 2u * i;
        second = first + 1u;
    }
    for (var row = at.y; row < p.rows; row += groups.y) {
        let angle = f32(positions[p.positions + row * p.positions_stride]) * inv_freq[i];
        let cs = cos_sin(angle) * p.factor;
        let source = p.x + row * p.x_stride;
        let a = x[source + first];
        let b = x[source + second];
        let to = p.y + row * p.y_stride;
        y[to + first] = a * cs.x - b * cs.y;
        y[to + second] = b * cs.x + a * cs.y;
    }
}
