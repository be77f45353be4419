// Multiplies and adds floats in registers, as fast as the device can.

struct Params {
    passes: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let factor = vec4<f32>(0.999 + f32(id.x) * 1e-12);
    let more = vec4<f32>(f32(id.x));
    var a = more;
    var b = more;
    var c = more;
    var d = more;
    for (var i = 0u; i < p.passes; i++) {
        for (var n = 0u; n < 16u; n++) {
            a = fma(a, factor, more);
            b = fma(b, factor, more);
            c = fma(c, factor, more);
            d = fma(d, factor, more);
        }
    }
    let all = a + b + c + d;
    // Never so, which a compiler does not know.
    if all.x == -1.0 {
        y[0] = all.y;
    }
}
