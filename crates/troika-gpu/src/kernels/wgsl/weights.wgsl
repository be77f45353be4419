
// Weights of any format: sixteen at a time. The format's file defines
// `fn load16(row: u32, part: u32, cols: u32) -> W16`: weights 16 * part to 16 * part + 15 of the row
// that begins at unit `row`, of `cols` weights; `load_block`, `first16` and `second16`: 32 weights and
// their halves, with what these share read once; and whether its weights have scales and minima.

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

fn low_nibbles(bits: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(bits & 0x0f0f0f0fu));
}

// Sixteen nibbles of a unit: the low ones for shift 0, the high ones for shift 4.
fn nibbles(bits: vec4<u32>, shift: u32, scale: f32, minimum: f32) -> W16 {
    let q = bits >> vec4<u32>(shift);
    return W16(
        low_nibbles(q.x),
        low_nibbles(q.y),
        low_nibbles(q.z),
        low_nibbles(q.w),
        scale,
        minimum,
    );
}

// Sixteen signed bytes.
fn bytes(bits: vec4<u32>, scale: f32, minimum: f32) -> W16 {
    return W16(
        vec4<f32>(unpack4xI8(bits.x)),
        vec4<f32>(unpack4xI8(bits.y)),
        vec4<f32>(unpack4xI8(bits.z)),
        vec4<f32>(unpack4xI8(bits.w)),
        scale,
        minimum,
    );
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

// The sum of sixteen activations, where products need it.
fn sum16(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> f32 {
    if MINIMUM {
        return dot(a + b + (c + d), vec4<f32>(1.0));
    }
    return 0.0;
}

// The product of sixteen weights with activations, whose sum is `sum`.
fn dot16(w: W16, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, sum: f32) -> f32 {
    let v = w.a * a + w.b * b + (w.c * c + w.d * d);
    let q = v.x + v.y + (v.z + v.w);
    if MINIMUM {
        return w.scale * q + w.minimum * sum;
    }
    if SCALED {
        return w.scale * q;
    }
    return q;
}
