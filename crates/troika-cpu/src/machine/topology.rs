//! Which logical cores there are: of one physical core, for performance or for efficiency; and how
//! large their caches are.
//!
//! On Linux, from `/sys/devices` (kernel documentation: `admin-guide/cputopology.rst`,
//! `cpu_capacity` of the ARM schedulers, `cpu_core` of Intel's hybrid processors). Elsewhere only
//! the number of cores is known.

use std::fs;
use std::path::Path;

/// A logical core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its number.
    pub id: usize,
    /// The physical core: package and number within it.
    pub physical: (usize, usize),
    /// Whether it is a performance core (all are if cores are equal).
    pub performance: bool,
}

/// ARM cores below this share of the largest capacity are efficiency cores.
const FAST_CAPACITY: f64 = 0.5;

/// The logical cores that this process may use, by number; empty if the system does not tell.
pub fn topology() -> Vec<Core> {
    let allowed = allowed();
    let mut cores = read(Path::new("/sys/devices"));
    cores.retain(|c| allowed.as_ref().is_none_or(|a| a.contains(&c.id)));
    cores
}

/// The default number of threads of a CPU device: one per physical performance core that this
/// process may use. A second thread would share a core's multiply units, and a slow core would make
/// the fast ones wait at the end of each region.
pub fn default_threads() -> usize {
    let limit = std::thread::available_parallelism().map_or(1, usize::from);
    match physical_cores(&topology()).len() {
        0 => limit,
        n => n.min(limit),
    }
}

/// The first logical core of each physical performance core.
pub fn physical_cores(cores: &[Core]) -> Vec<usize> {
    let mut seen = Vec::new();
    let fresh = |c: &&Core| {
        let fresh = !seen.contains(&c.physical);
        seen.push(c.physical);
        fresh
    };
    cores.iter().filter(|c| c.performance).filter(fresh).map(|c| c.id).collect()
}

/// Reads the tree of `/sys/devices`.
fn read(root: &Path) -> Vec<Core> {
    let system = root.join("system/cpu");
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    let Some(online) = list(&system.join("online")) else { return Vec::new() };
    let fast = list(&root.join("cpu_core/cpus"));
    let capacity = |id: usize| number(&system.join(format!("cpu{id}/cpu_capacity")));
    let largest = online.iter().filter_map(|&id| capacity(id)).max();
    let core = |&id: &usize| {
        let at = system.join(format!("cpu{id}/topology"));
        let package = number(&at.join("physical_package_id")).unwrap_or(0);
        // A core without a core id counts as a physical core of its own.
        let physical = (package, number(&at.join("core_id")).unwrap_or(id));
        let capable = match (capacity(id), largest) {
            (Some(own), Some(largest)) => own as f64 >= FAST_CAPACITY * largest as f64,
            _ => true,
        };
        let performance = capable && fast.as_ref().is_none_or(|f| f.contains(&id));
        Core { id, physical, performance }
    };
    online.iter().map(core).collect()
}

/// Bytes of the last-level caches of all cores this process may use; `None` when the system does not
/// say.
pub fn last_level_caches() -> Option<u64> {
    let cores: Vec<usize> = topology().iter().map(|c| c.id).collect();
    read_caches(Path::new("/sys/devices/system/cpu"), &cores)
}

/// Reads `cpu*/cache` (kernel documentation: `ABI/testing/sysfs-devices-system-cpu`). A cache that
/// several cores share counts once.
fn read_caches(cpus: &Path, cores: &[usize]) -> Option<u64> {
    let mut caches = Vec::new();
    for core in cores {
        let folder = fs::read_dir(cpus.join(format!("cpu{core}/cache"))).ok()?;
        let last = folder.flatten().filter_map(|entry| {
            let text =
                |name| Some(fs::read_to_string(entry.path().join(name)).ok()?.trim().to_string());
            let kib: u64 = text("size")?.strip_suffix('K')?.parse().ok()?;
            let shared = text("shared_cpu_list").unwrap_or_else(|| core.to_string());
            let level: u32 = text("level")?.parse().ok()?;
            (text("type")? != "Instruction").then_some((level, shared, kib << 10))
        });
        caches.extend(last.max_by_key(|cache| cache.0));
    }
    caches.sort_unstable();
    caches.dedup();
    (!caches.is_empty()).then(|| caches.iter().map(|c| c.2).sum())
}

