
// Norms of rows of activations on their way to products. Each workgroup measures the rows itself,
// which costs little beside its products and spares a dispatch.

// Of each row: what is subtracted, and what the rest is multiplied by.
var<workgroup> measured: array<vec2<f32>, 8>;

// Four columns of row `r` of activations from `c` on.
fn activations4(x: Activations, r: u32, c: u32) -> vec4<f32> {
    var v = x4(x_row(x, r), c, x.cols);
    if NORM > 0u {
        let m = measured[r];
        v = (v - m.x) * m.y * (p.norm_offset + vectors4(0u, c, x.cols));
    }
    if NORM == 3u {
        v += vectors4(x.cols, c, x.cols);
    }
    return v;
}

// Adds up a number of each thread for each row, to `added(row)`.
fn add_up(thread: u32, own: ptr<function, array<f32, 8>>) {
    workgroupBarrier();
    for (var r = 0u; r < ROWS; r++) {
        pool[r * WG + thread].x = bitcast<u32>((*own)[r]);
    }
    // Sixteen become one.
    for (var n = WG; n > 1u; n = (n + 15u) / 16u) {
        let left = (n + 15u) / 16u;
        workgroupBarrier();
        for (var r = 0u; thread < left && r < ROWS; r++) {
            let at = r * WG + thread;
            var sum = bitcast<f32>(pool[at].x);
            for (var i = left; i < n; i += left) {
                sum += bitcast<f32>(pool[at + i].x);
            }
            pool[at].x = bitcast<u32>(sum);
        }
    }
    workgroupBarrier();
}

// What was added up for a row.
fn added(row: u32) -> f32 {
    return bitcast<f32>(pool[row * WG].x);
}

// Sums of a thread's columns: of their squares, or of themselves.
fn sum_rows(thread: u32, x: Activations, own: ptr<function, array<f32, 8>>) {
    for (var r = 0u; r < ROWS; r++) {
        var sum = vec4<f32>(0.0);
        for (var c = thread * 4u; c < x.cols; c += WG * 4u) {
            let v = x4(x_row(x, r), c, x.cols);
            sum += select(v * v, v, NORM > 1u);
        }
        (*own)[r] = dot(sum, vec4<f32>(1.0));
    }
}

// Sums of the squares of a thread's columns less the means.
fn sum_squares(thread: u32, x: Activations, own: ptr<function, array<f32, 8>>) {
    for (var r = 0u; r < ROWS; r++) {
        var sum = vec4<f32>(0.0);
        for (var c = thread * 4u; c < x.cols; c += WG * 4u) {
            let v = x4(x_row(x, r), c, x.cols) - measured[r].x;
            let at = vec4<u32>(c) + vec4<u32>(0u, 1u, 2u, 3u);
            sum += select(vec4<f32>(0.0), v * v, at < vec4<u32>(x.cols));
        }
        (*own)[r] = dot(sum, vec4<f32>(1.0));
    }
}

// Measures all rows. All threads of the workgroup must call it.
fn measure(thread: u32, x: Activations) {
    if NORM == 0u {
        return;
    }
    var own: array<f32, 8>;
    sum_rows(thread, x, &own);
    add_up(thread, &own);
    if thread < ROWS {
        let mean = added(thread) / f32(x.cols);
        measured[thread] = select(vec2<f32>(mean, 0.0), vec2<f32>(0.0, mean), NORM == 1u);
    }
    workgroupBarrier();
    if NORM > 1u {
        sum_squares(thread, x, &own);
        add_up(thread, &own);
        if thread < ROWS {
            measured[thread].y = added(thread) / f32(x.cols);
        }
        workgroupBarrier();
    }
    if thread < ROWS {
        measured[thread].y = 1.0 / sqrt(measured[thread].y + p.eps);
    }
    workgroupBarrier();
}
