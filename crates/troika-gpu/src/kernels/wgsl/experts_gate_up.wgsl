
// Gates and ups of the chosen experts. A team of LANES threads takes two rows of both; a thread
// takes 32 of their columns at a time.

struct Params {
    inter: u32,
    cols: u32,
    units: u32,
    first: u32,
    count: u32,
    top_k: u32,
    capacity: u32,
    act_first: f32,
    act_second: f32,
    x: u32,
    x_stride: u32,
    ids: u32,
    ids_stride: u32,
    h: u32,
    h_stride: u32,
}

const X_BINDING: u32 = 4u;

var<immediate> p: Params;

@group(0) @binding(2) var<storage, read> gate_bias: array<f32>;
@group(0) @binding(3) var<storage, read> up_bias: array<f32>;
@group(0) @binding(5) var<storage, read_write> ids: array<i32>;
@group(0) @binding(6) var<storage, read_write> h: array<f32>;

// Of each thread: gate and up of the first row, gate and up of the second.
var<workgroup> sums: array<vec4<f32>, WG>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    let pair = at.y;
    let row = pair / p.top_k;
    var expert = 0u;
    if p.capacity > 0u {
        expert = row / p.capacity;
    } else {
        expert = bitcast<u32>(ids[p.ids + row * p.ids_stride + pair % p.top_k]);
    }
    // The same for all threads of the workgroup, which the barriers below rely on.
    let here = expert >= p.first && expert - p.first < p.count;
    let number = select(0u, expert - p.first, here);
    let lane = thread % LANES;
    let team = thread / LANES;
    let start = (at.x * TEAMS + team) * 2u;
    let first = (number * p.inter + min(start, p.inter - 1u)) * p.units;
    let second = (number * p.inter + min(start + 1u, p.inter - 1u)) * p.units;
    let x_row = p.x + row * p.x_stride;
    let cols = select(0u, p.cols, here);
    var acc = vec4<f32>(0.0);
    for (var block = lane; EIGHT_BITS == 1u && block * 32u < cols; block += LANES) {
        let x32 = load_bytes(x_row, block, p.cols);
        of_others = false;
        acc.x += dot_block(first, block, p.cols, x32);
        acc.z += dot_block(second, block, p.cols, x32);
        of_others = true;
        acc.y += dot_block(first, block, p.cols, x32);
        acc.w += dot_block(second, block, p.cols, x32);
    }
    for (var part = lane * 2u; EIGHT_BITS == 0u && part * 16u < cols; part = next_part(part)) {
        let x16 = load_x(x_row, part, p.cols, 1.0);
        of_others = false;
        acc.x += dot_part(first, part, p.cols, x16);
        acc.z += dot_part(second, part, p.cols, x16);
        of_others = true;
        acc.y += dot_part(first, part, p.cols, x16);
        acc.w += dot_part(second, part, p.cols, x16);
    }
    sums[thread] = acc;
    for (var n = LANES / 2u; n > 0u; n = n / 2u) {
        workgroupBarrier();
        if lane < n {
            sums[thread] += sums[thread + n];
        }
    }
    if lane == 0u && here {
        var v = sums[thread];
        let numbers = vec2<f32>(p.act_first, p.act_second);
        for (var i = 0u; i < 2u; i++) {
            let inner = start + i;
            if inner < p.inter {
                var g = select(v.x, v.z, i == 1u);
                var u = select(v.y, v.w, i == 1u);
                if BIAS == 1u {
                    g += gate_bias[number * p.inter + inner];
                    u += up_bias[number * p.inter + inner];
                }
                h[p.h + pair * p.h_stride + inner] = activated(g, numbers) * gated(u, numbers);
            }
        }
    }
}
