//! `troika reproduce`: reproduces tables of papers on virtual SoCs.

use troika::DeviceOptions;
use troika_lab::{reproduce_on, reproduced_ids};

use crate::error::CliError;
use crate::flags::{ReproduceArgs, npu_settings};
use crate::output;

/// Runs the requested experiments and prints the papers' values and ours.
pub fn run(args: &ReproduceArgs) -> Result<(), CliError> {
    let known = reproduced_ids();
    if let Some(id) = args.ids.iter().find(|id| !known.iter().any(|k| id.eq_ignore_ascii_case(k))) {
        let why = format!("there is no target {id:?}; the targets are {}", known.join(", "));
        return Err(CliError::Usage(why));
    }
    let devices = (!args.device.is_empty()).then(|| DeviceOptions {
        devices: args.device.clone(),
        npu: npu_settings(),
        ..DeviceOptions::default()
    });
    let report = reproduce_on(&args.ids, devices)?;
    if args.json {
        return output::json(&report.json());
    }
    output::write(&report.table())
}
