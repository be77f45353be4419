
// Activations anywhere; columns past the end are 0.

// Whether columns are whole blocks of 32.
const WHOLE_BLOCKS: bool = false;

@group(0) @binding(X_BINDING) var<storage, read_write> x: array<f32>;

// Four columns from `col` on of the row that begins at element `row`, of `cols` columns.
fn x4(row: u32, col: u32, cols: u32) -> vec4<f32> {
    let at = row + col;
    var v = vec4<f32>(0.0);
    if col < cols { v.x = x[at]; }
    if col + 1u < cols { v.y = x[at + 1u]; }
    if col + 2u < cols { v.z = x[at + 2u]; }
    if col + 3u < cols { v.w = x[at + 3u]; }
    return v;
}
