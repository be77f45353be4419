
// Writes rows of keys and of values into the pages of their caches. A thread writes one word of a
// row: first those of keys, then those of values.

override KEYS: u32 = 0;
override VALUES: u32 = 0;

struct Params {
    k: u32,
    k_stride: u32,
    v: u32,
    v_stride: u32,
    records: u32,
    rows: u32,
    page_bits: u32,
    k_words: u32,
    v_words: u32,
    flag: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> k: array<f32>;
@group(0) @binding(1) var<storage, read_write> v: array<f32>;
@group(0) @binding(2) var<storage, read_write> batch: array<u32>;
@group(0) @binding(3) var<storage, read_write> keys: array<u32>;
@group(0) @binding(4) var<storage, read_write> values: array<u32>;

fn key_word(source: u32, word: u32) -> u32 {
    if KEYS == 0u {
        return bitcast<u32>(k[source + word]);
    }
    return pair_bits(k[source + 2u * word], k[source + 2u * word + 1u], KEYS);
}

fn value_word(source: u32, word: u32) -> u32 {
    if VALUES == 0u {
        return bitcast<u32>(v[source + word]);
    }
    return pair_bits(v[source + 2u * word], v[source + 2u * word + 1u], VALUES);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    if at.x >= p.k_words + p.v_words {
        return;
    }
    for (var row = at.y; row < p.rows; row += groups.y) {
        let record = p.records + row * 4u;
        let position = batch[record];
        let page = batch[batch[record + 1u] + (position >> p.page_bits) - batch[record + 2u]];
        let to = (page << p.page_bits) + (position & ((1u << p.page_bits) - 1u));
        if at.x < p.k_words {
            keys[to * p.k_words + at.x] = key_word(p.k + row * p.k_stride, at.x);
        } else {
            let word = at.x - p.k_words;
            values[to * p.v_words + word] = value_word(p.v + row * p.v_stride, word);
        }
    }
}
