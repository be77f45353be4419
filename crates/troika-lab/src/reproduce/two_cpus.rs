//! Models on two CPU devices of a thread each.

use troika::plan::{CapacityRule, ExpertPolicy, ExpertSettings, Strategy, Tiers};
use troika::weights::FloatType;
use troika::{DeviceOptions, ExpertOptions, OpenOptions};

/// All on the first device, in chunks of so many rows.
pub fn plain(chunk: usize, context: usize) -> OpenOptions {
    let named = ["a=cpu", "b=cpu"].map(str::parse).into_iter().filter_map(Result::ok);
    OpenOptions {
        dtype: FloatType::F32,
        chunk: Some(chunk),
        context: Some(context),
        devices: DeviceOptions {
            threads: Some(1),
            devices: named.collect(),
            ..DeviceOptions::default()
        },
        ..OpenOptions::default()
    }
}

/// The same, but experts on the second device, in groups with so many rows for each expert.
pub fn shared(plain: OpenOptions, tiers: Tiers, settings: ExpertSettings) -> OpenOptions {
    let capacity = CapacityRule { tiers, ..CapacityRule::default() };
    let settings = ExpertSettings { capacity, ..settings };
    OpenOptions {
        strategy: Strategy::Experts(ExpertPolicy::Groups),
        experts: ExpertOptions { settings, ..ExpertOptions::default() },
        ..plain
    }
}
