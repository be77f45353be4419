
// Formats of whole numbers. Each defines `packed16`, `first_packed` and `second_packed`, with the
// numbers in bytes, and whether these have a sign.

fn widened4(q: u32) -> vec4<f32> {
    if SIGNED {
        return vec4<f32>(unpack4xI8(q));
    }
    return vec4<f32>(unpack4xU8(q));
}

fn widened(w: Q16) -> W16 {
    return W16(
        widened4(w.q.x),
        widened4(w.q.y),
        widened4(w.q.z),
        widened4(w.q.w),
        w.scale,
        w.minimum,
    );
}

fn load16(row: u32, part: u32, cols: u32) -> W16 {
    return widened(packed16(row, part, cols));
}

fn first16(b: Block) -> W16 {
    return widened(first_packed(b));
}

fn second16(b: Block) -> W16 {
    return widened(second_packed(b));
}
