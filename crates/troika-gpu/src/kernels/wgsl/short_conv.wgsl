// A short convolution of each column by itself. A thread takes a column of a sequence, whose last
// inputs stay in registers.

override TAPS: u32 = 4;
override BIAS: u32 = 0;
override SILU: u32 = 0;
override GATED: u32 = 0;

const MOST_TAPS: u32 = 16u;

struct Params {
    records: u32,
    rows: u32,
    width: u32,
    x: u32,
    x_stride: u32,
    y: u32,
    y_stride: u32,
}

var<immediate> p: Params;

// The taps of each column, then biases.
@group(0) @binding(0) var<storage, read> weight: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> batch: array<u32>;
@group(0) @binding(3) var<storage, read_write> state: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let col = at.x;
    if col >= p.width {
        return;
    }
    for (var start = at.y; start < p.rows; start += groups.y) {
        let end = start + rows_from(start);
        let before = state_before(start);
        // The oldest first.
        var last: array<f32, MOST_TAPS>;
        for (var t = 0u; t + 1u < TAPS; t++) {
            last[t] = 0.0;
            if before != NONE && end > start {
                last[t] = state[(before * (TAPS - 1u) + t) * p.width + col];
            }
        }
        for (var row = start; row < end; row++) {
            let place = p.x + row * p.x_stride + col;
            var input = x[place];
            if GATED == 1u {
                input *= x[place + 2u * p.width];
            }
            last[TAPS - 1u] = input;
            var sum = 0.0;
            if BIAS == 1u {
                sum = weight[p.width * TAPS + col];
            }
            for (var t = 0u; t < TAPS; t++) {
                sum += weight[col * TAPS + t] * last[t];
            }
            if SILU == 1u {
                sum *= sigmoid(sum);
            }
            if GATED == 1u {
                sum *= x[place + p.width];
            }
            y[p.y + row * p.y_stride + col] = sum;
            let to = kept_in(row);
            for (var t = 0u; t + 1u < TAPS; t++) {
                last[t] = last[t + 1u];
                if to != NONE {
                    state[(to * (TAPS - 1u) + t) * p.width + col] = last[t];
                }
            }
        }
    }
}
