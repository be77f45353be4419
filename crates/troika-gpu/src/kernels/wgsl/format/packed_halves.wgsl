
fn first_packed(b: Block) -> Q16 {
    return packed16(b.row, b.part, b.cols);
}

fn second_packed(b: Block) -> Q16 {
    return packed16(b.row, b.part + 1u, b.cols);
}
