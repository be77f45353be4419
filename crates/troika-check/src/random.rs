//! A small generator for cases that must be equal on every machine.

use half::{bf16, f16};
use troika_graph::{DType, blocks};

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// One of 4001 numbers from -1 to 1.
    pub fn float(&mut self) -> f32 {
        (self.below(4001) as f32 - 2000.0) / 2000.0
    }

    /// A random element of a list.
    pub fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    /// `true` once in `n` times on average.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Some elements of a plain type, or bytes of blocks that give small numbers.
    pub fn bytes(&mut self, dtype: DType, len: usize) -> Vec<u8> {
        let mut all = Vec::with_capacity(len);
        while all.len() < len {
            let float = self.float();
            match dtype {
                DType::F32 => all.extend(float.to_le_bytes()),
                DType::F16 => all.extend(f16::from_f32(float).to_le_bytes()),
                DType::BF16 => all.extend(bf16::from_f32(float).to_le_bytes()),
                _ => all.push(self.bits() as u8),
            }
        }
        if dtype.is_quantized() {
            blocks::set_scales(dtype, &mut all, 0.05);
        }
        all
    }
}
