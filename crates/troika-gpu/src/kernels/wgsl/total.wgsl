// Sums over a workgroup of WG threads.

// What threads tell each other.
var<workgroup> parts: array<f32, WG>;

// The sum of a number of each thread. All threads of the workgroup must call it.
fn total(thread: u32, own: f32) -> f32 {
    workgroupBarrier();
    parts[thread] = own;
    // Sixteen become one.
    for (var n = WG; n > 1u; n = (n + 15u) / 16u) {
        let left = (n + 15u) / 16u;
        workgroupBarrier();
        if thread < left {
            var sum = parts[thread];
            for (var i = left; i < n; i += left) {
                sum += parts[thread + i];
            }
            parts[thread] = sum;
        }
    }
    workgroupBarrier();
    return parts[0];
}
