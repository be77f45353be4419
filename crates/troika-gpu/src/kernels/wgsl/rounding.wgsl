// Rounding to two-byte floats: to nearest, ties to even, whatever the device's own conversions do.

fn bf16_bits(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    if (bits & 0x7fffffffu) > 0x7f800000u {
        // NaN stays NaN.
        return (bits >> 16u) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

fn f16_bits(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let negative = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u {
        return negative | 0x7e00u | ((magnitude >> 13u) & 0x3ffu);
    }
    if magnitude >= 0x477ff000u {
        // 65520 and above.
        return negative | 0x7c00u;
    }
    if magnitude >= 0x38800000u {
        // Normal numbers: the exponent's bias changes from 127 to 15.
        let m = magnitude - 0x38000000u;
        return negative | ((m + 0xfffu + ((m >> 13u) & 1u)) >> 13u);
    }
    if magnitude < 0x33000000u {
        return negative;
    }
    // Numbers of 2^-24: 24 bits, shifted right by 126 - exponent, at least 14.
    let shift = 126u - (magnitude >> 23u);
    let m = (magnitude & 0x7fffffu) | 0x800000u;
    let half = 1u << (shift - 1u);
    return negative | ((m + half - 1u + ((m >> shift) & 1u)) >> shift);
}

// Whether f16 makes a finite number infinite.
fn is_beyond(v: f32) -> bool {
    let magnitude = bitcast<u32>(v) & 0x7fffffffu;
    return magnitude >= 0x477ff000u && magnitude < 0x7f800000u;
}

fn widened(word: u32, upper: bool, is_f16: bool) -> f32 {
    let bits = select(word & 0xffffu, word >> 16u, upper);
    if is_f16 {
        return unpack2x16float(bits).x;
    }
    return bitcast<f32>(bits << 16u);
}
