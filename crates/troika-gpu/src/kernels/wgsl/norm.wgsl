// Normalises groups of columns: a workgroup takes a group of a row.

override WG: u32 = 256;
// 0: divides by the root mean square. 1: makes it that of a, where eps is the least square. 2: does
// not divide. 3: subtracts the mean and divides by the deviation. 4: subtracts the mean and as many
// deviations as eps says, and what is below 0 becomes 0.
override KIND: u32 = 0;
override WEIGHT: u32 = 1;
override BIAS: u32 = 0;
// Whether another value is added to what is normalised.
override ADD: u32 = 0;

struct Params {
    rows: u32,
    group: u32,
    // Weights from those of one group to those of the next: none, or a group's.
    next: u32,
    eps: f32,
    offset: f32,
    x: u32,
    x_stride: u32,
    a: u32,
    a_stride: u32,
    y: u32,
    y_stride: u32,
}

var<immediate> p: Params;

@group(0) @binding(0) var<storage, read> weight: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;
@group(0) @binding(3) var<storage, read_write> a: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) thread: u32,
    @builtin(workgroup_id) at: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
) {
    let start = at.x * p.group;
    for (var row = at.y; row < p.rows; row += groups.y) {
        let source = p.x + row * p.x_stride + start;
        var own = 0.0;
        for (var i = thread; i < p.group; i += WG) {
            let v = x[source + i];
            own += select(v * v, v, KIND >= 3u);
        }
        var mean = 0.0;
        var square = total(thread, own) / f32(p.group);
        if KIND >= 3u {
            mean = square;
            own = 0.0;
            for (var i = thread; i < p.group; i += WG) {
                let v = x[source + i] - mean;
                own += v * v;
            }
            square = total(thread, own) / f32(p.group);
        }
        var scale = 1.0 / sqrt(square + p.eps);
        if KIND == 1u {
            own = 0.0;
            for (var i = thread; i < p.group; i += WG) {
                let v = a[p.a + row * p.a_stride + start + i];
                own += v * v;
            }
            scale = sqrt(total(thread, own) / f32(p.group) / max(square, p.eps));
        }
        if KIND == 2u || KIND == 4u {
            scale = 1.0;
        }
        if KIND == 4u {
            mean += p.eps * sqrt(square);
        }
        for (var i = thread; i < p.group; i += WG) {
            var v = (x[source + i] - mean) * scale;
            if KIND == 4u {
                v = max(v, 0.0);
            }
            if WEIGHT == 1u {
                v *= p.offset + weight[at.x * p.next + i];
            }
            if BIAS == 1u {
                v += bias[i];
            }
            if ADD == 1u {
                v += a[p.a + row * p.a_stride + start + i];
            }
            y[p.y + row * p.y_stride + start + i] = v;
        }
    }
}
