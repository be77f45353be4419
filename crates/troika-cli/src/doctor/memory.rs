//! Memory: how much, in which pages, how fast.

use troika::{free_memory, measure_bandwidth};

use super::finding::Finding;
use super::machine::HostMachine;
use crate::output::bytes;
use crate::stats::counted;

/// With less, only small models run.
const LITTLE: u64 = 2 << 30;

/// How much is free.
pub fn free(machine: &HostMachine) -> Vec<Finding> {
    const TOPIC: &str = "memory";
    let Some(free) = free_memory() else { return Vec::new() };
    let total = machine.read("proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let of = total.map_or(String::new(), |total| format!(" of {}", bytes(total)));
    let says = format!("{}{of} are free", bytes(free));
    vec![match free < LITTLE {
        true => Finding::improvable(TOPIC, format!("{says}: only small models fit"))
            .mended_by("ps -eo rss,pid,comm --sort=-rss | head"),
        false => Finding::fine(TOPIC, says),
    }]
}

/// Weights and the KV cache ask for huge pages.
pub fn huge_pages(machine: &HostMachine) -> Vec<Finding> {
    const TOPIC: &str = "huge pages";
    let file = "sys/kernel/mm/transparent_hugepage/enabled";
    let Some(text) = machine.read(file) else { return Vec::new() };
    let chosen = text.split(['[', ']']).nth(1).unwrap_or_default().to_string();
    vec![match chosen.as_str() {
        "always" | "madvise" => Finding::fine(TOPIC, format!("weights get them ({chosen})")),
        _ => Finding::improvable(TOPIC, "they are switched off, and reading weights is slower")
            .mended_by(format!("echo madvise | sudo tee /{file}")),
    }]
}

/// How fast it is read, which limits decoding.
pub fn bandwidth(machine: &HostMachine) -> Vec<Finding> {
    if !machine.measure {
        return Vec::new();
    }
    let threads = machine.devices().threads();
    let speed = measure_bandwidth(threads);
    let says = format!(
        "{speed:.1} GB/s with {}: 4 GB of weights decode at {:.1} tok/s at most",
        counted(threads, "thread"),
        speed / 4.0
    );
    vec![Finding::fine("bandwidth", says)]
}

#[cfg(test)]
mod tests {
    use super::huge_pages;
    use crate::doctor::{FindingState, HostMachine};

    #[test]
    fn huge_pages_that_are_switched_off_are_said() {
        let root = tempfile::tempdir().unwrap();
        let machine = HostMachine { root: root.path().into(), ..HostMachine::default() };
        assert_eq!(huge_pages(&machine), []);
        let file = root.path().join("sys/kernel/mm/transparent_hugepage/enabled");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        for (text, state) in [
            ("always [madvise] never\n", FindingState::Fine),
            ("[always] madvise never\n", FindingState::Fine),
            ("always madvise [never]\n", FindingState::Improvable),
        ] {
            std::fs::write(&file, text).unwrap();
            let found = &huge_pages(&machine)[0];
            assert_eq!((found.state, found.fix.is_some()), (state, state != FindingState::Fine));
        }
    }
}
