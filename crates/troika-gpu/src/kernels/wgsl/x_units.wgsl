
// Activations whose rows begin at whole units of four, and that are read in steps of 32 columns.

// Whether columns are whole blocks of 32.
const WHOLE_BLOCKS: bool = true;

@group(0) @binding(X_BINDING) var<storage, read_write> x: array<vec4<f32>>;

// Four columns from `col` on of the row that begins at element `row`, of `cols` columns.
fn x4(row: u32, col: u32, cols: u32) -> vec4<f32> {
    return x[(row + col) / 4u];
}
