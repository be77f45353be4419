// The best of up to 2048 numbers, sorted: a workgroup takes a part of a row. Equal numbers are in
// the order of their columns.

// 0: numbers are taken from pairs of place and column; 1: they are those of the best blocks.
override GATHER: u32 = 0;
// 1: writes numbers and then their columns; 0: pairs.
override LAST: u32 = 0;

const WG: u32 = 256u;
const MOST: u32 = 2048u;

struct Params {
    rows: u32,
    cols: u32,
    blocks: u32,
    // Numbers of a row to choose from, how many of them a workgroup takes, and how many it keeps.
    count: u32,
    each: u32,
    kept: u32,
    x: u32,
    x_stride: u32,
    pairs: u32,
    pairs_stride: u32,
    to: u32,
    to_stride: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> work: array<u32>;

var<workgroup> ranks: array<u32, MOST>;
var<workgroup> columns: array<u32, MOST>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) at: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    // A power of two, at least 2.
    let first = at.x * p.each;
    let count = min(p.each, p.count - first);
    var size = 2u;
    while size < count {
        size *= 2u;
    }
    for (var row = at.y; row < p.rows; row += groups.y) {
        workgroupBarrier();
        let pairs = p.pairs + row * p.pairs_stride;
        for (var i = thread; i < size; i += WG) {
            var key = 0u;
            var col = 0xffffffffu;
            if i < count {
                let n = first + i;
                if GATHER == 1u {
                    // The pairs are the best of as many blocks.
                    let block = work[pairs + 2u * (n % p.kept) + 1u] % p.blocks;
                    let own = block + n / p.kept * p.blocks;
                    if own < p.cols {
                        key = rank(x[p.x + row * p.x_stride + own]);
                        col = own;
                    }
                } else {
                    key = work[pairs + 2u * n];
                    col = work[pairs + 2u * n + 1u];
                }
            }
            ranks[i] = key;
            columns[i] = col;
        }
        // Batcher's bitonic sort, the best first.
        for (var run = 2u; run <= size; run *= 2u) {
            for (var gap = run / 2u; gap > 0u; gap /= 2u) {
                workgroupBarrier();
                for (var i = thread; i < size / 2u; i += WG) {
                    let a = 2u * i - (i & (gap - 1u));
                    let b = a + gap;
                    let rank_a = ranks[a];
                    let rank_b = ranks[b];
                    let col_a = columns[a];
                    let col_b = columns[b];
                    let in_order = rank_a > rank_b || (rank_a == rank_b && col_a < col_b);
                    if in_order != ((a & run) == 0u) {
                        ranks[a] = rank_b;
                        ranks[b] = rank_a;
                        columns[a] = col_b;
                        columns[b] = col_a;
                    }
                }
            }
        }
        workgroupBarrier();
        let to = p.to + row * p.to_stride;
        for (var i = thread; i < p.kept; i += WG) {
            var key = 0u;
            var col = 0xffffffffu;
            if i < size {
                key = ranks[i];
                col = columns[i];
            }
            if LAST == 1u {
                work[to + i] = bits_of(key);
                work[to + p.kept + i] = col;
            } else {
                work[to + 2u * (at.x * p.kept + i)] = key;
                work[to + 2u * (at.x * p.kept + i) + 1u] = col;
            }
        }
    }
}
