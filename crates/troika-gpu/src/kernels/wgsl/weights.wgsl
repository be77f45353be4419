
// Weights of any format: sixteen at a time. The format's file defines
// `fn load16(row: u32, part: u32, cols: u32) -> W16`: weights 16 * part to 16 * part + 15 of the row
// that begins at unit `row`, of `cols` weights. `fn unit(i: u32)` reads 16 bytes.

struct W16 {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

// Half `i` of the halves that begin at unit `from`, as bits.
fn half_bits(source: u32, i: u32) -> u32 {
    let word = unit(source + (i >> 3u))[(i >> 1u) & 3u];
    return (word >> ((i & 1u) * 16u)) & 0xffffu;
}

// f16 number `i` of those that begin at unit `from`.
fn half_at(source: u32, i: u32) -> f32 {
    return unpack2x16float(half_bits(source, i)).x;
}

// Pair `i` of f16 numbers of those that begin at unit `from`.
fn halves_at(source: u32, i: u32) -> vec2<f32> {
    return unpack2x16float(unit(source + (i >> 2u))[i & 3u]);
}

fn low_nibbles(word: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu));
}

fn signed_bytes(word: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(word));
}

// Sixteen nibbles of a unit: the low ones for shift 0, the high ones for shift 4.
fn nibbles(word4: vec4<u32>, shift: u32) -> W16 {
    let q = word4 >> vec4<u32>(shift);
    return W16(low_nibbles(q.x), low_nibbles(q.y), low_nibbles(q.z), low_nibbles(q.w));
}

fn bytes(word4: vec4<u32>) -> W16 {
    return W16(signed_bytes(word4.x), signed_bytes(word4.y), signed_bytes(word4.z), signed_bytes(word4.w));
}

// `scale * q + minimum`.
fn affine(q: W16, scale: f32, minimum: f32) -> W16 {
    let m = vec4<f32>(minimum);
    return W16(scale * q.a + m, scale * q.b + m, scale * q.c + m, scale * q.d + m);
}

// `scale * (q - zero)`.
fn centred(q: W16, scale: f32, zero: f32) -> W16 {
    let z = vec4<f32>(zero);
    return W16(scale * (q.a - z), scale * (q.b - z), scale * (q.c - z), scale * (q.d - z));
}
