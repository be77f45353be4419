
// Products of weight rows with a few rows of activations, in a workgroup: each weight is read once.
// A team of LANES threads takes four weight rows; a thread takes 32 of their columns at a time.
// Activations in bytes are made once by the whole workgroup, and kept in its memory.

// Units of workgroup memory. From the first one on, activations in bytes: three units for 32 of them.
// At the end, sums of each thread for four weight rows, for each row of activations. If there are
// several rounds, both have room.
const POOL: u32 = 896u;
var<workgroup> pool: array<vec4<u32>, POOL>;
// The largest magnitude of each thread's half of 32 activations.
var<workgroup> largests: array<f32, WG>;

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

// 32 columns of four rows of each weight that is multiplied at once.
struct Loaded {
    own: Blocks,
    other: Blocks,
}

// Sums for four weight rows, for each row of activations.
struct Sums {
    own: array<vec4<f32>, 8>,
    other: array<vec4<f32>, 8>,
}

fn load_blocks(rows: vec4<u32>, block: u32, cols: u32) -> Blocks {
    return Blocks(
        load_block(rows.x, block, cols),
        load_block(rows.y, block, cols),
        load_block(rows.z, block, cols),
        load_block(rows.w, block, cols),
    );
}

fn load_all(rows: vec4<u32>, block: u32, cols: u32) -> Loaded {
    var all: Loaded;
    if PAIR {
        take_other(true);
        all.other = load_blocks(rows, block, cols);
        take_other(false);
    }
    all.own = load_blocks(rows, block, cols);
    return all;
}

fn first_four(b: Blocks) -> Four {
    return Four(first16(b.b0), first16(b.b1), first16(b.b2), first16(b.b3));
}

fn second_four(b: Blocks) -> Four {
    return Four(second16(b.b0), second16(b.b1), second16(b.b2), second16(b.b3));
}

fn load_x(x: Activations, r: u32, c: u32) -> X16 {
    return summed(
        activations4(x, r, c),
        activations4(x, r, c + 4u),
        activations4(x, r, c + 8u),
        activations4(x, r, c + 12u),
    );
}

fn products(w: Four, x: X16) -> vec4<f32> {
    return vec4<f32>(dot16(w.w0, x), dot16(w.w1, x), dot16(w.w2, x), dot16(w.w3, x));
}

// Where row `r` of the activations begins; those past the last are the last.
fn x_row(x: Activations, r: u32) -> u32 {
    return x.start + min(r, x.rows - 1u) * x.stride;
}

// Adds the products of sixteen columns from `c` on, for each row of activations.
fn add_part(sums: ptr<function, array<vec4<f32>, 8>>, w: Four, c: u32, x: Activations) {
    for (var r = 0u; r < ROWS; r++) {
        (*sums)[r] += products(w, load_x(x, r, c));
    }
}

// The products of all columns with activations in f32.
fn add_floats(
    own: ptr<function, array<vec4<f32>, 8>>,
    other: ptr<function, array<vec4<f32>, 8>>,
    lane: u32,
    rows: vec4<u32>,
    x: Activations,
) {
    for (var block = lane; block * 32u < x.cols; block += LANES) {
        let c = block * 32u;
        let w = load_all(rows, block, x.cols);
        add_part(own, first_four(w.own), c, x);
        if PAIR {
            take_other(true);
            add_part(other, first_four(w.other), c, x);
            take_other(false);
        }
        // Columns are padded to 16 only.
        if WHOLE_BLOCKS || c + 16u < x.cols {
            add_part(own, second_four(w.own), c + 16u, x);
            if PAIR {
                take_other(true);
                add_part(other, second_four(w.other), c + 16u, x);
                take_other(false);
            }
        }
    }
}

// 32 columns of four weight rows, in bytes.
fn four_bytes(b: Blocks) -> array<Q32, 4> {
    return array<Q32, 4>(packed32(b.b0), packed32(b.b1), packed32(b.b2), packed32(b.b3));
}

fn byte_products(w: array<Q32, 4>, x: X32) -> vec4<f32> {
    return vec4<f32>(dot32(w[0], x), dot32(w[1], x), dot32(w[2], x), dot32(w[3], x));
}

// The most blocks of 32 columns of a row that are in the workgroup's memory at once: whole rounds of
// a team.
fn most_blocks() -> u32 {
    return 288u / ROWS / 32u * 32u;
}

