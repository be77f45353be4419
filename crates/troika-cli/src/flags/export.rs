//! Values of `troika export`.

use clap::builder::RangedU64ValueParser;
use troika::npu::mil::PackageWeights;

/// Numbers of rows and of positions.
pub fn rows() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 20)
}

/// How products' weights are stored.
///
/// # Errors
/// There is no such form.
pub fn weights(text: &str) -> Result<PackageWeights, String> {
    use PackageWeights as W;
    let all = [W::F16, W::Int4(None), W::Int4(Some(32)), W::Int4(Some(64)), W::Int8, W::Stored];
    let found = all.into_iter().find(|form| form.name() == text);
    found.ok_or_else(|| format!("the forms are {}", all.map(PackageWeights::name).join(", ")))
}
