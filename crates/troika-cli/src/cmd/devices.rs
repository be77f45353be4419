//! `troika devices`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use troika::device::Device;
use troika::npu::{Hardware, NpuSpec, survey};
use troika::weights::CacheFolder;
use troika::{
    CheckedKernel, DeviceOptions, DeviceSpec, GpuSettings, check_device, gpu_adapters,
    keep_checked, measure_bandwidth, open_devices,
};

use crate::error::CliError;
use crate::flags::{DevicesArgs, cache_or_default, named_apart, npu_settings};
use crate::{output, progress, stats};

/// Lists devices with their facts.
pub fn run(args: &DevicesArgs) -> Result<(), CliError> {
    let devices = named_apart(&args.device)?;
    output::keep_apart();
    let npu = npu_settings();
    let options = DeviceOptions { threads: args.threads, devices, npu, ..DeviceOptions::default() };
    let devices = open_devices(&options)?;
    let cache_dir = cache_or_default(args.cache_dir.as_deref());
    let gpu = GpuSettings { cache: cache_dir.map(CacheFolder::new), ..GpuSettings::default() };
    let (mut listed, mut bandwidths) = (Listed::default(), BTreeMap::new());
    for (i, device) in devices.iter().enumerate() {
        let (name, kind) = (device.name(), device.kind().to_string());
        listed.add(name, &kind, &format!("{name} ({kind})"), &device.caps().facts);
        let spec = options.devices.get(i);
        // The facts of other devices say what they can do.
        let bandwidth = spec.is_none_or(DeviceSpec::is_cpu).then(|| {
            let devices = spec.into_iter().cloned().collect();
            let threads = DeviceOptions { devices, ..options.clone() }.threads();
            let measure = || measure_bandwidth(threads);
            let found = *bandwidths.entry(threads).or_insert_with(measure);
            let by = stats::counted(threads, "thread");
            listed.line(&format!("read bandwidth: {found:.1} GB/s ({by})"));
            found
        });
        listed.set("read_gb_per_s", bandwidth.into());
        if args.check {
            listed.check(&**device, &gpu)?;
        }
    }
    if options.devices.is_empty() {
        for (i, adapter) in gpu_adapters().into_iter().enumerate() {
            let name = format!("gpu:{i}");
            listed.add(&name, "GPU", &format!("{name}: --device {name}"), &adapter.facts);
        }
        for (name, state) in npus(&options) {
            listed.text.push_str(&format!("{name}: {state}\n"));
            listed.list.push(json!({ "name": name, "kind": "NPU", "state": state }));
        }
    }
    if args.json { output::json(&Value::Array(listed.list)) } else { output::write(&listed.text) }
}

/// What is printed: lines, or a list of objects.
#[derive(Default)]
struct Listed {
    text: String,
    list: Vec<Value>,
}

impl Listed {
    fn add(&mut self, name: &str, kind: &str, head: &str, facts: &[(String, String)]) {
        self.text.push_str(&format!("{head}\n"));
        facts.iter().for_each(|(name, value)| self.line(&format!("{name}: {value}")));
        let facts: Map<_, _> = facts.iter().map(|(n, v)| (n.clone(), v.clone().into())).collect();
        self.list.push(json!({ "name": name, "kind": kind, "facts": facts }));
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(&format!("  {text}\n"));
    }

    /// Says more of the last device.
    fn set(&mut self, key: &str, value: Value) {
        self.list.iter_mut().last().into_iter().for_each(|last| last[key] = value.clone());
    }

    /// Compares a device's kernels with the CPU's.
    fn check(&mut self, device: &dyn Device, gpu: &GpuSettings) -> Result<(), CliError> {
        let mut count = progress::counting("checking");
        let kernels = check_device(device, &mut |done, all| {
            count(done, all);
            true
        })?;
        keep_checked(gpu, device, &kernels);
        output::warn(gpu.notes.take());
        for CheckedKernel { name, error, fault } in &kernels {
            self.line(&match (error, fault) {
                (Some(error), None) => format!("{name}: as the CPU, within {error:.0e}"),
                (_, Some(fault)) => format!("{name}: not used: {fault}"),
                (None, None) => format!("{name}: not used: it did not run"),
            });
        }
        let wrong = kernels.iter().filter(|k| k.fault.is_some()).count();
        self.line(&format!("{} kernels as the CPU's, {wrong} not", kernels.len() - wrong));
        let object =
            |k: &CheckedKernel| json!({ "name": k.name, "error": k.error, "fault": k.fault });
        self.set("kernels", kernels.iter().map(object).collect());
        Ok(())
    }
}

/// The NPUs that could be asked for, with how to, or what is missing.
fn npus(options: &DeviceOptions) -> Vec<(String, String)> {
    let all = survey(&options.npu.runtime);
    let found = all.iter().flat_map(|(provider, found)| {
        let hardware = found.as_deref().unwrap_or_default();
        hardware.iter().map(|h| NpuSpec { provider: Some(*provider), hardware: Some(*h) })
    });
    let found: Vec<NpuSpec> = found.collect();
    let find = |is: &dyn Fn(Hardware) -> bool| found.iter().find(|s| s.hardware.is_some_and(is));
    let plain = match find(&Hardware::is_real) {
        Some(real) => format!("--device npu is {real}"),
        None => "no real one is here".to_string(),
    };
    let says = |spec: &NpuSpec| match spec.hardware {
        Some(Hardware::Emulator) => format!("--device {spec} (emulated and slow)"),
        Some(Hardware::Cpu) => format!("--device {spec} (the CPU in place of an NPU)"),
        _ => format!("--device {spec}"),
    };
    let of_provider = all.iter().map(|(provider, state)| {
        let own = found.iter().filter(|s| s.provider == Some(*provider)).map(says);
        let state = match state {
            Err(e) => format!("not available: {e}"),
            Ok(none) if none.is_empty() => "not available: it finds no hardware here".to_string(),
            Ok(_) => own.collect::<Vec<_>>().join(", "),
        };
        (format!("npu:{}", provider.name()), state)
    });
    std::iter::once(("npu".to_string(), plain)).chain(of_provider).collect()
}
