//! Codes, scales and zero points in the layouts of checkpoints.

use std::ops::Range;

use half::{bf16, f16};
use troika_device::WeightBytes;

/// The place of each of eight outputs in AWQ's int32.
const AWQ_PLACE: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// The numbers of four bits with two of exponent and one of mantissa.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// What a code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// A whole number of 0 or more.
    Unsigned = 0,
    /// A whole number of eight bits.
    Signed = 1,
    /// A float with four bits of exponent and three of mantissa, without infinities.
    E4M3 = 2,
    /// A float with two bits of exponent and one of mantissa.
    E2M1 = 3,
}

pub(crate) struct Levels(pub [f32; 256]);

impl Number {
    /// The numbers of all codes.
    pub fn levels(self) -> Levels {
        Levels(std::array::from_fn(|code| {
            let sign = |bit: usize| if code & bit == 0 { 1.0 } else { -1.0 };
            match self {
                Number::Unsigned => code as f32,
                Number::Signed => f32::from(code as u8 as i8),
                Number::E2M1 => sign(8) * E2M1[code & 7],
                Number::E4M3 => {
                    let (exponent, mantissa) = (code >> 3 & 15, (code & 7) as f32);
                    match (exponent, code & 7) {
                        (15, 7) => f32::NAN,
                        (0, _) => sign(128) * mantissa / 512.0,
                        _ => sign(128) * (8.0 + mantissa) * 2f32.powi(exponent as i32 - 10),
                    }
                }
            }
        }))
    }
}

/// How the codes of a matrix lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Output after output.
    Rows = 0,
    /// In int32s of adjacent inputs, those of all outputs side by side.
    Inputs = 1,
    /// Input after input, eight outputs in AWQ's order.
    Awq = 2,
}

#[derive(Clone, Debug)]
pub(crate) struct Codes {
    pub bytes: WeightBytes,
    /// Four or eight.
    pub bits: usize,
    pub order: Order,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
}

/// The int32 at a place.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(4 * at..4 * at + 4).and_then(|b| b.first_chunk());
    four.map_or(0, |b| u32::from_le_bytes(*b))
}

/// The code at a place, lowest bits first.
fn code(bytes: &[u8], bits: usize, at: usize) -> u8 {
    let byte = bytes.get(at * bits / 8).copied().unwrap_or(0);
    (byte >> (at * bits % 8)) & (255 >> (8 - bits))
}

impl Codes {
    /// Some rows of codes that lie output after output.
    pub fn part(&self, rows: Range<usize>) -> Option<Codes> {
        let row = self.k * self.bits / 8;
        let bytes = self.bytes.slice(rows.start * row..rows.end * row)?;
        Some(Codes { bytes, n: rows.len(), ..self.clone() })
    }

    /// The codes of some outputs, a byte each, output after output.
    pub fn unpacked(&self, outputs: &[usize]) -> Vec<u8> {
        let mut all = vec![0; outputs.len() * self.k];
        match self.order {
            Order::Rows => {
                let row = self.k * self.bits / 8;
                for (n, out) in outputs.iter().zip(all.chunks_exact_mut(self.k.max(1))) {
                    let from = self.bytes.get(n * row..(n + 1) * row).unwrap_or_default();
                    if self.bits == 8 {
                        out[..from.len()].copy_from_slice(from);
                        continue;
                    }
                    for (byte, pair) in from.iter().zip(out.as_chunks_mut::<2>().0) {
                        *pair = [byte & 15, byte >> 4];
                    }
                }
            }
            Order::Inputs => {
                let pack = 32 / self.bits;
                for first in (0..self.k).step_by(pack) {
                    for (row, n) in outputs.iter().enumerate() {
                        let word = word(&self.bytes, first / pack * self.n + n).to_le_bytes();
                        let out = &mut all[row * self.k + first..][..pack];
                        out.iter_mut()
                            .enumerate()
                            .for_each(|(i, o)| *o = code(&word, self.bits, i));
                    }
                }
            }
            Order::Awq => {
                for k in 0..self.k {
                    for (row, n) in outputs.iter().enumerate() {
                        all[row * self.k + k] =
                            code(&self.bytes, 4, k * self.n + n / 8 * 8 + AWQ_PLACE[n % 8]);
                    }
                }
            }
        }
        all
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleKind {
    F32,
    F16,
    BF16,
    /// A power of two.
    E8M0,
}

/// Where the numbers of outputs and groups lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    /// Outputs that share a number, or a word.
    pub share: usize,
    /// From those outputs to the next.
    pub row: usize,
    /// From a group to the next.
    pub group: usize,
}

impl Steps {
    fn place(self, n: usize, g: usize) -> usize {
        n / self.share * self.row + g * self.group
    }
}

/// Numbers of outputs and groups.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub kind: ScaleKind,
    pub bytes: WeightBytes,
    pub steps: Steps,
}

