//! Which kernel a product runs in, by name.

use std::fmt;

use troika_graph::{ActivationFormat, DType};

use super::quantized::WeightPath;
use super::{int8, linear};
use crate::Isa;

/// A product's kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenKernel {
    /// How weights are packed; `None`: they are not.
    pub packed: Option<String>,
    /// How they are read.
    pub path: WeightPath,
    /// The instruction set; [`Isa::Scalar`] has no vectors.
    pub isa: Isa,
}

/// The kernel that multiplies `rows` activation rows with weights of a type: what products outside of
/// outliers run in.
pub fn chosen(isa: Isa, weight: DType, activations: ActivationFormat, rows: usize) -> ChosenKernel {
    let integers = matches!(activations, ActivationFormat::Int(_));
    let path = match weight.is_quantized() {
        true if integers => int8::path(isa, weight, rows),
        true if rows > 1 || !linear::is_fused(isa) => WeightPath::Floats,
        _ => WeightPath::Direct,
    };
    let packed = match weight.is_quantized() {
        true => Some(int8::form(weight)),
        false => linear::panels::serve(isa, weight).then(|| format!("{weight} in lines")),
    };
    ChosenKernel { packed, path, isa }
}

impl fmt::Display for ChosenKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match self.path {
            WeightPath::Direct => "read as they lie",
            WeightPath::Bytes => "made bytes",
            WeightPath::Floats => "made floats",
        };
        let packed = self.packed.as_deref().unwrap_or("not packed");
        write!(f, "{packed}; {path}; {}", self.isa.name())
    }
}

#[cfg(test)]
mod tests {
    use super::{WeightPath, chosen, linear};
    use crate::Isa;
    use troika_graph::{ActivationFormat, DType};

    /// A type without kernels of its own fails here.
    #[test]
    fn no_quantized_weight_becomes_floats_before_it_is_multiplied() {
        for isa in Isa::all() {
            for &weight in DType::WEIGHTS.iter().filter(|dtype| dtype.is_quantized()) {
                for rows in [1, 2, 3, 8, 32, 33, 512] {
                    let kernel = chosen(isa, weight, ActivationFormat::INT8, rows);
                    assert_ne!(kernel.path, WeightPath::Floats, "{weight}, {rows} rows");
                    assert!(rows > 1 || kernel.path == WeightPath::Direct, "{weight}: {kernel}");
                    assert!(kernel.packed.is_some(), "{weight}: {kernel}");
                }
                let one = chosen(isa, weight, ActivationFormat::F32, 1);
                let direct = linear::is_fused(isa) == (one.path == WeightPath::Direct);
                assert!(direct, "{weight}: {one}");
            }
        }
    }
}
