//! What is said of weights that are not exactly those of the checkpoint.

use std::collections::BTreeMap;

use troika_graph::DType;

use crate::bind::bound::Bound;
use crate::bind::packed::Rounding;
use crate::bind::source::ValueSource;

/// A sentence about how far they are from it.
pub(crate) fn warning(bound: &[Bound]) -> Option<String> {
    let (mut parts, mut most) = (BTreeMap::<&str, usize>::new(), 0f32);
    for b in bound {
        let rounding = match &b.source {
            ValueSource::Packed(weight) => weight.rounding,
            ValueSource::Cut { tensor, .. } if tensor.dtype.is_quantized() => {
                Rounding::Values(b.shape.dtype)
            }
            ValueSource::Scaled(_) => Rounding::Scales(f32::powi(2.0, -11)),
            _ => continue,
        };
        match rounding {
            Rounding::Values(DType::F32) | Rounding::None => continue,
            Rounding::Scales(lost) => {
                most = most.max(lost);
                *parts.entry("scales").or_default() += 1;
            }
            Rounding::Values(to) => *parts.entry(to.name()).or_default() += 1,
        }
    }
    let told = parts.iter().map(|(to, count)| {
        let matrices = if *count == 1 { "matrix" } else { "matrices" };
        let what = match *to {
            "scales" => {
                let most = most * 100.0;
                return format!("the scales of {count} {matrices} to F16 (by at most {most:.2} %)");
            }
            "BF16" => "by at most 0.2 % of a value",
            "F16" => "by at most 0.05 % of a value",
            "Q8_0" => "by at most 0.4 % of the largest of 32 values",
            _ => "by at most 3.4 % of the range of 32 values",
        };
        format!("{count} {matrices} to {to} ({what})")
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| format!("the checkpoint's weights are rounded: {}", told.join(", ")))
}
