//! What a product takes its inputs as.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The format of a product's activations. Files have its text, as in `f32` and `int8:row`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ActivationFormat {
    /// Single precision.
    #[default]
    F32,
    /// Rounded to the nearest bf16, with sums in f32. Weights (keys and values) are BF16.
    Bf16,
    /// Halves: activations, weights and results are rounded to f16. How exact sums are is up to the
    /// device.
    F16,
    /// The same, with weights of four bits that share a scale in each row
    /// ([`crate::quantize::row_int4`]).
    F16Int4,
    /// Whole numbers, with exact sums of those that share a scale. Weights are
    /// [quantized](crate::DType::is_quantized).
    Int(IntFormat),
}

/// How whole numbers stand for activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntFormat {
    /// Bits of a number, 2 to 16. If signed, the largest magnitude becomes `2^(bits - 1)`, or one
    /// less where a whole number of bytes does not hold that.
    pub bits: u8,
    /// Whether numbers have a sign; if not, they count from a zero point.
    pub signed: bool,
    /// What shares a scale.
    pub granularity: ScaleGranularity,
    /// Where scales come from.
    pub scales: ScaleOrigin,
}

/// The activations that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleGranularity {
    /// So many neighbouring columns of a row.
    Columns(usize),
    /// A row.
    Row,
    /// All rows.
    Tensor,
}

/// Where the scales of activations come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleOrigin {
    /// The activations themselves, in each run.
    Dynamic,
    /// The largest magnitude of a calibration ([`crate::CalibrationTensor`]).
    Static,
    /// A calibration's limit, above which magnitudes are outliers: they are clipped.
    Clipped,
    /// The largest magnitude of a calibration after each column was divided by a factor that its
    /// weights are multiplied with (SmoothQuant, equation 4, with an exponent of one half).
    Smoothed,
    /// The same, with a limit above which what was divided is an outlier: it is clipped.
    SmoothedClipped,
}

impl ScaleOrigin {
    const CALIBRATED: [(&str, ScaleOrigin); 4] = [
        ("static", ScaleOrigin::Static),
        ("clipped", ScaleOrigin::Clipped),
        ("smoothed", ScaleOrigin::Smoothed),
        ("smoothed-clipped", ScaleOrigin::SmoothedClipped),
    ];

    /// Whether columns are divided first.
    pub fn is_smoothed(self) -> bool {
        matches!(self, ScaleOrigin::Smoothed | ScaleOrigin::SmoothedClipped)
    }

    /// The same with clipped outliers, where scales come from a calibration.
    pub fn clipped(self) -> Option<ScaleOrigin> {
        let clipped = match self.is_smoothed() {
            true => ScaleOrigin::SmoothedClipped,
            false => ScaleOrigin::Clipped,
        };
        (self != ScaleOrigin::Dynamic).then_some(clipped)
    }
}

impl ActivationFormat {
    /// Eight bits by 32 columns.
    pub const INT8: ActivationFormat = ActivationFormat::by_32_columns(8);

    /// Signed numbers, with a dynamic scale for each 32 columns of a row: an f32.
    pub const fn by_32_columns(bits: u8) -> ActivationFormat {
        let (granularity, scales) = (ScaleGranularity::Columns(32), ScaleOrigin::Dynamic);
        ActivationFormat::Int(IntFormat { bits, signed: true, granularity, scales })
    }

    /// So many bits with one scale for all values, from a calibration.
    pub const fn of_tensor(bits: u8, scales: ScaleOrigin) -> ActivationFormat {
        let granularity = ScaleGranularity::Tensor;
        ActivationFormat::Int(IntFormat { bits, signed: true, granularity, scales })
    }

    /// So many bits with a scale from a calibration for each 32 columns.
    pub const fn of_columns(bits: u8) -> ActivationFormat {
        let (granularity, scales) = (ScaleGranularity::Columns(32), ScaleOrigin::Static);
        ActivationFormat::Int(IntFormat { bits, signed: true, granularity, scales })
    }

    /// So many bits with one scale for all values, from a calibration, in each way.
    pub fn calibrated(bits: u8) -> impl Iterator<Item = ActivationFormat> {
        let of = move |(_, scales)| ActivationFormat::of_tensor(bits, scales);
        ScaleOrigin::CALIBRATED.into_iter().map(of)
    }

    /// So many bits with a dynamic scale for each row.
    pub const fn by_row(bits: u8) -> ActivationFormat {
        let (granularity, scales) = (ScaleGranularity::Row, ScaleOrigin::Dynamic);
        ActivationFormat::Int(IntFormat { bits, signed: true, granularity, scales })
    }

    /// Whether a device converts the weights for it, whatever their type.
    pub fn converts_weights(&self) -> bool {
        self.is_halves() || self.converted_numbers().is_some()
    }

    /// Whether activations are halves.
    pub fn is_halves(&self) -> bool {
        matches!(self, ActivationFormat::F16 | ActivationFormat::F16Int4)
    }

    /// Its whole numbers, if a device converts the weights for them: other than with a dynamic scale
    /// for each few columns, as stored blocks are multiplied.
    pub fn converted_numbers(&self) -> Option<IntFormat> {
        let ActivationFormat::Int(n) = self else { return None };
        let by_columns = matches!(n.granularity, ScaleGranularity::Columns(_));
        (!by_columns || n.scales != ScaleOrigin::Dynamic).then_some(*n)
    }

    /// Whether its scales come from a calibration.
    pub fn is_calibrated(&self) -> bool {
        matches!(self, ActivationFormat::Int(n) if n.scales != ScaleOrigin::Dynamic)
    }

