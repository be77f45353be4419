
// Attention by online softmax. A workgroup takes a row and a head; the keys come in tiles, one key a
// thread, and then the columns of values, one a thread or one for several keys. The keys of a row may
// be shared out to several workgroups, whose results are merged later. How many keys each of them
// takes depends on nothing but how many the row sees, so that a row's results do not depend on other
// rows. Where each row is the last of its sequence, its key and value may come from a batch instead of
// the caches, to which they are then appended.

override KEYS: u32 = 0;
override VALUES: u32 = 0;
override K_DIM: u32 = 64;
override V_DIM: u32 = 64;
override SOFTCAP: u32 = 0;
override SINKS: u32 = 0;
// Whether results are those of parts: not divided, and followed by the largest score and the sum.
override PARTS: u32 = 0;
// Whether the last key and value of a row are appended.
override APPEND: u32 = 0;
// Whether values are parts of keys.
override SHARED: u32 = 0;

const WG: u32 = 128u;
const LOWEST: f32 = -3.0e38;
// The least tiles of a part of the keys, and the most parts.
const PART_TILES: u32 = 2u;
const MOST_PARTS: u32 = 32u;
// In the place of a cache's row: the row of the batch.
const NEW: u32 = 0xffffffffu;

struct Params {
    q: u32,
    q_stride: u32,
    y: u32,
    y_stride: u32,
    records: u32,
    page_bits: u32,
    // Query heads of a key head.
    share: u32,
    key_width: u32,
    value_width: u32,
    value_dim: u32,
    window: u32,
    scale: f32,
    cap: f32,
    parts: u32,
    k: u32,
    k_stride: u32,
    v: u32,
    v_stride: u32,
    flag: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> sinks: array<f32>;
@group(0) @binding(1) var<storage, read_write> q: array<f32>;
@group(0) @binding(2) var<storage, read_write> batch: array<u32>;
@group(0) @binding(3) var<storage, read_write> keys: array<u32>;
@group(0) @binding(4) var<storage, read_write> values: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<storage, read_write> new_keys: array<f32>;
@group(0) @binding(7) var<storage, read_write> new_values: array<f32>;

var<workgroup> query: array<f32, 1024>;
var<workgroup> weight: array<f32, WG>;
var<workgroup> cache_row: array<u32, WG>;

// The product of the query with the key that begins at element `from`.
fn score(source: u32) -> f32 {
    var sum = 0.0;
    if KEYS == 0u {
        for (var i = 0u; i < K_DIM; i++) {
            sum += query[i] * bitcast<f32>(keys[source + i]);
        }
    } else if ((K_DIM | p.key_width) & 1u) == 0u {
        for (var i = 0u; i < K_DIM; i += 2u) {
            let word = keys[(source + i) / 2u];
            sum += query[i] * widened(word, false, KEYS == 1u) + query[i + 1u] * widened(word, true, KEYS == 1u);
        }
    } else {
        for (var i = 0u; i < K_DIM; i++) {
            sum += query[i] * widened(keys[(source + i) / 2u], ((source + i) & 1u) == 1u, KEYS == 1u);
        }
    }
    return sum;
}

fn value_at(i: u32) -> f32 {
    if VALUES == 0u {
        return bitcast<f32>(values[i]);
    }
    return widened(values[i / 2u], (i & 1u) == 1u, VALUES == 1u);
}

// A number as a cache keeps it.
fn rounded(x: f32, format: u32) -> f32 {
    switch format {
        case 0u: {
            return x;
        }
        case 1u: {
            return widened(f16_bits(x), false, true);
        }
        default: {
            return widened(bf16_bits(x), false, false);
        }
    }
}

// The product of the query with the row's own key.
fn new_score(row: u32, kv_head: u32) -> f32 {
    let source = p.k + row * p.k_stride + kv_head * K_DIM;
    var sum = 0.0;
    for (var i = 0u; i < K_DIM; i++) {
        sum += query[i] * rounded(new_keys[source + i], KEYS);
    }
    return sum;
}

// Column `c` of a head's value in a row of the cache, or of the batch.
fn value_of(cached: u32, row: u32, kv_head: u32, c: u32) -> f32 {
    let col = kv_head * p.value_dim + c;
    if APPEND == 1u && cached == NEW {
        return rounded(new_values[p.v + row * p.v_stride + col], VALUES);
    }
    return value_at(cached * p.value_width + col);
}

// Writes a head of the row's own key and value to row `to` of the caches.
fn append_head(thread: u32, row: u32, kv_head: u32, to: u32) {
    let k = p.k + row * p.k_stride + kv_head * K_DIM;
    let at_key = to * p.key_width + kv_head * K_DIM;
    if KEYS == 0u {
        for (var i = thread; i < K_DIM; i += WG) {
            keys[at_key + i] = bitcast<u32>(new_keys[k + i]);
        }
    } else {
        for (var i = thread; 2u * i < K_DIM; i += WG) {
            keys[at_key / 2u + i] = pair_bits(new_keys[k + 2u * i], new_keys[k + 2u * i + 1u], KEYS);
        }
    }
    if SHARED == 1u {
        return;
    }
    let v = p.v + row * p.v_stride + kv_head * V_DIM;
    let at_value = to * p.value_width + kv_head * V_DIM;
    if VALUES == 0u {
        for (var i = thread; i < V_DIM; i += WG) {
            values[at_value + i] = bitcast<u32>(new_values[v + i]);
        }
    } else {
        for (var i = thread; 2u * i < V_DIM; i += WG) {
            let bits = pair_bits(new_values[v + 2u * i], new_values[v + 2u * i + 1u], VALUES);
            values[at_value / 2u + i] = bits;
        }
    }
}

fn tanh_of(x: f32) -> f32 {
    if abs(x) < 0.1 {
        let s = x * x;
        return x * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * -0.053968254)));
    }
    return 1.0 - 2.0 / (exp(clamp(2.0 * x, -40.0, 40.0)) + 1.0);
}

