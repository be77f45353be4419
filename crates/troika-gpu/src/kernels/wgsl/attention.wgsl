
// Attention by online softmax. A workgroup takes a row and a head; the keys come in tiles, one key a
// thread, and then the columns of values, eight a thread and a share of the keys. The keys of a row may
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
// Whether heads of the caches are whole units of eight elements.
override VECTORS: u32 = 0;

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
@group(0) @binding(3) var<storage, read_write> keys: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> values: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;
@group(0) @binding(6) var<storage, read_write> new_keys: array<f32>;
@group(0) @binding(7) var<storage, read_write> new_values: array<f32>;

// The query, the row's own key, and in the end sums of values. Past the last element there are zeros.
var<workgroup> query: array<vec4<f32>, 256>;
var<workgroup> own_key: array<vec4<f32>, 256>;
var<workgroup> weight: array<f32, WG>;
var<workgroup> cache_row: array<u32, WG>;

// Eight elements.
struct Eight {
    a: vec4<f32>,
    b: vec4<f32>,
}

fn pair(word: u32, format: u32) -> vec2<f32> {
    if format == 1u {
        return unpack2x16float(word);
    }
    return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
}

fn eight(u: vec4<u32>, format: u32) -> Eight {
    return Eight(
        vec4<f32>(pair(u.x, format), pair(u.y, format)),
        vec4<f32>(pair(u.z, format), pair(u.w, format)),
    );
}

fn key_at(i: u32) -> f32 {
    if KEYS == 0u {
        return bitcast<f32>(keys[i / 4u][i & 3u]);
    }
    return widened(keys[i / 8u][(i / 2u) & 3u], (i & 1u) == 1u, KEYS == 1u);
}

fn value_at(i: u32) -> f32 {
    if VALUES == 0u {
        return bitcast<f32>(values[i / 4u][i & 3u]);
    }
    return widened(values[i / 8u][(i / 2u) & 3u], (i & 1u) == 1u, VALUES == 1u);
}

// Elements `c` to `c + 7` of the key that begins at element `begin`.
fn key8(begin: u32, c: u32) -> Eight {
    let i = begin + c;
    if VECTORS == 1u && KEYS == 0u {
        return Eight(bitcast<vec4<f32>>(keys[i / 4u]), bitcast<vec4<f32>>(keys[i / 4u + 1u]));
    }
    if VECTORS == 1u {
        return eight(keys[i / 8u], KEYS);
    }
    var v = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
    for (var n = 0u; n < 4u; n++) {
        if c + n < K_DIM { v.a[n] = key_at(i + n); }
        if c + n + 4u < K_DIM { v.b[n] = key_at(i + n + 4u); }
    }
    return v;
}

// Elements `c` to `c + 7` of the value that begins at element `begin`.
fn value8(begin: u32, c: u32) -> Eight {
    let i = begin + c;
    if VECTORS == 1u && VALUES == 0u {
        return Eight(bitcast<vec4<f32>>(values[i / 4u]), bitcast<vec4<f32>>(values[i / 4u + 1u]));
    }
    if VECTORS == 1u {
        return eight(values[i / 8u], VALUES);
    }
    var v = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
    for (var n = 0u; n < 4u; n++) {
        if c + n < V_DIM { v.a[n] = value_at(i + n); }
        if c + n + 4u < V_DIM { v.b[n] = value_at(i + n + 4u); }
    }
    return v;
}

