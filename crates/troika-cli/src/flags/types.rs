//! Types of flags' values, and how they are read.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use troika::graph::DType;
use troika::weights::FloatType;

/// Type float weights are computed in.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum DtypeFlag {
    /// As the file has them
    Auto,
    /// Single precision
    F32,
    /// bfloat16
    Bf16,
    /// Half precision
    F16,
}

impl DtypeFlag {
    /// The library's name for it.
    pub fn float_type(self) -> FloatType {
        match self {
            DtypeFlag::Auto => FloatType::Auto,
            DtypeFlag::F32 => FloatType::F32,
            DtypeFlag::F16 => FloatType::F16,
            DtypeFlag::Bf16 => FloatType::BF16,
        }
    }
}

/// Element type of the KV cache, or of values between segments.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum FloatFlag {
    /// Single precision
    F32,
    /// Half precision
    F16,
    /// Half precision with the range of f32
    Bf16,
}

impl FloatFlag {
    /// The type that it names.
    pub fn dtype(self) -> DType {
        match self {
            FloatFlag::F32 => DType::F32,
            FloatFlag::F16 => DType::F16,
            FloatFlag::Bf16 => DType::BF16,
        }
    }
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
