
const SCALED: bool = true;
const SIGNED: bool = true;
const MINIMUM: bool = false;

fn scale_at(start: u32, block: u32) -> vec2<f32> {
    return vec2<f32>(half_at(start, block), 0.0);
}
