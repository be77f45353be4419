//! What the file of a virtual SoC says of the same plan, beside what is measured.

use std::path::Path;

use troika::plan::median;
use troika::trace::Tracer;
use troika::{DeviceOptions, DeviceSpec, Model, OpenOptions, ProcessorSpec};
use troika_lab::Subject;

use crate::error::CliError;
use crate::flags::TableFlag;
use crate::output;
use crate::stats::counted;

/// Opens a model on the processors that a file has for the devices of another one, with its plan.
///
/// # Errors
/// A file that cannot be used, or that has no processor of a device's name.
pub fn open(
    subject: &Subject,
    options: OpenOptions,
    file: &Path,
    real: &Model,
) -> Result<Model, CliError> {
    let plan = real.engine()?.plan().clone();
    let device = |name: &String| {
        let processor = ProcessorSpec { file: file.to_path_buf(), name: Some(name.clone()) };
        DeviceSpec { name: Some(name.clone()), processor: Some(processor), ..DeviceSpec::default() }
    };
    let devices = plan.devices.iter().map(device).collect();
    let devices = DeviceOptions { devices, ..DeviceOptions::default() };
    let options = OpenOptions { devices, plan: plan.into(), ..options };
    super::open(subject, options, Tracer::off())
}

/// Says how far off all predictions are.
pub fn summary(file: &Path, errors: &[f64], form: TableFlag) -> Result<(), CliError> {
    let sizes: Vec<f64> = errors.iter().map(|e| e.abs() * 100.0).collect();
    let worst = sizes.iter().copied().fold(0.0, f64::max);
    let (count, file) = (counted(sizes.len(), "prediction"), file.display());
    let Some(middle) = median(sizes).filter(|_| form == TableFlag::Md) else { return Ok(()) };
    output::write(&format!(
        "\n{count} of {file}: off by {middle:.1} % (median), {worst:.1} % at worst\n"
    ))
}
