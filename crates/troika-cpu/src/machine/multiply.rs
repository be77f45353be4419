//! The multiply instructions that kernels use and whose peaks are measured.

/// A way to multiply: an instruction and those that accompany it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Multiply {
    /// `vfmadd231ps` on 256 bits.
    F32Avx2,
    /// `vpmaddubsw`, `vpmaddwd`, `vpaddd` on 256 bits: bytes to sums of 32 bits.
    Int8Avx2,
    /// The same for signed weights, with `vpsignb` before it.
    Int8SignAvx2,
    /// The same for signed weights, with `vpxor` before it and sums that start with its correction.
    Int8FlipAvx2,
    /// Four `vpmaddubsw` summed in 16 bits before widening, on 256 bits: possible if one operand
    /// has few bits.
    Int8SumsAvx2,
    /// `vpmaddwd`, `vpaddd` on 256 bits: words to sums of 32 bits.
    Int16Avx2,
    /// `vpdpbusd` on 256 bits (AVX-VNNI).
    Int8AvxVnni,
    /// `vfmadd231ps` on 512 bits.
    F32Avx512,
    /// `vpdpbusd` on 512 bits (AVX-512 VNNI).
    Int8Avx512,
    /// `vdpbf16ps` on 512 bits.
    Bf16Avx512,
    /// `tdpbssd` on tiles of 16 rows of 64 bytes.
    Int8Amx,
    /// `tdpbf16ps` on tiles of 16 rows of 32 values.
    Bf16Amx,
    /// `fmla` on 128 bits.
    F32Neon,
    /// `sdot` on 128 bits.
    Int8Dot,
    /// `smmla` on 128 bits.
    Int8Mmla,
}

impl Multiply {
    /// All ways.
    pub const ALL: [Multiply; 15] = [
        Multiply::F32Avx2,
        Multiply::Int8Avx2,
        Multiply::Int8SignAvx2,
        Multiply::Int8FlipAvx2,
        Multiply::Int8SumsAvx2,
        Multiply::Int16Avx2,
        Multiply::Int8AvxVnni,
        Multiply::F32Avx512,
        Multiply::Int8Avx512,
        Multiply::Bf16Avx512,
        Multiply::Int8Amx,
        Multiply::Bf16Amx,
        Multiply::F32Neon,
        Multiply::Int8Dot,
        Multiply::Int8Mmla,
    ];

    /// Its name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Multiply::F32Avx2 => "f32_fma_avx2",
            Multiply::Int8Avx2 => "int8_maddubs_avx2",
            Multiply::Int8SignAvx2 => "int8_maddubs_avx2_sign",
            Multiply::Int8FlipAvx2 => "int8_maddubs_avx2_xor",
            Multiply::Int8SumsAvx2 => "int8_maddubs_avx2_i16x4",
            Multiply::Int16Avx2 => "int16_maddwd_avx2",
            Multiply::Int8AvxVnni => "int8_vnni_avx2",
            Multiply::F32Avx512 => "f32_fma_avx512",
            Multiply::Int8Avx512 => "int8_vnni_avx512",
            Multiply::Bf16Avx512 => "bf16_avx512",
            Multiply::Int8Amx => "int8_amx",
            Multiply::Bf16Amx => "bf16_amx",
            Multiply::F32Neon => "f32_fma_neon",
            Multiply::Int8Dot => "int8_sdot_neon",
            Multiply::Int8Mmla => "int8_smmla_neon",
        }
    }

    /// What is multiplied by which instructions, for people.
    pub const fn words(self) -> &'static str {
        match self {
            Multiply::F32Avx2 => "f32 with AVX2",
            Multiply::Int8Avx2 | Multiply::Int8SignAvx2 | Multiply::Int8FlipAvx2 => {
                "int8 with AVX2"
            }
            Multiply::Int8SumsAvx2 => "int8 with AVX2, summed in 16 bits",
            Multiply::Int16Avx2 => "int16 with AVX2",
            Multiply::Int8AvxVnni => "int8 with AVX-VNNI",
            Multiply::F32Avx512 => "f32 with AVX-512",
            Multiply::Int8Avx512 => "int8 with AVX-512 VNNI",
            Multiply::Bf16Avx512 => "bf16 with AVX-512",
            Multiply::Int8Amx => "int8 with AMX",
            Multiply::Bf16Amx => "bf16 with AMX",
            Multiply::F32Neon => "f32 with NEON",
            Multiply::Int8Dot => "int8 with NEON dot products",
            Multiply::Int8Mmla => "int8 with NEON matrix products",
        }
    }

    /// What is counted: products of floats, or of integers.
    pub const fn unit(self) -> &'static str {
        match self {
            Multiply::F32Avx2
            | Multiply::F32Avx512
            | Multiply::Bf16Avx512
            | Multiply::Bf16Amx
            | Multiply::F32Neon => "GFLOP/s",
            _ => "GOP/s",
        }
    }
}
