//! Types of flags' values, and how they are read.

use clap::builder::{PossibleValue, PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use troika::graph::DType;
use troika::weights::{FloatType, Quant};

/// The types that float weights are computed in.
pub(super) const FLOAT_TYPES: [(&str, &str, FloatType); 4] = [
    ("auto", "As the file has them", FloatType::Auto),
    ("f32", "Single precision", FloatType::F32),
    ("bf16", "bfloat16", FloatType::BF16),
    ("f16", "Half precision", FloatType::F16),
];

/// The types of the KV cache.
pub(super) const CACHE_TYPES: [(&str, &str, DType); 3] = [
    ("f32", "Single precision", DType::F32),
    ("f16", "Half precision", DType::F16),
    ("bf16", "Half precision with the range of f32", DType::BF16),
];

/// Quantizations of float weights.
pub(super) const QUANTS: [(&str, &str, Quant); 5] = [
    ("none", "As the file has them", Quant::None),
    ("bf16", "bfloat16", Quant::Bf16),
    ("q8", "8 bits, a scale for every 32", Quant::Q8),
    ("q4", "4 bits, a scale and a zero point for every 32; the head has 8", Quant::Q4),
    ("q4-64", "The same for every 64, as in MLX", Quant::Q4By64),
];

/// One of these values, each with its name and what it is.
pub(super) fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [(&'static str, &'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let known = all.map(|(name, says, _)| PossibleValue::new(name).help(says));
    let value = move |name: String| all.iter().find(|(known, ..)| *known == name).map(|all| all.2);
    let wrong = || "it is none of the values".to_string();
    PossibleValuesParser::new(known).try_map(move |name| value(name).ok_or_else(wrong))
}

/// Logical cores, by number.
#[derive(Clone, Debug)]
pub struct CoreList(pub Vec<usize>);

/// An instruction set, by name.
pub(super) fn isa(name: &str) -> Result<String, String> {
    let known = troika::instruction_sets();
    match known.contains(&name) {
        true => Ok(name.into()),
        false => {
            Err(format!("this machine has no kernels of that name; it has {}", known.join(", ")))
        }
    }
}

pub(super) fn core_list(text: &str) -> Result<CoreList, String> {
    let cores = troika::parse_cores(text).ok_or("it is not a list of cores such as 0-3,8")?;
    let known = troika::usable_cores();
    match cores.iter().find(|c| !known.is_empty() && !known.contains(c)) {
        Some(c) => Err(format!("core {c} is not among those this process may use ({known:?})")),
        None => Ok(CoreList(cores)),
    }
}

/// Numbers of threads, limited so that they cannot exhaust the system.
pub(super) fn thread_count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=4096)
}

/// Numbers of sequences, limited since each one needs memory from the start.
pub(super) fn sequence_count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1024)
}

/// One of the values with these names.
pub(super) fn named<T: Clone + Default + Send + Sync + 'static>(
    names: impl Into<PossibleValuesParser>,
    parse: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    names.into().map(move |name| parse(&name).unwrap_or_default())
}
