
// Formats of floats: each defines `load16`.

const SCALED: bool = false;
const MINIMUM: bool = false;

fn first16(b: Block) -> W16 {
    return load16(b.row, b.part, b.cols);
}

fn second16(b: Block) -> W16 {
    return load16(b.row, b.part + 1u, b.cols);
}
