
// Products of weight rows with a few rows of activations, in a workgroup: each weight is read once.
// A team of LANES threads takes four weight rows, or eight for a single row of activations; a thread
// takes 32 of their columns at a time.

// Sums of each thread for four weight rows, for each row of activations.
var<workgroup> sums: array<vec4<f32>, WG * SLOTS>;

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

// Sixteen columns of four weight rows.
struct Four {
    w0: W16,
    w1: W16,
    w2: W16,
    w3: W16,
}

// 32 columns of four weight rows.
struct Blocks {
    b0: Block,
    b1: Block,
    b2: Block,
    b3: Block,
}

fn load_blocks(rows: vec4<u32>, block: u32, cols: u32) -> Blocks {
    return Blocks(
        load_block(rows.x, block, cols),
        load_block(rows.y, block, cols),
        load_block(rows.z, block, cols),
        load_block(rows.w, block, cols),
    );
}

fn first_four(b: Blocks) -> Four {
    return Four(first16(b.b0), first16(b.b1), first16(b.b2), first16(b.b3));
}

fn second_four(b: Blocks) -> Four {
    return Four(second16(b.b0), second16(b.b1), second16(b.b2), second16(b.b3));
}

// Sixteen activations of a row, and their sum.
struct X16 {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
    sum: f32,
}

fn load_x(x: Activations, r: u32, c: u32) -> X16 {
    let a = activations4(x, r, c);
    let b = activations4(x, r, c + 4u);
    let e = activations4(x, r, c + 8u);
    let f = activations4(x, r, c + 12u);
    return X16(a, b, e, f, sum16(a, b, e, f));
}

fn products(w: Four, x: X16) -> vec4<f32> {
    return vec4<f32>(
        dot16(w.w0, x.a, x.b, x.c, x.d, x.sum),
        dot16(w.w1, x.a, x.b, x.c, x.d, x.sum),
        dot16(w.w2, x.a, x.b, x.c, x.d, x.sum),
        dot16(w.w3, x.a, x.b, x.c, x.d, x.sum),
    );
}

// Where row `r` of the activations begins; those past the last are the last.
fn x_row(x: Activations, r: u32) -> u32 {
    return x.start + min(r, x.rows - 1u) * x.stride;
}

// Adds the products of sixteen columns from `c` on: for each row of activations those of four weight
// rows; for a single one also those of `more`.
fn add_part(acc: ptr<function, array<vec4<f32>, 8>>, w: Four, more: Four, c: u32, x: Activations) {
    let first = load_x(x, 0u, c);
    (*acc)[0] += products(w, first);
    if ROWS == 1u {
        (*acc)[1] += products(more, first);
    }
    for (var r = 1u; r < ROWS; r++) {
        (*acc)[r] += products(w, load_x(x, r, c));
    }
}

// 32 columns of four weight rows, in bytes.
fn four_bytes(b: Blocks) -> array<Q32, 4> {
    return array<Q32, 4>(packed32(b.b0), packed32(b.b1), packed32(b.b2), packed32(b.b3));
}

fn byte_products(w: array<Q32, 4>, x: X32) -> vec4<f32> {
    return vec4<f32>(dot32(w[0], x), dot32(w[1], x), dot32(w[2], x), dot32(w[3], x));
}

// 32 activations of row `r` from column `c` on, in bytes.
fn load_bytes(x: Activations, r: u32, c: u32) -> X32 {
    var v: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        v[i] = activations4(x, r, c + 4u * i);
    }
    return eight_bits(v);
}

// As `add_part`, of 32 columns with activations in bytes.
fn add_bytes(acc: ptr<function, array<vec4<f32>, 8>>, a: Blocks, b: Blocks, c: u32, x: Activations) {
    let w = four_bytes(a);
    let first = load_bytes(x, 0u, c);
    (*acc)[0] += byte_products(w, first);
    if ROWS == 1u {
        (*acc)[1] += byte_products(four_bytes(b), first);
    }
    for (var r = 1u; r < ROWS; r++) {
        (*acc)[r] += byte_products(w, load_bytes(x, r, c));
    }
}

// Weight rows of a team.
fn team_rows() -> u32 {
    return select(4u, 8u, ROWS == 1u);
}

// Computes the products of the workgroup's weight rows from row `start` of `w` on. All threads of the
// workgroup must call it.
fn multiply(thread: u32, start: u32, w: Rows, x: Activations) {
    let lane = thread % LANES;
    let own = vec4<u32>(start + (thread / LANES) * team_rows()) + vec4<u32>(0u, 1u, 2u, 3u);
    let last = vec4<u32>(w.count - 1u);
    let rows = (vec4<u32>(w.first) + min(own, last)) * w.units;
    let more = (vec4<u32>(w.first) + min(own + vec4<u32>(4u), last)) * w.units;
    var acc: array<vec4<f32>, 8>;
    for (var r = 0u; r < SLOTS; r++) {
        acc[r] = vec4<f32>(0.0);
    }
    for (var block = lane; block * 32u < x.cols; block += LANES) {
        let c = block * 32u;
        let a = load_blocks(rows, block, x.cols);
        var b = a;
        if ROWS == 1u {
            b = load_blocks(more, block, x.cols);
        }
        if EIGHT_BITS == 1u {
            add_bytes(&acc, a, b, c, x);
            continue;
        }
        add_part(&acc, first_four(a), first_four(b), c, x);
        // Columns are padded to 16 only.
        if WHOLE_BLOCKS || c + 16u < x.cols {
            add_part(&acc, second_four(a), second_four(b), c + 16u, x);
        }
    }
    // Results of an earlier call, and sums of norms, are read before.
    workgroupBarrier();
    for (var r = 0u; r < SLOTS; r++) {
        sums[r * WG + thread] = acc[r];
    }
    for (var n = LANES / 2u; n > 0u; n = n / 2u) {
        workgroupBarrier();
        if lane < n {
            for (var r = 0u; r < SLOTS; r++) {
                sums[r * WG + thread] += sums[r * WG + thread + n];
            }
        }
    }
    workgroupBarrier();
}

// The first weight row of result `i` of TEAMS * SLOTS, counted from the workgroup's first one.
fn row_of(i: u32) -> u32 {
    return (i / SLOTS) * team_rows() + select(0u, (i % SLOTS) * 4u, ROWS == 1u);
}

// The row of activations of result `i`.
fn x_row_of(i: u32) -> u32 {
    return select(i % SLOTS, 0u, ROWS == 1u);
}

// Result `i`: of four weight rows.
fn result(i: u32) -> vec4<f32> {
    return sums[(i % SLOTS) * WG + (i / SLOTS) * LANES];
}
