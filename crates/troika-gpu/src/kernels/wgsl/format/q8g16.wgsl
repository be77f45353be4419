
const SCALED: bool = true;
const SIGNED: bool = true;
const MINIMUM: bool = true;

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    let scales = row + cols / 16u;
    let scale = bitcast<f32>(word(scales, 2u * part));
    let minimum = bitcast<f32>(word(scales, 2u * part + 1u));
    return Q16(unit(row + part), scale, -minimum);
}
