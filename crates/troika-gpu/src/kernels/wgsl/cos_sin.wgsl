// Angles of rotations.

// Cosine and sine. Those of WGSL are only exact for small angles: this one takes whole quarter turns
// away in five parts of pi/2, of which the first four have so few bits that products are exact for
// angles below 2^17; polynomials do the rest.
fn cos_sin(angle: f32) -> vec2<f32> {
    let n = round(angle * 0.63661975);
    var r = angle - n * 1.5;
    r = r - n * 0.0703125;
    r = r - n * 0.00048065185546875;
    r = r - n * 0.000003159046173095703;
    r = r - n * 1.5893254712295857e-8;
    let s = r * r;
    let sine = r + r * s * (-0.16666654611 + s * (0.0083321608736 + s * -0.00019515295891));
    let cosine = 1.0 - 0.5 * s
        + s * s * (0.04166664568298827 + s * (-0.001388731625493765 + s * 0.00002443315711809948));
    let quarter = i32(n) & 3;
    var v = select(vec2<f32>(cosine, sine), vec2<f32>(-sine, cosine), (quarter & 1) == 1);
    return select(v, -v, quarter >= 2);
}
