
const SCALED: bool = true;
const SIGNED: bool = false;
const MINIMUM: bool = true;

fn scale_at(start: u32, block: u32) -> vec2<f32> {
    return halves_at(start, block);
}
