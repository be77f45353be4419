
const SCALED: bool = true;
const SIGNED: bool = false;
const MINIMUM: bool = true;

fn scale_at(start: u32, block: u32) -> vec2<f32> {
    let scale = half_at(start, block);
    return vec2<f32>(scale, -8.0 * scale);
}
