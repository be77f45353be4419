// Writes rows into the pages of a cache. A thread writes one word of a row.

override FORMAT: u32 = 0;

struct Params {
    x: u32,
    x_stride: u32,
    records: u32,
    rows: u32,
    page_bits: u32,
    width: u32,
    words: u32,
    flag: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> batch: array<u32>;
@group(0) @binding(2) var<storage, read_write> cache: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let word = at.x;
    if word >= p.words {
        return;
    }
    for (var row = at.y; row < p.rows; row += groups.y) {
        let record = p.records + row * 4u;
        let position = batch[record];
        let page = batch[batch[record + 1u] + (position >> p.page_bits) - batch[record + 2u]];
        let to = (page << p.page_bits) + (position & ((1u << p.page_bits) - 1u));
        let source = p.x + row * p.x_stride;
        if FORMAT == 0u {
            cache[to * p.words + word] = bitcast<u32>(x[source + word]);
        } else {
            let a = x[source + 2u * word];
            let b = x[source + 2u * word + 1u];
            if FORMAT == 1u {
                cache[to * p.words + word] = f16_bits(a) | (f16_bits(b) << 16u);
                if is_beyond(a) || is_beyond(b) {
                    batch[p.flag] = 1u;
                }
            } else {
                cache[to * p.words + word] = bf16_bits(a) | (bf16_bits(b) << 16u);
            }
        }
    }
}
