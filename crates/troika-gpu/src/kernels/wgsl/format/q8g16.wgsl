
const SCALED: bool = true;
const MINIMUM: bool = true;

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let scales = row + cols / 16u;
    let scale = bitcast<f32>(word(scales, 2u * part));
    let minimum = bitcast<f32>(word(scales, 2u * part + 1u));
    return bytes(unit(row + part), scale, -minimum);
}
