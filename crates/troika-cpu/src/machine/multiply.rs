//! The multiply instructions that kernels use and whose peaks are measured.

/// Ways to multiply: for each its meaning, its name in JSON, what it multiplies with which
/// instructions, for people, and what is counted.
macro_rules! multiply {
    ($($(#[$doc:meta])* $way:ident: $name:literal, $words:literal, $unit:literal;)*) => {
        /// A way to multiply: an instruction and those that accompany it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Multiply {
            $($(#[$doc])* $way,)*
        }

        impl Multiply {
            /// All ways.
            pub const ALL: &[Multiply] = &[$(Multiply::$way),*];

            /// Its name in JSON.
            pub const fn name(self) -> &'static str {
                match self { $(Multiply::$way => $name,)* }
            }

            /// What is multiplied by which instructions, for people.
            pub const fn words(self) -> &'static str {
                match self { $(Multiply::$way => $words,)* }
            }

            /// What is counted: products of floats, or of integers.
            pub const fn unit(self) -> &'static str {
                match self { $(Multiply::$way => $unit,)* }
            }
        }
    };
}

multiply! {
    /// `vfmadd231ps` on 256 bits.
    F32Avx2: "f32_fma_avx2", "f32 with AVX2", "GFLOP/s";
    /// `vpmaddubsw`, `vpmaddwd`, `vpaddd` on 256 bits: bytes to sums of 32 bits.
    Int8Avx2: "int8_maddubs_avx2", "int8 with AVX2", "GOP/s";
    /// The same for signed weights, with `vpxor` before it and sums that start with its correction.
    Int8FlipAvx2: "int8_maddubs_avx2_xor", "int8 with AVX2, both signed", "GOP/s";
    /// Four `vpmaddubsw` summed in 16 bits before widening, on 256 bits: possible if one operand
    /// has few bits.
    Int8SumsAvx2: "int8_maddubs_avx2_i16x4", "int8 with AVX2, summed in 16 bits", "GOP/s";
    /// `vpdpbusd` on 256 bits (AVX-VNNI).
    Int8AvxVnni: "int8_vnni_avx2", "int8 with AVX-VNNI", "GOP/s";
    /// `vfmadd231ps` on 512 bits.
    F32Avx512: "f32_fma_avx512", "f32 with AVX-512", "GFLOP/s";
    /// `vpdpbusd` on 512 bits (AVX-512 VNNI).
    Int8Avx512: "int8_vnni_avx512", "int8 with AVX-512 VNNI", "GOP/s";
    /// `vdpbf16ps` on 512 bits.
    Bf16Avx512: "bf16_avx512", "bf16 with AVX-512", "GFLOP/s";
    /// `tdpbf16ps` on tiles of 16 rows of 32 values.
    Bf16Amx: "bf16_amx", "bf16 with AMX", "GFLOP/s";
    /// `fmla` on 128 bits.
    F32Neon: "f32_fma_neon", "f32 with NEON", "GFLOP/s";
    /// `sdot` on 128 bits.
    Int8Dot: "int8_sdot_neon", "int8 with NEON dot products", "GOP/s";
    /// `smmla` on 128 bits.
    Int8Mmla: "int8_smmla_neon", "int8 with NEON matrix products", "GOP/s";
}
