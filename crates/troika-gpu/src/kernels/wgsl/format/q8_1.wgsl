
const SCALED: bool = true;
const MINIMUM: bool = true;

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let s = halves_at(row + cols / 16u, part / 2u);
    return bytes(unit(row + part), s.x, s.y);
}
