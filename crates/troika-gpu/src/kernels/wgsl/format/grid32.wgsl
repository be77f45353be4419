
const BY_EIGHT: bool = false;
const SCALE_PARTS: u32 = 2u;
// The coordinates of IQ2 grids: 8, 25, 43, and with the third bit less than zero.
const TABLE: vec4<u32> = vec4<u32>(0x002b1908u, 0x00d5e7f8u, 0u, 0u);