/// A list of the kernel's form in a file.
fn list(path: &Path) -> Option<Vec<usize>> {
    parse_cores(fs::read_to_string(path).ok()?.trim())
}

/// Parses a list of cores such as `0-3,8` in the format of the kernel and `taskset`; ascending,
/// without duplicates. `None` if it is invalid or contains numbers above 4095.
pub fn parse_cores(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse::<usize>().ok()?);
        if first > last || last > 4095 {
            return None;
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Some(cores)
}

/// The cores that this process may run on; `None` if the system does not tell.
fn allowed() -> Option<Vec<usize>> {
    #[cfg(target_os = "linux")]
    // SAFETY: `set` is a valid cpu_set_t of the size given; CPU_ISSET reads inside of it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return None;
        }
        let all = 0..libc::CPU_SETSIZE as usize;
        Some(all.filter(|&c| libc::CPU_ISSET(c, &set)).collect())
    }
    #[cfg(not(target_os = "linux"))]
    None
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn core(root: &Path, id: usize, core: usize) {
        write(root, &format!("system/cpu/cpu{id}/topology/core_id"), &format!("{core}\n"));
        write(root, &format!("system/cpu/cpu{id}/topology/physical_package_id"), "0\n");
    }

    #[test]
    fn two_threads_of_a_core_count_once() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "system/cpu/online", "0-3\n");
        (0..4).for_each(|i| core(dir.path(), i, i % 2));
        assert_eq!(physical_cores(&read(dir.path())), [0, 1]);
    }

    #[test]
    fn slow_cores_of_a_hybrid_processor_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "system/cpu/online", "0-5\n");
        write(dir.path(), "cpu_core/cpus", "0-3\n");
        write(dir.path(), "cpu_atom/cpus", "4-5\n");
        (0..6).for_each(|i| core(dir.path(), i, if i < 4 { i / 2 * 4 } else { i + 10 }));
        let cores = read(dir.path());
        assert_eq!(cores.iter().filter(|c| c.performance).count(), 4);
        assert_eq!(physical_cores(&cores), [0, 2]);
    }

    #[test]
    fn small_arm_cores_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "system/cpu/online", "0-3\n");
        for (i, capacity) in [300, 300, 800, 1024].into_iter().enumerate() {
            core(dir.path(), i, i);
            write(dir.path(), &format!("system/cpu/cpu{i}/cpu_capacity"), &capacity.to_string());
        }
        assert_eq!(physical_cores(&read(dir.path())), [2, 3]);
        assert!(read(&dir.path().join("nothing")).is_empty());
    }

    #[test]
    fn lists_of_cores() {
        assert_eq!(parse_cores("0-2,8,1"), Some(vec![0, 1, 2, 8]));
        for wrong in ["", "a", "3-1", "1-", "-1", "0-99999999", "1,,2"] {
            assert_eq!(parse_cores(wrong), None, "{wrong}");
        }
        assert!(default_threads() >= 1);
    }

    #[test]
    fn last_level_caches_count_once() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_caches(dir.path(), &[0]), None);
        let cache = |core: usize, index: usize, files: [&str; 4]| {
            let at = dir.path().join(format!("cpu{core}/cache/index{index}"));
            fs::create_dir_all(&at).unwrap();
            for (name, text) in ["level", "type", "size", "shared_cpu_list"].iter().zip(files) {
                fs::write(at.join(name), format!("{text}\n")).unwrap();
            }
        };
        for core in 0..4 {
            let shared = if core < 2 { "0-1" } else { "2-3" };
            cache(core, 0, ["1", "Data", "32K", &core.to_string()]);
            cache(core, 1, ["1", "Instruction", "64K", &core.to_string()]);
            cache(core, 2, ["2", "Unified", "1024K", shared]);
        }
        assert_eq!(read_caches(dir.path(), &[0, 1]), Some(1 << 20));
        assert_eq!(read_caches(dir.path(), &[0, 1, 2, 3]), Some(2 << 20));
    }
}
