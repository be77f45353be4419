
// Weights of any format: sixteen at a time. The format's file defines `load_block`: 32 weights, with
// what their halves share read once, of the row that begins at unit `row`; `first_packed` and
// `second_packed`: these halves as bytes; `packed16(row, part, cols)`: weights 16 * part to
// 16 * part + 15; `load16`, `first16` and `second16`: the same as floats; and whether there are scales
// and minima.

// Whether activations are rounded to eight bits, where weights are whole numbers.
override EIGHT_BITS: u32 = 0;

// The weights are `scale * q + minimum`.
struct W16 {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
    scale: f32,
    minimum: f32,
}

// f16 number `i` of those that begin at unit `start`.
fn half_at(start: u32, i: u32) -> f32 {
    let bits = word(start, i / 2u) >> ((i & 1u) * 16u);
    return unpack2x16float(bits & 0xffffu).x;
}

// Pair `i` of f16 numbers of those that begin at unit `start`.
fn halves_at(start: u32, i: u32) -> vec2<f32> {
    return unpack2x16float(word(start, i));
}

fn plain(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> W16 {
    return W16(a, b, c, d, 1.0, 0.0);
}

// Sixteen weights of whole numbers, a byte each: `scale * q + minimum`.
struct Q16 {
    q: vec4<u32>,
    scale: f32,
    minimum: f32,
}

// Sixteen nibbles of a unit: the low ones for shift 0, the high ones for shift 4.
fn nibbles(bits: vec4<u32>, shift: u32, scale: f32, minimum: f32) -> Q16 {
    return Q16((bits >> vec4<u32>(shift)) & vec4<u32>(0x0f0f0f0fu), scale, minimum);
}

// The numbers that four nibbles, in the low halves of bytes, stand for.
fn look_up(nibbles: u32, table: vec4<u32>) -> u32 {
    var numbers = 0u;
    for (var i = 0u; i < 32u; i += 8u) {
        let n = (nibbles >> i) & 15u;
        numbers |= ((table[n / 4u] >> ((n & 3u) * 8u)) & 0xffu) << i;
    }
    return numbers;
}

// Sixteen nibbles of a unit: the low ones for shift 0, the high ones for shift 4.
fn coded(bits: vec4<u32>, shift: u32, table: vec4<u32>, scale: f32) -> Q16 {
    let n = (bits >> vec4<u32>(shift)) & vec4<u32>(0x0f0f0f0fu);
    let numbers = vec4<u32>(
        look_up(n.x, table),
        look_up(n.y, table),
        look_up(n.z, table),
        look_up(n.w, table),
    );
    return Q16(numbers, scale, 0.0);
}

// Four of the weights, of their numbers.
fn weighed(w: W16, q: vec4<f32>) -> vec4<f32> {
    if MINIMUM {
        return w.scale * q + vec4<f32>(w.minimum);
    }
    if SCALED {
        return w.scale * q;
    }
    return q;
}

// Sixteen activations, and their sum, where products need it.
struct X16 {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
    sum: f32,
}

fn summed(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> X16 {
    var sum = 0.0;
    if MINIMUM {
        sum = dot(a + b + (c + d), vec4<f32>(1.0));
    }
    return X16(a, b, c, d, sum);
}

// The product of sixteen weights with activations.
fn dot16(w: W16, x: X16) -> f32 {
    let v = w.a * x.a + w.b * x.b + (w.c * x.c + w.d * x.d);
    let q = v.x + v.y + (v.z + v.w);
    if MINIMUM {
        return w.scale * q + w.minimum * x.sum;
    }
    if SCALED {
        return w.scale * q;
    }
    return q;
}

// 32 activations in bytes, and the sums of their halves' bytes.
struct X32 {
    first: vec4<u32>,
    second: vec4<u32>,
    first_sum: f32,
    second_sum: f32,
    scale: f32,
}

// What 32 activations are multiplied by to become whole numbers, by their largest magnitude. Smaller
// ones become zeros.
fn inverse_byte_scale(largest: f32) -> f32 {
    return select(127.0 / largest, 0.0, largest < 1e-30);
}

// The scale of these whole numbers.
fn byte_scale(largest: f32) -> f32 {
    return select(largest / 127.0, 0.0, largest < 1e-30);
}

fn largest_of(v: vec4<f32>) -> f32 {
    let pairs = max(abs(v.xy), abs(v.zw));
    return max(pairs.x, pairs.y);
}

// Whole numbers between -127 and 127, since `inverse` is of the largest magnitude.
fn whole4(v: vec4<f32>, inverse: f32) -> vec4<f32> {
    return round(v * inverse);
}

fn packed4(v: vec4<f32>, inverse: f32) -> u32 {
    return pack4xI8(vec4<i32>(whole4(v, inverse)));
}

// The sum of sixteen bytes, where products need it.
fn byte_sum(q: vec4<u32>) -> f32 {
    if MINIMUM {
        return f32(byte_dot(q, vec4<u32>(0x01010101u)));
    }
    return 0.0;
}

fn byte_dot(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x)
        + dot4I8Packed(a.y, b.y)
        + (dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w));
}

fn eight_bits(x: array<vec4<f32>, 8>) -> X32 {
    var largest = 0.0;
    for (var i = 0u; i < 8u; i++) {
        largest = max(largest, largest_of(x[i]));
    }
    let inverse = inverse_byte_scale(largest);
    let first = vec4<u32>(
        packed4(x[0], inverse),
        packed4(x[1], inverse),
        packed4(x[2], inverse),
        packed4(x[3], inverse),
    );
    let second = vec4<u32>(
        packed4(x[4], inverse),
        packed4(x[5], inverse),
        packed4(x[6], inverse),
        packed4(x[7], inverse),
    );
    return X32(first, second, byte_sum(first), byte_sum(second), byte_scale(largest));
}

// The product of sixteen weights with bytes, whose sum is `sum`; without the scale of these.
fn dot_bytes(w: Q16, q: vec4<u32>, sum: f32) -> f32 {
    let dots = w.scale * f32(byte_dot(w.q, q));
    if MINIMUM {
        return dots + w.minimum * sum;
    }
    return dots;
}

// 32 weights in bytes.
struct Q32 {
    first: Q16,
    second: Q16,
}

fn packed32(b: Block) -> Q32 {
    return Q32(first_packed(b), second_packed(b));
}

// The product of 32 weights with activations.
fn dot32(w: Q32, x: X32) -> f32 {
    return x.scale
        * (dot_bytes(w.first, x.first, x.first_sum) + dot_bytes(w.second, x.second, x.second_sum));
}

// The product of weights 32 * block to 32 * block + 31 of a row.
fn dot_block(row: u32, block: u32, cols: u32, x: X32) -> f32 {
    return dot32(packed32(load_block(row, block, cols)), x);
}
