
// Products for a few rows of activations.

// Whether the normalised rows are kept.
override KEEP: u32 = 0;

// Writes the normalised rows.
fn keep(thread: u32, x: Activations) {
    for (var r = 0u; r < x.rows; r++) {
        for (var c = thread * 4u; c < x.cols; c += WG * 4u) {
            let v = activations4(x, r, c);
            for (var i = 0u; i < 4u; i++) {
                if c + i < x.cols {
                    normed[p.normed + r * p.normed_stride + c + i] = v[i];
                }
            }
        }
    }
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    let head = at.z;
    let x_rows = Activations(p.x + head * p.cols, p.x_stride, p.x_rows, p.cols);
    for (var round = 0u; round < ROUNDS; round++) {
        let start = round_start(at.x, round);
        if start >= p.rows {
            return;
        }
        let w = Rows(head * p.rows, p.rows, p.units);
        let sums = multiply(thread, start, w, x_rows, round > 0u);
        if KEEP == 1u && at.x == 0u && round == 0u {
            keep(thread, x_rows);
        }
        gather(thread, sums.own);
        for (var i = thread; i < TEAMS * ROWS; i += WG) {
            let r = x_row_of(i);
            if r >= p.x_rows {
                continue;
            }
            let v = result(i);
            for (var n = 0u; n < 4u; n++) {
                let row = start + row_of(i) + n;
                if row < p.rows {
                    put_result(v[n], head, r, row);
                }
            }
        }
    }
}
