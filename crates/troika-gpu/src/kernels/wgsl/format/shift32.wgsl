
const BY_EIGHT: bool = true;
const SCALE_PARTS: u32 = 2u;
// Eight times -1, 0 and 1: plus one, and with the third bit minus one.
const TABLE: vec4<u32> = vec4<u32>(0x000901f9u, 0x0007fff7u, 0u, 0u);
