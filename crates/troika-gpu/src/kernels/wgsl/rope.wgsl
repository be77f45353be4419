
// Rotates the heads of queries and of keys, which may be normalised before. A workgroup takes a head
// of a row.

override INTERLEAVED: u32 = 0;
override NORM: u32 = 0;

const WG: u32 = 64u;

struct Params {
    q: u32,
    q_stride: u32,
    k: u32,
    k_stride: u32,
    positions: u32,
    positions_stride: u32,
    y: u32,
    y_stride: u32,
    z: u32,
    z_stride: u32,
    rows: u32,
    q_heads: u32,
    head_dim: u32,
    offset: u32,
    rotary_dim: u32,
    factor: f32,
    // Columns that are normalised together: some heads of queries, some heads of keys.
    q_group: u32,
    k_group: u32,
    eps: f32,
    norm_offset: f32,
    // Later positions have a larger factor.
    beta: f32,
    original: f32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> inv_freq: array<f32>;
@group(0) @binding(1) var<storage, read> norms: array<f32>;
@group(0) @binding(2) var<storage, read_write> q: array<f32>;
@group(0) @binding(3) var<storage, read_write> k: array<f32>;
@group(0) @binding(4) var<storage, read_write> positions: array<i32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<storage, read_write> z: array<f32>;

var<workgroup> head: array<f32, 1024>;

// Where a head lies in its row, and the group of columns that it is normalised with.
struct Head {
    is_key: bool,
    start: u32,
    group: u32,
}

fn source(h: Head, row: u32, col: u32) -> f32 {
    if h.is_key {
        return k[p.k + row * p.k_stride + col];
    }
    return q[p.q + row * p.q_stride + col];
}

fn put(h: Head, row: u32, col: u32, v: f32) {
    if h.is_key {
        z[p.z + row * p.z_stride + h.start + col] = v;
    } else {
        y[p.y + row * p.y_stride + h.start + col] = v;
    }
}

// Fetches a head, normalised.
fn fetch(thread: u32, h: Head, row: u32) {
    var scale = 1.0;
    let first = h.start / h.group * h.group;
    if NORM == 1u {
        var own = 0.0;
        for (var i = thread; i < h.group; i += WG) {
            let x = source(h, row, first + i);
            own += x * x;
        }
        scale = 1.0 / sqrt(total(thread, own) / f32(h.group) + p.eps);
    }
    // The weights for keys follow those for queries.
    let weight = select(0u, p.q_group, h.is_key) + h.start - first;
    for (var i = thread; i < p.head_dim; i += WG) {
        var x = source(h, row, h.start + i);
        if NORM == 1u {
            x = x * scale * (p.norm_offset + norms[weight + i]);
        }
        head[i] = x;
    }
}

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) at: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let is_key = at.x >= p.q_heads;
    let number = select(at.x, at.x - p.q_heads, is_key);
    let h = Head(is_key, number * p.head_dim, select(p.q_group, p.k_group, is_key));
    let pairs = p.rotary_dim / 2u;
    for (var row = at.y; row < p.rows; row += groups.y) {
        fetch(thread, h, row);
        workgroupBarrier();
        let position = f32(positions[p.positions + row * p.positions_stride]);
        let factor = p.factor * (1.0 + p.beta * log(1.0 + floor(position / p.original)));
        for (var i = thread; i < p.head_dim; i += WG) {
            let e = i - p.offset;
            if i < p.offset || e >= p.rotary_dim {
                put(h, row, i, head[i]);
            } else if e < pairs {
                // One of the threads of the rotated elements writes both of a pair.
                var first = p.offset + e;
                var second = first + pairs;
                if INTERLEAVED == 1u {
                    first = p.offset + 2u * e;
                    second = first + 1u;
                }
                let cs = cos_sin(position * inv_freq[e]) * factor;
                let a = head[first];
                let b = head[second];
                put(h, row, first, a * cs.x - b * cs.y);
                put(h, row, second, b * cs.x + a * cs.y);
            }
        }
        // The next row replaces the head.
        workgroupBarrier();
    }
}
