//! Models on two CPU devices of a thread each.

use troika::plan::{ExpertPolicy, ExpertSettings, Strategy, Tiers};
use troika::weights::FloatType;
use troika::{DeviceOptions, ExpertOptions, OpenOptions, usable_cores};

/// Two CPU devices `a` and `b`, each on a core of its own if there are two.
pub fn devices() -> DeviceOptions {
    let cores = usable_cores();
    let core = |at: usize| cores.get(at).or(cores.first()).copied().unwrap_or(0);
    let named = [format!("a=cpu:{}", core(0)), format!("b=cpu:{}", core(1))];
    let devices = named.iter().filter_map(|d| d.parse().ok()).collect();
    DeviceOptions { devices, ..DeviceOptions::default() }
}

/// All on the first device, in chunks of `chunk` rows.
pub fn plain(chunk: usize, context: usize) -> OpenOptions {
    OpenOptions {
        dtype: FloatType::F32,
        chunk: Some(chunk),
        context: Some(context),
        devices: devices(),
        ..OpenOptions::default()
    }
}

/// The same, but experts on the second device, in groups with the rows for each expert that `tiers`
/// says.
pub fn shared(plain: OpenOptions, tiers: Tiers, settings: ExpertSettings) -> OpenOptions {
    let settings = ExpertSettings { tiers, ..settings };
    OpenOptions {
        strategy: Strategy::Experts(ExpertPolicy::Groups),
        experts: ExpertOptions { settings, ..ExpertOptions::default() },
        ..plain
    }
}
