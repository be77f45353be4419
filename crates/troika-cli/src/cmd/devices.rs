//! `troika devices`.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use troika::device::Device;
use troika::{DeviceOptions, measure_bandwidth, open_devices};

use crate::error::CliError;
use crate::flags::{DevicesArgs, named_apart};
use crate::output;

/// Lists devices with their facts.
///
/// # Errors
/// A device that does not open.
pub fn run(args: &DevicesArgs) -> Result<(), CliError> {
    let devices = named_apart(&args.device)?;
    let options = DeviceOptions { threads: args.threads, devices, ..DeviceOptions::default() };
    let devices = open_devices(&options).map_err(|e| CliError::Troika(e.into()))?;
    let threads = options.threads();
    // What a virtual device can do is in its facts.
    let measured = |d: &Arc<dyn Device>| d.clock().is_none();
    let bandwidth = devices.iter().any(measured).then(|| measure_bandwidth(threads));
    let mut list = Vec::new();
    let mut text = String::new();
    for d in &devices {
        let facts = &d.caps().facts;
        text.push_str(&format!("{} ({})\n", d.name(), d.kind()));
        let mut map = Map::new();
        for (name, value) in facts {
            text.push_str(&format!("  {name}: {value}\n"));
            map.insert(name.clone(), value.clone().into());
        }
        let bandwidth = bandwidth.filter(|_| measured(d));
        if let Some(bandwidth) = bandwidth {
            text.push_str(&format!("  read bandwidth: {bandwidth:.1} GB/s ({threads} threads)\n"));
        }
        list.push(json!({
            "name": d.name(),
            "kind": d.kind().to_string(),
            "facts": map,
            "read_gb_per_s": bandwidth,
        }));
    }
    if args.json { output::json(&Value::Array(list)) } else { output::write(&text) }
}
