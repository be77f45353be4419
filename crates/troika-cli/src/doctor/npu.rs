//! What NPUs need: the library of ONNX Runtime, and the vendors' providers. Only the crate of NPUs
//! knows what that is.

use troika::npu::{Hardware, NpuError, NpuSpec, Provider, runtime_library, survey};

use super::finding::Finding;
use super::machine::HostMachine;

/// Whether ONNX Runtime is there.
pub fn runtime(machine: &HostMachine) -> Vec<Finding> {
    const TOPIC: &str = "ONNX Runtime";
    vec![match runtime_library(&machine.npu.runtime) {
        Ok(library) => Finding::fine(TOPIC, library.display().to_string()),
        Err(e) => failed(TOPIC, machine, &e),
    }]
}

/// What each provider finds. Without the library there is nothing to say of them.
pub fn providers(machine: &HostMachine) -> Vec<Finding> {
    let places = &machine.npu.runtime;
    if runtime_library(places).is_err() {
        return Vec::new();
    }
    let found = survey(places).into_iter().filter_map(|(provider, found)| {
        let is_part = matches!(provider, Provider::CoreMl | Provider::VitisAi);
        match found {
            Err(e) => Some(failed(topic(provider), machine, &e)),
            // What comes with a runtime of its own is not missing from another one.
            Ok(none) if none.is_empty() && is_part => None,
            Ok(hardware) => Some(of_hardware(provider, &hardware)),
        }
    });
    found.collect()
}

/// Whether a provider finds a real NPU.
pub fn finds_one(machine: &HostMachine) -> bool {
    let found = survey(&machine.npu.runtime);
    found.iter().any(|(_, found)| found.iter().flatten().any(|hardware| hardware.is_real()))
}

fn topic(provider: Provider) -> &'static str {
    match provider {
        Provider::Reference => "ONNX kernels",
        Provider::OpenVino => "OpenVINO",
        Provider::Qnn => "QNN",
        Provider::CoreMl => "Core ML",
        Provider::VitisAi => "Vitis AI",
    }
}

fn of_hardware(provider: Provider, hardware: &[Hardware]) -> Finding {
    let topic = topic(provider);
    let names = hardware.iter().map(|hardware| {
        let spec = NpuSpec { provider: Some(provider), hardware: Some(*hardware) };
        format!("--device {spec}")
    });
    let names = names.collect::<Vec<_>>().join(", ");
    match hardware.iter().any(|hardware| hardware.is_real()) {
        true => Finding::fine(topic, names),
        false if hardware.is_empty() => Finding::missing(topic, "it finds no hardware here"),
        false => Finding::improvable(topic, format!("it finds no NPU; in place of one: {names}")),
    }
}

/// What failed, without what mends it, which stands below.
fn failed(topic: &'static str, machine: &HostMachine, error: &NpuError) -> Finding {
    let says = error.to_string();
    let Some(remedy) = error.remedy() else { return Finding::missing(topic, says) };
    let says = says.split("; ").next().unwrap_or_default();
    // A package is found in a Python environment that is active.
    let fix = match machine.npu.runtime.environments.is_empty() {
        true => format!("python3 -m venv npu && . npu/bin/activate && {remedy}"),
        false => remedy,
    };
    Finding::missing(topic, says).mended_by(fix)
}
