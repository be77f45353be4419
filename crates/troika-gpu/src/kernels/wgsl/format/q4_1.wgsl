
const SCALED: bool = true;
const MINIMUM: bool = true;

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    let block = part / 2u;
    let s = halves_at(row + cols / 32u, block);
    return nibbles(unit(row + block), (part & 1u) * 4u, s.x, s.y);
}
