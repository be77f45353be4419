//! Values of `troika export`.

use clap::builder::RangedU64ValueParser;
use troika::ExpertFunctions;
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

/// How experts are functions: how many of them, and the rows of each.
///
/// # Errors
/// No two numbers from 1.
pub fn expert_groups(text: &str) -> Result<ExpertFunctions, String> {
    let numbers = text.split_once(':').and_then(|(experts, rows)| {
        let one = |text: &str| text.parse().ok().filter(|n| (1..=1 << 20).contains(n));
        Some(ExpertFunctions::Even { experts: one(experts)?, capacity: one(rows)? })
    });
    numbers.ok_or_else(|| "it is EXPERTS:ROWS, as in 8:64".into())
}
