
// Formats whose numbers are no bytes: activations in eight bits never meet them.

fn packed16(row: u32, part: u32, cols: u32) -> Q16 {
    return Q16(vec4<u32>(0u), 0.0, 0.0);
}

fn first_packed(b: Block) -> Q16 {
    return Q16(vec4<u32>(0u), 0.0, 0.0);
}

fn second_packed(b: Block) -> Q16 {
    return Q16(vec4<u32>(0u), 0.0, 0.0);
}
