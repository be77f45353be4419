
// Converts adjacent floats. A thread writes two.

override FROM: u32 = 0;
override TO: u32 = 0;

struct Params {
    count: u32,
    x: u32,
    y: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

fn float_at(i: u32) -> f32 {
    if i >= p.count {
        return 0.0;
    }
    if FROM == 0u {
        return bitcast<f32>(x[p.x + i]);
    }
    return widened(x[p.x + i / 2u], (i & 1u) == 1u, FROM == 1u);
}

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) at: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let pair = (at.y * groups.x + at.x) * 256u + thread;
    let i = 2u * pair;
    if i >= p.count {
        return;
    }
    let a = float_at(i);
    let b = float_at(i + 1u);
    if TO == 0u {
        y[p.y + i] = bitcast<u32>(a);
        if i + 1u < p.count {
            y[p.y + i + 1u] = bitcast<u32>(b);
        }
    } else if TO == 1u {
        y[p.y + pair] = f16_bits(a) | (f16_bits(b) << 16u);
    } else {
        y[p.y + pair] = bf16_bits(a) | (bf16_bits(b) << 16u);
    }
}
