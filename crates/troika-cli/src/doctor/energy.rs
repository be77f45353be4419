//! Energy counters.

use std::io;

use troika::EnergyMeter;

use super::finding::Finding;
use super::machine::HostMachine;

/// Whether the energy of a run can be measured.
pub fn counters(machine: &HostMachine) -> Vec<Finding> {
    const TOPIC: &str = "energy";
    let why = match EnergyMeter::find(&machine.at("sys")) {
        Ok(meter) => return vec![Finding::fine(TOPIC, meter.source())],
        Err(why) => why,
    };
    let zones = machine.list("sys/class/powercap").into_iter().map(|zone| zone.join("energy_uj"));
    let is_closed = |file: std::path::PathBuf| {
        let read = std::fs::read_to_string(file);
        read.is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
    };
    // Most systems let only the superuser read them.
    vec![match zones.into_iter().any(is_closed) {
        true => Finding::improvable(TOPIC, "only the superuser may read its counters")
            .mended_by("sudo chmod a+r /sys/class/powercap/*/energy_uj"),
        false => Finding::missing(TOPIC, format!("it cannot be measured: {why}")),
    }]
}
