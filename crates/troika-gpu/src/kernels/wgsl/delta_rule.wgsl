// The gated delta rule. Lines are the elements of keys.

// Whether heads of values with a common key lie apart.
override TILED: u32 = 0;
// Whether each line has a decay of its own.
override CHANNELS: u32 = 0;

// Added to the square of a length.
const EPS: f32 = 1e-6;

struct Params {
    records: u32,
    rows: u32,
    heads: u32,
    columns: u32,
    key_heads: u32,
    v: u32,
    v_stride: u32,
    q: u32,
    q_stride: u32,
    k: u32,
    k_stride: u32,
    gates: u32,
    gates_stride: u32,
    y: u32,
    y_stride: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> values: array<f32>;
@group(0) @binding(1) var<storage, read_write> queries: array<f32>;
@group(0) @binding(2) var<storage, read_write> keys: array<f32>;
// Decays, then shares of new values.
@group(0) @binding(3) var<storage, read_write> gates: array<f32>;
@group(0) @binding(4) var<storage, read_write> batch: array<u32>;
@group(0) @binding(5) var<storage, read_write> state: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

// Products of states with keys and queries, and squares of lengths.
var<workgroup> sums: array<vec4<f32>, 2u * WG>;
// Products of keys with queries.
var<workgroup> both: array<f32, 2u * WG>;

fn advance(own: Share, row: u32, at: u32) {
    var key_head = own.head / (p.heads / p.key_heads);
    if TILED == 1u {
        key_head = own.head % p.key_heads;
    }
    let q = p.q + row * p.q_stride + key_head * LINES + own.first;
    let k = p.k + row * p.k_stride + key_head * LINES + own.first;
    let gate = p.gates + row * p.gates_stride;
    let channels = select(1u, LINES, CHANNELS == 1u);
    let beta = gates[gate + p.heads * channels + own.head];
    var decay = gates[gate + own.head * channels];
    var sum = vec4<f32>(0.0);
    var product = 0.0;
    for (var i = 0u; i < EACH; i++) {
        if i < own.lines {
            if CHANNELS == 1u {
                decay = gates[gate + own.head * channels + own.first + i];
            }
            let key = keys[k + i];
            let query = queries[q + i];
            s[i] *= decay;
            sum += vec4<f32>(s[i] * key, s[i] * query, key * key, query * query);
            product += key * query;
        }
    }
    sums[at + own.thread] = sum;
    both[at + own.thread] = product;
    workgroupBarrier();
    sum = vec4<f32>(0.0);
    product = 0.0;
    for (var part = 0u; part < PARTS; part++) {
        let other = at + part * width() + own.thread % width();
        sum += sums[other];
        product += both[other];
    }
    let unit_key = 1.0 / sqrt(sum.z + EPS);
    let unit_query = 1.0 / sqrt((sum.w + EPS) * f32(LINES));
    let v = p.v + row * p.v_stride + own.head * p.columns + own.column;
    var added = 0.0;
    if own.lines > 0u {
        added = (values[v] - sum.x * unit_key) * beta * unit_key;
    }
    for (var i = 0u; i < EACH; i++) {
        if i < own.lines {
            s[i] += keys[k + i] * added;
        }
    }
    if own.writes {
        let to = p.y + row * p.y_stride + own.head * p.columns + own.column;
        y[to] = (sum.y + added * product) * unit_query;
    }
}
