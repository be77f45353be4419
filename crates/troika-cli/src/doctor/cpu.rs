//! Cores and instruction sets.

use troika::{instruction_sets, parse_cores, usable_cores};

use super::finding::Finding;
use super::machine::HostMachine;
use crate::stats::counted;

/// Whether this process may use all cores.
pub fn cores(machine: &HostMachine) -> Vec<Finding> {
    const TOPIC: &str = "cores";
    let all = |name: &str| {
        let text = machine.read(&format!("sys/devices/system/cpu/{name}"));
        text.and_then(|text| parse_cores(&text)).unwrap_or_default()
    };
    let (present, online, usable) = (all("present"), all("online"), usable_cores());
    let quota = std::thread::available_parallelism().map_or(1, usize::from);
    if usable.is_empty() {
        return vec![Finding::fine(TOPIC, counted(quota, "core"))];
    }
    let threads = machine.devices().threads();
    let of = |n: usize, all: usize| format!("{n} of {all} cores can be used");
    // Threads of one core that are switched off would not be used anyway.
    let are_threads = machine.read("sys/devices/system/cpu/smt/control");
    let are_threads = are_threads.is_some_and(|text| text.ends_with("off"));
    let off: Vec<&usize> = present.iter().filter(|core| !online.contains(core)).collect();
    if let (Some(first), false) = (off.first(), are_threads) {
        let says = format!("{}: some are switched off", of(online.len(), present.len()));
        let fix = format!("echo 1 | sudo tee /sys/devices/system/cpu/cpu{first}/online");
        return vec![Finding::improvable(TOPIC, says).mended_by(fix)];
    }
    if usable.len() < online.len() {
        let says = format!("{}: this process is bound to them", of(usable.len(), online.len()));
        let list: Vec<String> = online.iter().map(usize::to_string).collect();
        let fix = format!("taskset -c {} troika run", list.join(","));
        return vec![Finding::improvable(TOPIC, says).mended_by(fix)];
    }
    if quota < usable.len() {
        let says = format!("{}: its control group has no more", of(quota, usable.len()));
        let all = usable.len();
        let fix = match machine.at(".dockerenv").exists() {
            true => format!("docker update --cpus {all} CONTAINER"),
            false => format!("sudo systemctl set-property UNIT CPUQuota={}%", all * 100),
        };
        return vec![Finding::improvable(TOPIC, says).mended_by(fix)];
    }
    let says = format!(
        "{}, by {}",
        of(usable.len(), online.len().max(usable.len())),
        counted(threads, "thread")
    );
    vec![Finding::fine(TOPIC, says)]
}

/// Which kernels the processor runs.
pub fn instructions(machine: &HostMachine) -> Vec<Finding> {
    const TOPIC: &str = "kernels";
    let sets = instruction_sets();
    let best = sets.last().copied().unwrap_or("scalar");
    let flags = machine.read("proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    if best == "scalar" {
        let says = "scalar: the processor shows none of AVX2, AVX-512 and NEON, and is slow";
        let found = Finding::improvable(TOPIC, says);
        // A virtual machine often hides what the processor has.
        let hint = "qemu-system-x86_64 -cpu host, where this virtual machine is started";
        return vec![if has("hypervisor") { found.mended_by(hint) } else { found }];
    }
    if has("amx_tile") && best != "amx" {
        let says = format!(
            "{best}: the processor has AMX tiles, which Linux lets programs use from 5.16 on"
        );
        return vec![Finding::improvable(TOPIC, says)];
    }
    vec![Finding::fine(TOPIC, format!("{best} (troika devices lists all that the processor has)"))]
}
