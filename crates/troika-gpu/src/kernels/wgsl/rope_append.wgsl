
// Rotates queries, rotates keys into their cache, and writes values into theirs. Heads of queries and
// keys may be normalised before. A workgroup takes a head of a row, or as many columns of values.

override INTERLEAVED: u32 = 0;
override NORM: u32 = 0;
override KEYS: u32 = 0;
override VALUES: u32 = 0;

const WG: u32 = 64u;

struct Params {
    q: u32,
    q_stride: u32,
    k: u32,
    k_stride: u32,
    v: u32,
    v_stride: u32,
    y: u32,
    y_stride: u32,
    records: u32,
    page_bits: u32,
    flag: u32,
    q_heads: u32,
    k_heads: u32,
    head_dim: u32,
    v_width: u32,
    offset: u32,
    rotary_dim: u32,
    factor: f32,
    eps: f32,
    norm_offset: f32,
    norm_stride: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> inv_freq: array<f32>;
@group(0) @binding(1) var<storage, read> norms: array<f32>;
@group(0) @binding(2) var<storage, read_write> q: array<f32>;
@group(0) @binding(3) var<storage, read_write> k: array<f32>;
@group(0) @binding(4) var<storage, read_write> v: array<f32>;
@group(0) @binding(5) var<storage, read_write> batch: array<u32>;
@group(0) @binding(6) var<storage, read_write> keys: array<u32>;
@group(0) @binding(7) var<storage, read_write> values: array<u32>;

var<workgroup> head: array<f32, 1024>;
var<workgroup> rotated: array<f32, 1024>;
var<workgroup> parts: array<f32, WG>;

fn pair_bits(a: f32, b: f32, format: u32) -> u32 {
    if format == 1u {
        if is_beyond(a) || is_beyond(b) {
            batch[p.flag] = 1u;
        }
        return f16_bits(a) | (f16_bits(b) << 16u);
    }
    return bf16_bits(a) | (bf16_bits(b) << 16u);
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    let row = at.y;
    let record = p.records + row * 4u;
    let position = batch[record];
    let page = batch[batch[record + 1u] + (position >> p.page_bits) - batch[record + 2u]];
    let to = (page << p.page_bits) + (position & ((1u << p.page_bits) - 1u));
    let is_query = at.x < p.q_heads;
    let is_key = at.x >= p.q_heads && at.x < p.q_heads + p.k_heads;
    let number = select(at.x - select(p.q_heads, p.q_heads + p.k_heads, !is_key), at.x, is_query);
    let start = number * p.head_dim;
    if !is_query && !is_key {
        let end = min(p.head_dim, p.v_width - start);
        let at_v = p.v + row * p.v_stride + start;
        if VALUES == 0u {
            for (var i = thread; i < end; i += WG) {
                values[to * p.v_width + start + i] = bitcast<u32>(v[at_v + i]);
            }
        } else {
            for (var i = thread; 2u * i < end; i += WG) {
                let bits = pair_bits(v[at_v + 2u * i], v[at_v + 2u * i + 1u], VALUES);
                values[(to * p.v_width + start) / 2u + i] = bits;
            }
        }
        return;
    }
    var own = 0.0;
    for (var i = thread; i < p.head_dim; i += WG) {
        var x = 0.0;
        if is_query {
            x = q[p.q + row * p.q_stride + start + i];
        } else {
            x = k[p.k + row * p.k_stride + start + i];
        }
        head[i] = x;
        own += x * x;
    }
    if NORM == 1u {
        parts[thread] = own;
        for (var n = WG / 2u; n > 0u; n = n / 2u) {
            workgroupBarrier();
            if thread < n {
                parts[thread] += parts[thread + n];
            }
        }
        workgroupBarrier();
        let scale = 1.0 / sqrt(parts[0] / f32(p.head_dim) + p.eps);
        let weight = select(0u, p.norm_stride, is_key);
        for (var i = thread; i < p.head_dim; i += WG) {
            head[i] = head[i] * scale * (p.norm_offset + norms[weight + i]);
        }
    }
    workgroupBarrier();
    let pairs = p.rotary_dim / 2u;
    for (var i = thread; i < p.head_dim; i += WG) {
        let e = i - p.offset;
        if i < p.offset || e >= p.rotary_dim {
            rotated[i] = head[i];
        } else if e < pairs {
            // One of the threads of the rotated elements writes both of a pair.
            var first = p.offset + e;
            var second = first + pairs;
            if INTERLEAVED == 1u {
                first = p.offset + 2u * e;
                second = first + 1u;
            }
            let cs = cos_sin(f32(position) * inv_freq[e]) * p.factor;
            let a = head[first];
            let b = head[second];
            rotated[first] = a * cs.x - b * cs.y;
            rotated[second] = b * cs.x + a * cs.y;
        }
    }
    workgroupBarrier();
    if is_query {
        for (var i = thread; i < p.head_dim; i += WG) {
            q[p.y + row * p.y_stride + start + i] = rotated[i];
        }
        return;
    }
    let at_key = to * p.k_heads * p.head_dim + start;
    if KEYS == 0u {
        for (var i = thread; i < p.head_dim; i += WG) {
            keys[at_key + i] = bitcast<u32>(rotated[i]);
        }
    } else {
        for (var i = thread; 2u * i < p.head_dim; i += WG) {
            keys[at_key / 2u + i] = pair_bits(rotated[2u * i], rotated[2u * i + 1u], KEYS);
        }
    }
}