    /// Whether it is bytes with one scale for all values, from a calibration.
    pub fn is_tensor_bytes(&self) -> bool {
        let is = |n: IntFormat| (n.bits, n.granularity) == (8, ScaleGranularity::Tensor);
        self.is_calibrated() && self.converted_numbers().is_some_and(is)
    }

    /// The bits of whole numbers that suit a weight's type.
    fn bits(&self) -> Option<u8> {
        match self {
            ActivationFormat::Int(n) if self.converted_numbers().is_none() => Some(n.bits),
            _ => None,
        }
    }

    /// This format if it is allowed, else f32. An integer format becomes an allowed one. With
    /// weights that use all bits of a byte it is the one with the fewest bits, so that sums stay
    /// small. With other weights it is the one with the most bits.
    pub fn restricted(self, allowed: &[ActivationFormat], all_bits: bool) -> ActivationFormat {
        if self.bits().is_none() {
            return if allowed.contains(&self) { self } else { ActivationFormat::F32 };
        }
        let whole = allowed.iter().filter_map(|f| Some((f, f.bits()?)));
        let best = whole.min_by_key(|(_, bits)| if all_bits { *bits } else { u8::MAX - bits });
        best.map_or(ActivationFormat::F32, |(f, _)| *f)
    }
}

impl fmt::Display for ActivationFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = match self {
            ActivationFormat::F32 => return f.write_str("f32"),
            ActivationFormat::Bf16 => return f.write_str("bf16"),
            ActivationFormat::F16 => return f.write_str("f16"),
            ActivationFormat::F16Int4 => return f.write_str("f16:int4"),
            ActivationFormat::Int(n) => n,
        };
        write!(f, "{}int{}", if n.signed { "" } else { "u" }, n.bits)?;
        match n.granularity {
            ScaleGranularity::Columns(32) => {}
            ScaleGranularity::Columns(n) => write!(f, ":{n}")?,
            ScaleGranularity::Row => f.write_str(":row")?,
            ScaleGranularity::Tensor => f.write_str(":tensor")?,
        }
        let origin = ScaleOrigin::CALIBRATED.iter().find(|(_, origin)| *origin == n.scales);
        origin.map_or(Ok(()), |(name, _)| write!(f, ":{name}"))
    }
}

/// A text that names no activation format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no activation format: f32, bf16, f16, f16:int4 (weights of 4 bits), or whole numbers as \
     in int8, int8:64 (columns of a scale), uint8:row and int16:tensor:static (or clipped, smoothed, \
     smoothed-clipped)"
)]
pub struct UnknownActivationFormat(String);

impl FromStr for ActivationFormat {
    type Err = UnknownActivationFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownActivationFormat(text.into());
        let lower = text.to_ascii_lowercase();
        let parts: Vec<&str> = lower.split(':').collect();
        let origin = |text: &str| {
            let known = ScaleOrigin::CALIBRATED.iter().find(|(name, _)| *name == text);
            known.map(|(_, origin)| *origin)
        };
        let (number, by, scales) = match parts[..] {
            ["f32"] => return Ok(ActivationFormat::F32),
            ["bf16"] => return Ok(ActivationFormat::Bf16),
            ["f16"] => return Ok(ActivationFormat::F16),
            ["f16", "int4"] => return Ok(ActivationFormat::F16Int4),
            [number] => (number, "32", ScaleOrigin::Dynamic),
            [number, by] => match origin(by) {
                Some(origin) => (number, "32", origin),
                None => (number, by, ScaleOrigin::Dynamic),
            },
            [number, by, from] => (number, by, origin(from).ok_or_else(unknown)?),
            _ => return Err(unknown()),
        };
        let (signed, number) = number.strip_prefix('u').map_or((true, number), |n| (false, n));
        let bits = number.strip_prefix("int").and_then(|bits| bits.parse().ok());
        let bits = bits.filter(|bits| (2..=16).contains(bits)).ok_or_else(unknown)?;
        let granularity = match by {
            "row" => ScaleGranularity::Row,
            "tensor" => ScaleGranularity::Tensor,
            n => match n.parse() {
                Ok(n) if n > 0 => ScaleGranularity::Columns(n),
                _ => return Err(unknown()),
            },
        };
        Ok(ActivationFormat::Int(IntFormat { bits, signed, granularity, scales }))
    }
}

impl TryFrom<String> for ActivationFormat {
    type Error = UnknownActivationFormat;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ActivationFormat> for String {
    fn from(format: ActivationFormat) -> String {
        format.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::ActivationFormat;

    #[test]
    fn formats_are_read_as_they_are_written() {
        for text in [
            "f32",
            "bf16",
            "f16",
            "f16:int4",
            "int8",
            "int7",
            "int8:64",
            "uint8:row",
            "int16:tensor:static",
            "int8:tensor:clipped",
            "int8:smoothed",
            "int8:tensor:smoothed-clipped",
        ] {
            let format: ActivationFormat = text.parse().unwrap();
            assert_eq!(format.to_string(), text);
            let json = serde_json::to_string(&format).unwrap();
            assert_eq!(serde_json::from_str::<ActivationFormat>(&json).unwrap(), format);
        }
        // As older files have it.
        assert_eq!("Int7".parse(), Ok(ActivationFormat::by_32_columns(7)));
        for text in [
            "",
            "int",
            "int1",
            "int17",
            "int8:0",
            "int8:rows",
            "int8:row:tensor",
            "f32:row",
            "int8:32:st",
        ] {
            let e = text.parse::<ActivationFormat>().unwrap_err().to_string();
            assert!(e.starts_with(&format!("`{text}` is no activation format: f32")), "{e}");
        }
    }
}
