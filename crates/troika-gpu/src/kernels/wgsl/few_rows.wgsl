
// Products for a few rows of activations.

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) at: vec3<u32>) {
    let head = at.z;
    let start = at.x * TEAMS * team_rows();
    let x_rows = Activations(p.x + head * p.cols, p.x_stride, p.x_rows, p.cols);
    multiply(thread, start, Rows(head * p.rows, p.rows, p.units), x_rows);
    for (var i = thread; i < TEAMS * SLOTS; i += WG) {
        let r = x_row_of(i);
        if r >= p.x_rows {
            continue;
        }
        let v = result(i);
        for (var n = 0u; n < 4u; n++) {
            let row = start + row_of(i) + n;
            if row < p.rows {
                var sum = v[n];
                if BIAS == 1u {
                    sum += bias[p.first + row];
                }
                y[p.y + r * p.y_stride + head * p.rows + p.first + row] = sum;
            }
        }
    }
}
