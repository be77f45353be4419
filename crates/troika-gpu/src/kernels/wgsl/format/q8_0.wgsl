
const SCALED: bool = true;
const MINIMUM: bool = false;

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    return bytes(unit(row + part), half_at(row + cols / 16u, part / 2u), 0.0);
}
