//! Device nodes and drivers of NPUs and GPUs (Linux).

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use super::finding::Finding;
use super::machine::{HostMachine, quoted};
use super::npu;
use crate::output::file_name;

/// The class of processors that are neither for graphics nor for anything else (PCI code and ID
/// assignment specification).
const PCI_ACCELERATOR: &str = "0x1200";

/// NPUs with a node: whether it can be opened, and whether a provider finds the NPU.
pub fn accelerators(machine: &HostMachine) -> Vec<Finding> {
    let nodes = machine.list("dev/accel").into_iter().chain(machine.list("dev"));
    let nodes = nodes.filter(|node| file_name(node).starts_with("accel") && !node.is_dir());
    nodes.map(|node| accelerator(machine, &node)).collect()
}

fn accelerator(machine: &HostMachine, node: &Path) -> Finding {
    const TOPIC: &str = "NPU";
    let driver = machine.at(&format!("sys/class/accel/{}/device/driver", file_name(node)));
    let driver = std::fs::read_link(driver).map_or_else(|_| String::new(), |to| file_name(&to));
    let shown = match driver.is_empty() {
        true => node.display().to_string(),
        false => format!("{} ({driver})", node.display()),
    };
    match OpenOptions::new().read(true).write(true).open(node) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let says = format!("{shown} cannot be opened: {e}");
            Finding::missing(TOPIC, says).mended_by(permission(machine, node))
        }
        Err(e) => Finding::missing(TOPIC, format!("{shown} cannot be opened: {e}")),
        Ok(_) if npu::finds_one(machine) => Finding::fine(TOPIC, shown),
        Ok(_) => {
            let found = Finding::improvable(TOPIC, format!("{shown}: no provider finds it"));
            match driver.as_str() {
                "intel_vpu" => found.mended_by("sudo snap install intel-npu-driver"),
                _ => found,
            }
        }
    }
}

/// The command that lets the user open a node: most belong to a group.
fn permission(machine: &HostMachine, node: &Path) -> String {
    match group(machine, node) {
        Some(group) => format!("sudo usermod -aG {group} \"$(id -un)\", and log in again"),
        None => format!("sudo chgrp render {0} && sudo chmod g+rw {0}", quoted(node)),
    }
}

/// The group of a node, if it is not the superuser's.
#[cfg(unix)]
fn group(machine: &HostMachine, node: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let id = node.metadata().ok()?.gid();
    if id == 0 {
        return None;
    }
    let groups = machine.read("etc/group")?;
    let of = |line: &str| line.split(':').nth(2).is_some_and(|number| number == id.to_string());
    let line = groups.lines().find(|line| of(line))?;
    line.split(':').next().map(str::to_string)
}

#[cfg(not(unix))]
fn group(_: &HostMachine, _: &Path) -> Option<String> {
    None
}

/// NPUs on the bus that no driver has taken.
pub fn without_driver(machine: &HostMachine) -> Vec<Finding> {
    let devices = machine.list("sys/bus/pci/devices");
    let found = devices.into_iter().filter_map(|device| {
        let read = |name: &str| std::fs::read_to_string(device.join(name)).unwrap_or_default();
        let is_one = read("class").starts_with(PCI_ACCELERATOR);
        if !is_one || device.join("driver").exists() {
            return None;
        }
        let says = format!("the NPU at {} has no driver", file_name(&device));
        let found = Finding::missing("NPU", says);
        Some(match read("vendor").trim() {
            "0x8086" => found.mended_by("sudo modprobe intel_vpu"),
            "0x1022" => found.mended_by("sudo modprobe amdxdna"),
            _ => found,
        })
    });
    found.collect()
}

/// GPUs; their adapters say more.
pub fn graphics(machine: &HostMachine) -> Vec<Finding> {
    let nodes = machine.list("dev/dri").into_iter().filter(|n| file_name(n).starts_with("render"));
    let names: Vec<String> = nodes.map(|node| node.display().to_string()).collect();
    if names.is_empty() {
        return Vec::new();
    }
    vec![Finding::fine(
        "GPU",
        format!("{}: troika devices says what of each is used", names.join(", ")),
    )]
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::Path;

    use super::{accelerators, graphics, permission, without_driver};
    use crate::doctor::{FindingState, HostMachine};

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn link(root: &Path, path: &str, target: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    }

    #[test]
    fn an_npu_that_no_provider_finds_needs_its_driver() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let machine = HostMachine { root: root.into(), ..HostMachine::default() };
        assert_eq!((accelerators(&machine), graphics(&machine)), (Vec::new(), Vec::new()));
        write(root, "dev/accel/accel0", "");
        link(root, "sys/class/accel/accel0/device/driver", "../../bus/pci/drivers/intel_vpu");
        write(root, "dev/accel/accel1", "");
        // One that is gone.
        link(root, "dev/accel/accel2", "nowhere");
        write(root, "dev/dri/card0", "");
        write(root, "dev/dri/renderD128", "");
        let found = accelerators(&machine);
        let states: Vec<FindingState> = found.iter().map(|f| f.state).collect();
        let improvable = FindingState::Improvable;
        assert_eq!(states, [improvable, improvable, FindingState::Missing]);
        assert!(found[0].says.ends_with("accel0 (intel_vpu): no provider finds it"), "{found:?}");
        assert_eq!(found[0].fix.as_deref(), Some("sudo snap install intel-npu-driver"));
        assert_eq!(found[1].fix, None);
        assert!(graphics(&machine)[0].says.contains("renderD128: troika devices"));
    }

    #[test]
    fn a_node_is_opened_by_its_group() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let machine = HostMachine { root: root.into(), ..HostMachine::default() };
        write(root, "dev/accel/accel0", "");
        let node = root.join("dev/accel/accel0");
        let id = node.metadata().unwrap().gid();
        write(root, "etc/group", &format!("other:x:{}:\nnpu:x:{id}:me\n", id + 1));
        let fix = permission(&machine, &node);
        match id {
            0 => assert!(fix.starts_with("sudo chgrp render "), "{fix}"),
            _ => assert!(fix.starts_with("sudo usermod -aG npu "), "{fix}"),
        }
    }

    #[test]
    fn an_npu_without_a_driver_is_found_on_the_bus() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (device, class, vendor) in [
            ("0000:00:0b.0", "0x120000\n", "0x8086\n"),
            ("0000:00:0c.0", "0x120000\n", "0x1022\n"),
            ("0000:00:0d.0", "0x120000\n", "0x8086\n"),
            ("0000:00:0e.0", "0x030000\n", "0x8086\n"),
        ] {
            write(root, &format!("sys/bus/pci/devices/{device}/class"), class);
            write(root, &format!("sys/bus/pci/devices/{device}/vendor"), vendor);
        }
        write(root, "sys/bus/pci/devices/0000:00:0d.0/driver/module", "");
        let machine = HostMachine { root: root.into(), ..HostMachine::default() };
        let found = without_driver(&machine);
        let fixes: Vec<Option<&str>> = found.iter().map(|f| f.fix.as_deref()).collect();
        assert_eq!(fixes, [Some("sudo modprobe intel_vpu"), Some("sudo modprobe amdxdna")]);
    }
}