// Puts half `i` of the blocks that are made into the workgroup's memory, in bytes. Two neighbours
// make the halves of a block. All threads of the workgroup must call it; those that are not `inside`
// have none.
fn put_half(thread: u32, i: u32, v: array<vec4<f32>, 4>, inside: bool) {
    let pairs = max(max(abs(v[0]), abs(v[1])), max(abs(v[2]), abs(v[3])));
    let own = max(max(pairs.x, pairs.y), max(pairs.z, pairs.w));
    largests[thread] = own;
    workgroupBarrier();
    let largest = max(own, largests[thread ^ 1u]);
    let inverse = inverse_byte_scale(largest);
    let q = vec4<u32>(
        packed4(v[0], inverse),
        packed4(v[1], inverse),
        packed4(v[2], inverse),
        packed4(v[3], inverse),
    );
    if !inside {
        return;
    }
    let at = 3u * (i / 2u);
    if (i & 1u) == 0u {
        pool[at] = q;
        pool[at + 2u].x = bitcast<u32>(byte_scale(largest));
        pool[at + 2u].y = bitcast<u32>(byte_sum(q));
    } else {
        pool[at + 1u] = q;
        pool[at + 2u].z = bitcast<u32>(byte_sum(q));
    }
}

// Makes blocks `first` to `end - 1` of all rows of activations.
fn make_bytes(thread: u32, x: Activations, first: u32, end: u32) {
    let count = end - first;
    let halves = ROWS * count * 2u;
    for (var start = 0u; start < halves; start += WG) {
        let i = start + thread;
        let inside = i < halves;
        let r = select(i / 2u / count, 0u, ROWS == 1u);
        let c = (first + i / 2u - r * count) * 32u + (i & 1u) * 16u;
        var v: array<vec4<f32>, 4>;
        for (var n = 0u; inside && n < 4u; n++) {
            v[n] = activations4(x, r, c + 4u * n);
        }
        put_half(thread, i, v, inside);
        // The next round replaces magnitudes.
        workgroupBarrier();
    }
}

// Makes all blocks of a single row that are at most one half a thread. Activations and the norm's
// weights are fetched once, at the same time.
fn make_once(thread: u32, x: Activations) {
    let c = thread * 16u;
    let inside = c < x.cols;
    var v: array<vec4<f32>, 4>;
    var w: array<vec4<f32>, 4>;
    if inside {
        for (var n = 0u; n < 4u; n++) {
            v[n] = x4(x.start, c + 4u * n, x.cols);
        }
        if NORM > 0u {
            for (var n = 0u; n < 4u; n++) {
                w[n] = p.norm_offset + vectors4(0u, c + 4u * n, x.cols);
            }
        }
    }
    if NORM > 0u {
        var own: array<f32, 8>;
        own[0] = dot(v[0] * v[0] + v[1] * v[1] + (v[2] * v[2] + v[3] * v[3]), vec4<f32>(1.0));
        add_up(thread, &own);
        let factor = 1.0 / sqrt(added(0u) / f32(x.cols) + p.eps);
        if thread == 0u {
            measured[0] = vec2<f32>(0.0, factor);
        }
        for (var n = 0u; n < 4u; n++) {
            v[n] = v[n] * factor * w[n];
        }
    }
    // All have read what was added up.
    workgroupBarrier();
    put_half(thread, thread, v, inside);
    workgroupBarrier();
}

// Block `i` of those that were made.
fn bytes_at(i: u32) -> X32 {
    let numbers = bitcast<vec4<f32>>(pool[3u * i + 2u]);
    return X32(pool[3u * i], pool[3u * i + 1u], numbers.y, numbers.z, numbers.x);
}

// Adds the products of a block: number `at` of `count` that were made of each row.
fn add_bytes(
    own: ptr<function, array<vec4<f32>, 8>>,
    other: ptr<function, array<vec4<f32>, 8>>,
    loaded: Loaded,
    at: u32,
    count: u32,
) {
    let w = four_bytes(loaded.own);
    for (var r = 0u; r < ROWS; r++) {
        (*own)[r] += byte_products(w, bytes_at(r * count + at));
    }
    if PAIR {
        take_other(true);
        let v = four_bytes(loaded.other);
        for (var r = 0u; r < ROWS; r++) {
            (*other)[r] += byte_products(v, bytes_at(r * count + at));
        }
        take_other(false);
    }
}

