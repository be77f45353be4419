// Places of f32 numbers in their order, by their bits: a larger number has a larger one. Both zeros
// share one, and what is no number that of minus infinity. None is 0.
fn rank(bits: u32) -> u32 {
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u {
        return 0x007fffffu;
    }
    if size == 0u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits != size);
}

// The bits of a number by its place; those of minus infinity for 0.
fn bits_of(rank: u32) -> u32 {
    if rank < 0x007fffffu {
        return 0xff800000u;
    }
    return select(~rank, rank & 0x7fffffffu, rank >= 0x80000000u);
}
