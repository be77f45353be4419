//! `troika devices`.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use troika::device::{Device, DeviceKind};
use troika::npu::{Hardware, NpuSpec, survey};
use troika::{
    CheckedKernel, DeviceOptions, check_device, gpu_adapters, keep_checked, measure_bandwidth,
    open_devices,
};

use crate::error::CliError;
use crate::flags::{DevicesArgs, cache_or_default, gpu_settings, named_apart, npu_settings};
use crate::{output, progress};

/// Lists devices with their facts.
///
/// # Errors
/// A device that does not open.
pub fn run(args: &DevicesArgs) -> Result<(), CliError> {
    let devices = named_apart(&args.device)?;
    output::keep_apart();
    let npu = npu_settings(None, 0);
    let options = DeviceOptions { threads: args.threads, devices, npu, ..DeviceOptions::default() };
    let devices = open_devices(&options).map_err(|e| CliError::Troika(e.into()))?;
    // The threads of each device.
    let threads = |i: usize| match options.devices.get(i) {
        Some(spec) => DeviceOptions { devices: vec![spec.clone()], ..options.clone() }.threads(),
        None => options.threads(),
    };
    // A virtual device's facts say what it can do.
    let measured = |d: &Arc<dyn Device>| d.kind() == DeviceKind::Cpu;
    let mut known: Vec<(usize, f64)> = Vec::new();
    let mut bandwidth = |threads: usize| match known.iter().find(|k| k.0 == threads) {
        Some((_, known)) => *known,
        None => {
            let new = measure_bandwidth(threads);
            known.push((threads, new));
            new
        }
    };
    let gpu = gpu_settings(cache_or_default(args.cache_dir.as_deref()), u64::MAX);
    let mut list = Vec::new();
    let mut text = String::new();
    for (i, d) in devices.iter().enumerate() {
        let facts = &d.caps().facts;
        text.push_str(&format!("{} ({})\n", d.name(), d.kind()));
        let mut map = Map::new();
        for (name, value) in facts {
            text.push_str(&format!("  {name}: {value}\n"));
            map.insert(name.clone(), value.clone().into());
        }
        let threads = threads(i);
        let bandwidth = measured(d).then(|| bandwidth(threads));
        if let Some(bandwidth) = bandwidth {
            text.push_str(&format!("  read bandwidth: {bandwidth:.1} GB/s ({threads} threads)\n"));
        }
        let mut found = json!({
            "name": d.name(),
            "kind": d.kind().to_string(),
            "facts": map,
            "read_gb_per_s": bandwidth,
        });
        if args.check {
            let mut progress = progress::counting("checking");
            let kernels = check_device(&**d, &mut progress);
            let kernels = kernels.map_err(|e| CliError::Troika(e.into()))?;
            keep_checked(&gpu, &**d, &kernels);
            gpu.notes.take().iter().for_each(|note| output::note_line(&format!("warning: {note}")));
            text.push_str(&checked(&kernels));
            found["kernels"] = kernels.iter().map(in_json).collect();
        }
        list.push(found);
    }
    if options.devices.is_empty() {
        for (i, adapter) in gpu_adapters().into_iter().enumerate() {
            let name = format!("gpu:{i}");
            text.push_str(&format!("{name}: --device {name}\n"));
            let mut map = Map::new();
            for (fact, value) in adapter.facts {
                text.push_str(&format!("  {fact}: {value}\n"));
                map.insert(fact, value.into());
            }
            list.push(json!({ "name": name, "kind": "GPU", "facts": map }));
        }
        for (name, state) in npus(&options) {
            text.push_str(&format!("{name}: {state}\n"));
            list.push(json!({ "name": name, "kind": "NPU", "state": state }));
        }
    }
    if args.json { output::json(&Value::Array(list)) } else { output::write(&text) }
}

/// A line for each kernel that was checked.
fn checked(kernels: &[CheckedKernel]) -> String {
    let mut text = String::new();
    for CheckedKernel { name, error, fault } in kernels {
        let says = match (error, fault) {
            (Some(error), None) => format!("as the CPU, within {error:.0e}"),
            (_, fault) => format!("not used: {}", fault.as_deref().unwrap_or("it did not run")),
        };
        text.push_str(&format!("  {name}: {says}\n"));
    }
    let wrong = kernels.iter().filter(|k| k.fault.is_some()).count();
    text.push_str(&format!("  {} kernels as the CPU's, {wrong} not\n", kernels.len() - wrong));
    text
}

fn in_json(kernel: &CheckedKernel) -> Value {
    json!({ "name": kernel.name, "error": kernel.error, "fault": kernel.fault })
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
