// The best number of each block of a row: block `b` has the columns `b`, `b + blocks`, and so on.
// A workgroup takes 64 blocks of a row, a thread one.

struct Params {
    rows: u32,
    cols: u32,
    blocks: u32,
    x: u32,
    x_stride: u32,
    best: u32,
    best_stride: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> work: array<u32>;

@compute @workgroup_size(64)
fn main(
    @builtin(global_invocation_id) at: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    if at.x >= p.blocks {
        return;
    }
    for (var row = at.y; row < p.rows; row += groups.y) {
        var key = 0u;
        var col = at.x;
        for (var i = at.x; i < p.cols; i += p.blocks) {
            let other = rank(x[p.x + row * p.x_stride + i]);
            if other > key {
                key = other;
                col = i;
            }
        }
        let to = p.best + row * p.best_stride + 2u * at.x;
        work[to] = key;
        work[to + 1u] = col;
    }
}
