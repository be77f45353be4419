// Reads units of 16 bytes, as fast as the device can.

struct Params {
    units: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> data: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(global_invocation_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    var all = vec4<u32>(0u);
    for (var i = id.x; i < p.units; i += groups.x * 256u) {
        all ^= data[i];
    }
    // Never so, which a compiler does not know.
    if all.x == 0x9e3779b9u && all.y == 0x7f4a7c15u {
        y[0] = all.z;
    }
}
