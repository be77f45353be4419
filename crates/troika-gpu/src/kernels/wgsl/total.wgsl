// Sums over a workgroup of WG threads.

// What threads tell each other.
var<workgroup> parts: array<f32, WG>;

// The sum of a number of each thread. All threads of the workgroup must call it.
fn total(thread: u32, own: f32) -> f32 {
    workgroupBarrier();
    parts[thread] = own;
    for (var n = WG / 2u; n > 0u; n = n / 2u) {
        workgroupBarrier();
        if thread < n {
            parts[thread] += parts[thread + n];
        }
    }
    workgroupBarrier();
    return parts[0];
}

