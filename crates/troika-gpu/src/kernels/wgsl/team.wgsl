
// Products of weight rows with a few rows of activations, in a workgroup: each weight is read once.
// A team of LANES threads takes EACH weight rows; a thread takes 32 of their columns at a time.

override ROWS: u32 = 1;
override LANES: u32 = 32;
override TEAMS: u32 = 2;
override EACH: u32 = 4;
// Whether results have a bias added.
override BIAS: u32 = 0;
// LANES * TEAMS.
override WG: u32 = 64;

// A sum of each thread for each weight row and row of activations. No override constant may come
// after it: naga 30 fails on those behind an array whose length is computed.
var<workgroup> sums: array<f32, WG * EACH * ROWS>;

struct Activations {
    // Where the first row begins, and how many there are.
    start: u32,
    stride: u32,
    rows: u32,
    cols: u32,
}

struct Rows {
    // The number of the first weight row, how many there are, and 16-byte units of each.
    first: u32,
    count: u32,
    units: u32,
}

// Computes the products of the workgroup's weight rows from row `start` of `w` on. All threads of the
// workgroup must call it.
fn multiply(thread: u32, start: u32, w: Rows, x: Activations) {
    let lane = thread % LANES;
    let own = start + (thread / LANES) * EACH;
    var acc: array<f32, 16>;
    for (var i = 0u; i < EACH * ROWS; i++) {
        acc[i] = 0.0;
    }
    for (var block = lane; block * 32u < x.cols; block += LANES) {
        for (var half = 0u; half < 2u; half++) {
            let c = block * 32u + half * 16u;
            // Columns are padded to 16 only.
            if c >= x.cols {
                break;
            }
            if ROWS == 1u {
                let a = x4(x.start, c, x.cols);
                let b = x4(x.start, c + 4u, x.cols);
                let e = x4(x.start, c + 8u, x.cols);
                let f = x4(x.start, c + 12u, x.cols);
                let sum = sum16(a, b, e, f);
                for (var n = 0u; n < EACH; n++) {
                    let row = w.first + min(own + n, w.count - 1u);
                    acc[n] += dot16(load16(row * w.units, c / 16u, x.cols), a, b, e, f, sum);
                }
            } else {
                for (var n = 0u; n < EACH; n++) {
                    let row = w.first + min(own + n, w.count - 1u);
                    let q = load16(row * w.units, c / 16u, x.cols);
                    for (var r = 0u; r < ROWS; r++) {
                        let x_row = x.start + min(r, x.rows - 1u) * x.stride;
                        let a = x4(x_row, c, x.cols);
                        let b = x4(x_row, c + 4u, x.cols);
                        let e = x4(x_row, c + 8u, x.cols);
                        let f = x4(x_row, c + 12u, x.cols);
                        acc[n * ROWS + r] += dot16(q, a, b, e, f, sum16(a, b, e, f));
                    }
                }
            }
        }
    }
    // Results of an earlier call are read before.
    workgroupBarrier();
    for (var i = 0u; i < EACH * ROWS; i++) {
        sums[i * WG + thread] = acc[i];
    }
    for (var n = LANES / 2u; n > 0u; n = n / 2u) {
        workgroupBarrier();
        if lane < n {
            for (var i = 0u; i < EACH * ROWS; i++) {
                sums[i * WG + thread] += sums[i * WG + thread + n];
            }
        }
    }
    workgroupBarrier();
}

// The weight row of result `i` of TEAMS * EACH * ROWS, counted from the workgroup's first one.
fn row_of(i: u32) -> u32 {
    return (i / (EACH * ROWS)) * EACH + (i % (EACH * ROWS)) / ROWS;
}

// The row of activations of result `i`.
fn x_row_of(i: u32) -> u32 {
    return i % ROWS;
}

// Result `i`.
fn result(i: u32) -> f32 {
    return sums[(i % (EACH * ROWS)) * WG + (i / (EACH * ROWS)) * LANES];
}
