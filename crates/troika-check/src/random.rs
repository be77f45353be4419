//! A small generator for cases that must be equal on every machine.

use troika_graph::DType;

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

    /// The bytes of a finite number with magnitude about 1 in a float type; `None` for other types.
    pub fn number(&mut self, dtype: DType) -> Option<Vec<u8>> {
        let float = 2.0 * self.float();
        Some(match dtype {
            DType::F32 => float.to_le_bytes().to_vec(),
            DType::BF16 => float.to_le_bytes()[2..].to_vec(),
            // A normal f16 between 1/16 and 1/4.
            DType::F16 => (0x2c00 + self.below(0x800) as u16).to_le_bytes().to_vec(),
            _ => return None,
        })
    }
}