fn highest(thread: u32, own: f32) -> f32 {
    workgroupBarrier();
    parts[thread] = own;
    for (var n = WG / 2u; n > 0u; n = n / 2u) {
        workgroupBarrier();
        if thread < n {
            parts[thread] = max(parts[thread], parts[thread + n]);
        }
    }
    workgroupBarrier();
    return parts[0];
}

// The row of the caches that holds a position.
fn row_of_cache(table: u32, first_page: u32, position: u32) -> u32 {
    let page = batch[table + (position >> p.page_bits) - first_page];
    return (page << p.page_bits) + (position & ((1u << p.page_bits) - 1u));
}

// Threads that share the columns of values: a power of two.
fn columns() -> u32 {
    var n = WG;
    while n / 2u >= V_DIM {
        n = n / 2u;
    }
    return n;
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    let head = at.x;
    let row = at.y;
    let kv_head = head / p.share;
    let record = p.records + row * 4u;
    let visible_end = batch[record] + 1u;
    let table = batch[record + 1u];
    let first_page = batch[record + 2u];
    let visible = select(0u, visible_end - p.window, visible_end > p.window);
    var start = visible;
    var end = visible_end;
    if PARTS == 1u {
        let each = WG * MOST_PARTS;
        let tiles = max(PART_TILES, (visible_end - visible + each - 1u) / each);
        start = visible + at.z * tiles * WG;
        end = min(visible_end, start + tiles * WG);
    }
    for (var i = thread; i < K_DIM; i += WG) {
        query[i] = q[p.q + row * p.q_stride + head * K_DIM + i] * p.scale;
    }
    // One of the heads that share a key writes it.
    if APPEND == 1u && head % p.share == 0u && start < visible_end && end == visible_end {
        append_head(thread, row, kv_head, row_of_cache(table, first_page, visible_end - 1u));
    }
    let width = columns();
    let column = thread % width;
    let team = thread / width;
    let teams = WG / width;
    var acc: array<f32, 8>;
    for (var j = 0u; j < 8u; j++) {
        acc[j] = 0.0;
    }
    var top = LOWEST;
    var sum = 0.0;
    workgroupBarrier();
    for (var tile = start; tile < end; tile += WG) {
        let position = tile + thread;
        var s = LOWEST;
        if position < end {
            if APPEND == 1u && position + 1u == visible_end {
                cache_row[thread] = NEW;
                s = new_score(row, kv_head);
            } else {
                let at_row = row_of_cache(table, first_page, position);
                cache_row[thread] = at_row;
                s = score(at_row * p.key_width + kv_head * K_DIM);
            }
            if SOFTCAP == 1u {
                s = p.cap * tanh_of(s / p.cap);
            }
        }
        let above = max(top, highest(thread, s));
        let e = select(0.0, exp(s - above), position < end);
        weight[thread] = e;
        let shrink = exp(top - above);
        sum = sum * shrink + total(thread, e);
        top = above;
        let count = min(WG, end - tile);
        for (var j = 0u; j * width < V_DIM; j++) {
            let c = column + j * width;
            var v = acc[j] * shrink;
            if c < V_DIM {
                for (var k = team; k < count; k += teams) {
                    v += weight[k] * value_of(cache_row[k], row, kv_head, c);
                }
            }
            acc[j] = v;
        }
        // The next tile replaces weights and rows.
        workgroupBarrier();
    }
    var factor = 1.0;
    var divisor = sum;
    if SINKS == 1u && PARTS == 0u {
        let above = max(top, sinks[head]);
        factor = exp(top - above);
        divisor = exp(sinks[head] - above) + sum * factor;
    }
    var to = p.y + row * p.y_stride + head * V_DIM;
    if PARTS == 1u {
        divisor = 1.0;
        to = p.y + row * p.y_stride + (head * p.parts + at.z) * (V_DIM + 2u);
        if thread == 0u {
            y[to + V_DIM] = top;
            y[to + V_DIM + 1u] = sum;
        }
    }
    for (var j = 0u; j * width < V_DIM; j++) {
        workgroupBarrier();
        parts[thread] = acc[j];
        workgroupBarrier();
        let c = column + j * width;
        if team == 0u && c < V_DIM {
            var v = 0.0;
            for (var t = 0u; t < teams; t++) {
                v += parts[t * width + column];
            }
            y[to + c] = v * factor / divisor;
        }
    }
}