impl Grid {
    /// The number; NaN if there is none.
    pub fn at(&self, n: usize, g: usize) -> f32 {
        let at = self.steps.place(n, g);
        let two = || self.bytes.get(2 * at..2 * at + 2).and_then(|b| b.first_chunk().copied());
        match self.kind {
            ScaleKind::F32 if self.bytes.len() < 4 * at + 4 => f32::NAN,
            ScaleKind::F32 => f32::from_bits(word(&self.bytes, at)),
            ScaleKind::F16 => two().map_or(f32::NAN, |b| f16::from_le_bytes(b).to_f32()),
            ScaleKind::BF16 => two().map_or(f32::NAN, |b| bf16::from_le_bytes(b).to_f32()),
            ScaleKind::E8M0 => match self.byte(n, g) {
                255 => f32::NAN,
                0 => f32::from_bits(1 << 22),
                e => f32::from_bits(u32::from(e) << 23),
            },
        }
    }

    /// The byte of an exponent.
    pub fn byte(&self, n: usize, g: usize) -> u8 {
        self.bytes.get(self.steps.place(n, g)).copied().unwrap_or(255)
    }

    /// The numbers of some outputs, of which each has its own.
    pub fn part(&self, rows: Range<usize>) -> Option<Grid> {
        let item = match self.kind {
            ScaleKind::F32 => 4,
            ScaleKind::F16 | ScaleKind::BF16 => 2,
            ScaleKind::E8M0 => 1,
        };
        let row = self.steps.row * item;
        // One for all of them stays.
        let all = if row == 0 { 0..self.bytes.len() } else { rows.start * row..rows.end * row };
        Some(Grid { bytes: self.bytes.slice(all)?, ..self.clone() })
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ZeroCodes {
    pub bytes: WeightBytes,
    pub bits: usize,
    pub steps: Steps,
    /// Whether outputs are in AWQ's order.
    pub awq: bool,
    /// Whether they are stored minus one.
    pub less_one: bool,
}

/// What is subtracted from numbers, or added to values.
#[derive(Clone, Debug)]
pub(crate) enum Zeros {
    /// The same of all numbers.
    Fixed(u8),
    /// One for each output and group.
    Codes(ZeroCodes),
    /// Numbers that are added to the values of a group.
    Biases(Grid),
}

impl Zeros {
    /// What is subtracted from a code.
    pub fn at(&self, n: usize, g: usize) -> u8 {
        match self {
            Zeros::Fixed(zero) => *zero,
            Zeros::Codes(z) => {
                let inside = n % z.steps.share;
                let inside = if z.awq { AWQ_PLACE[inside] } else { inside };
                let stored = code(&z.bytes, z.bits, z.steps.place(n, g) + inside);
                // Zero less one was stored as the largest code.
                stored.wrapping_add(u8::from(z.less_one)) & (255 >> (8 - z.bits))
            }
            Zeros::Biases(_) => 0,
        }
    }

    /// Their bytes.
    pub fn bytes(&self) -> Option<&WeightBytes> {
        match self {
            Zeros::Fixed(_) => None,
            Zeros::Codes(ZeroCodes { bytes, .. }) | Zeros::Biases(Grid { bytes, .. }) => {
                Some(bytes)
            }
        }
    }
}