// The product of the query with the key that begins at element `begin`.
fn score(begin: u32) -> f32 {
    var sum = vec4<f32>(0.0);
    for (var c = 0u; c < K_DIM; c += 8u) {
        let k = key8(begin, c);
        sum += query[c / 4u] * k.a + query[c / 4u + 1u] * k.b;
    }
    return dot(sum, vec4<f32>(1.0));
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
fn new_score() -> f32 {
    var sum = vec4<f32>(0.0);
    for (var c = 0u; c < K_DIM; c += 4u) {
        sum += query[c / 4u] * own_key[c / 4u];
    }
    return dot(sum, vec4<f32>(1.0));
}

// Elements `c` to `c + 7` of the value of a head in a row of the cache, or of the batch.
fn value_of(cached: u32, row: u32, kv_head: u32, c: u32) -> Eight {
    let start = kv_head * p.value_dim;
    if APPEND == 1u && cached == NEW {
        let begin = p.v + row * p.v_stride + start;
        var v = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
        for (var n = 0u; n < 4u; n++) {
            if c + n < V_DIM { v.a[n] = rounded(new_values[begin + c + n], VALUES); }
            if c + n + 4u < V_DIM { v.b[n] = rounded(new_values[begin + c + n + 4u], VALUES); }
        }
        return v;
    }
    return value8(cached * p.value_width + start, c);
}

fn put_key_word(i: u32, word: u32) {
    keys[i / 4u][i & 3u] = word;
}

fn put_value_word(i: u32, word: u32) {
    values[i / 4u][i & 3u] = word;
}

// Writes a head of the row's own key and value to row `to` of the caches.
fn append_head(thread: u32, row: u32, kv_head: u32, to: u32) {
    let k = p.k + row * p.k_stride + kv_head * K_DIM;
    let at_key = to * p.key_width + kv_head * K_DIM;
    if KEYS == 0u {
        for (var i = thread; i < K_DIM; i += WG) {
            put_key_word(at_key + i, bitcast<u32>(new_keys[k + i]));
        }
    } else {
        for (var i = thread; 2u * i < K_DIM; i += WG) {
            put_key_word(at_key / 2u + i, pair_bits(new_keys[k + 2u * i], new_keys[k + 2u * i + 1u], KEYS));
        }
    }
    if SHARED == 1u {
        return;
    }
    let v = p.v + row * p.v_stride + kv_head * V_DIM;
    let at_value = to * p.value_width + kv_head * V_DIM;
    if VALUES == 0u {
        for (var i = thread; i < V_DIM; i += WG) {
            put_value_word(at_value + i, bitcast<u32>(new_values[v + i]));
        }
    } else {
        for (var i = thread; 2u * i < V_DIM; i += WG) {
            let bits = pair_bits(new_values[v + 2u * i], new_values[v + 2u * i + 1u], VALUES);
            put_value_word(at_value / 2u + i, bits);
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

// The highest number of all threads. All threads of the workgroup must call it.
fn highest(thread: u32, own: f32) -> f32 {
    workgroupBarrier();
    parts[thread] = own;
    // Sixteen become one.
    for (var n = WG; n > 1u; n = (n + 15u) / 16u) {
        let left = (n + 15u) / 16u;
        workgroupBarrier();
        if thread < left {
            var top = parts[thread];
            for (var i = left; i < n; i += left) {
                top = max(top, parts[thread + i]);
            }
            parts[thread] = top;
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

// Threads that share the columns of values, eight each: a power of two.
fn columns() -> u32 {
    var n = WG;
    while n / 2u * 8u >= V_DIM {
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
    let q_start = p.q + row * p.q_stride + head * K_DIM;
    let k_start = p.k + row * p.k_stride + kv_head * K_DIM;
    for (var i = thread; i * 4u < (K_DIM + 7u) / 8u * 8u; i += WG) {
        var of_query = vec4<f32>(0.0);
        var of_key = vec4<f32>(0.0);
        for (var n = 0u; n < 4u; n++) {
            let c = i * 4u + n;
            if c < K_DIM {
                of_query[n] = q[q_start + c] * p.scale;
                if APPEND == 1u {
                    of_key[n] = rounded(new_keys[k_start + c], KEYS);
                }
            }
        }
        query[i] = of_query;
        own_key[i] = of_key;
    }
    // One of the heads that share a key writes it.
    if APPEND == 1u && head % p.share == 0u && start < visible_end && end == visible_end {
        append_head(thread, row, kv_head, row_of_cache(table, first_page, visible_end - 1u));
    }
    let width = columns();
    let column = thread % width;
    let team = thread / width;
    let teams = WG / width;
    var acc = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
    var top = LOWEST;
    // Of the thread's own keys.
    var own_sum = 0.0;
    // The row of the thread's next key, which is on its way while the query is.
    var next_row = 0u;
    if start + thread < end {
        next_row = row_of_cache(table, first_page, start + thread);
    }
    workgroupBarrier();
    for (var tile = start; tile < end; tile += WG) {
        let position = tile + thread;
        let at_row = next_row;
        if position + WG < end {
            next_row = row_of_cache(table, first_page, position + WG);
        }
        var s = LOWEST;
        if position < end {
            if APPEND == 1u && position + 1u == visible_end {
                cache_row[thread] = NEW;
                s = new_score();
            } else {
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
        own_sum = own_sum * shrink + e;
        top = above;
        workgroupBarrier();
        let count = min(WG, end - tile);
        acc.a *= shrink;
        acc.b *= shrink;
        for (var k = team; k < count && column * 8u < V_DIM; k += teams) {
            let v = value_of(cache_row[k], row, kv_head, column * 8u);
            acc.a += weight[k] * v.a;
            acc.b += weight[k] * v.b;
        }
        // The next tile replaces weights and rows.
        workgroupBarrier();
    }
    let sum = total(thread, own_sum);
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
    // The query is not needed any more.
    query[2u * thread] = acc.a;
    query[2u * thread + 1u] = acc.b;
    workgroupBarrier();
    for (var c = thread; c < V_DIM; c += WG) {
        var v = 0.0;
        for (var t = 0u; t < teams; t++) {
            v += query[2u * (t * width + c / 8u) + (c / 4u & 1u)][c & 3u];
        }
        y[to + c] = v * factor / divisor;
    }
}