// The products of all columns with activations in bytes. Weights are on their way while the
// workgroup waits for activations, and one round before they are needed.
fn add_all_bytes(
    own: ptr<function, array<vec4<f32>, 8>>,
    other: ptr<function, array<vec4<f32>, 8>>,
    thread: u32,
    rows: vec4<u32>,
    x: Activations,
    made: bool,
) {
    let lane = thread % LANES;
    let blocks = (x.cols + 31u) / 32u;
    var now = load_all(rows, min(lane, blocks - 1u), x.cols);
    let once = ROWS == 1u && NORM <= 1u && 2u * blocks <= WG;
    if once && !made {
        make_once(thread, x);
    } else if !made {
        measure(thread, x);
    }
    for (var first = 0u; first < blocks; first += most_blocks()) {
        let end = min(first + most_blocks(), blocks);
        if !made && !once {
            // All have read what was there before.
            workgroupBarrier();
            make_bytes(thread, x, first, end);
        }
        for (var block = first + lane; block < end; block += LANES) {
            var next = now;
            if block + LANES < blocks {
                next = load_all(rows, block + LANES, x.cols);
            }
            add_bytes(own, other, now, block - first, end - first);
            now = next;
        }
    }
}

// Weight rows of a team.
const TEAM_ROWS: u32 = 4u;

// The first weight row of a round of a workgroup.
fn round_start(group: u32, round: u32) -> u32 {
    return (group * ROUNDS + round) * TEAMS * TEAM_ROWS;
}

// Each thread's part of the products of the workgroup's weight rows from row `start` of `w` on.
// `made`: in an earlier round activations were normalised and made bytes. All threads of the
// workgroup must call it.
fn multiply(thread: u32, start: u32, w: Rows, x: Activations, made: bool) -> Sums {
    let lane = thread % LANES;
    let own = vec4<u32>(start + (thread / LANES) * TEAM_ROWS) + vec4<u32>(0u, 1u, 2u, 3u);
    let rows = (vec4<u32>(w.first) + min(own, vec4<u32>(w.count - 1u))) * w.units;
    var sums: array<vec4<f32>, 8>;
    var others: array<vec4<f32>, 8>;
    for (var r = 0u; r < ROWS; r++) {
        sums[r] = vec4<f32>(0.0);
        others[r] = vec4<f32>(0.0);
    }
    if EIGHT_BITS == 1u {
        add_all_bytes(&sums, &others, thread, rows, x, made);
    } else {
        if !made {
            measure(thread, x);
        }
        add_floats(&sums, &others, lane, rows, x);
    }
    return Sums(sums, others);
}

// Adds up the sums of a team's threads. All threads of the workgroup must call it.
fn gather(thread: u32, sums: array<vec4<f32>, 8>) {
    let first = POOL - ROWS * WG;
    let lane = thread % LANES;
    var own = sums;
    // What was there before was read by all.
    workgroupBarrier();
    for (var r = 0u; r < ROWS; r++) {
        pool[first + r * WG + thread] = bitcast<vec4<u32>>(own[r]);
    }
    // Sixteen become one.
    for (var n = LANES; n > 1u; n = (n + 15u) / 16u) {
        let left = (n + 15u) / 16u;
        workgroupBarrier();
        for (var r = 0u; lane < left && r < ROWS; r++) {
            let at = first + r * WG + thread;
            var sum = bitcast<vec4<f32>>(pool[at]);
            for (var i = left; i < n; i += left) {
                sum += bitcast<vec4<f32>>(pool[at + i]);
            }
            pool[at] = bitcast<vec4<u32>>(sum);
        }
    }
    workgroupBarrier();
}

// The first weight row of result `i` of TEAMS * ROWS, counted from the workgroup's first one.
fn row_of(i: u32) -> u32 {
    return (i / ROWS) * TEAM_ROWS;
}

// The row of activations of result `i`.
fn x_row_of(i: u32) -> u32 {
    return i % ROWS;
}

// Result `i`: of four weight rows.
fn result(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(pool[POOL - ROWS * WG + (i % ROWS) * WG + (i / ROWS) * LANES]);
}
