//! Which logical cores there are: of one physical core, for performance or for efficiency; and how
//! large their caches are.
//!
//! On Linux, from `/sys/devices` (kernel documentation: `admin-guide/cputopology.rst`,
//! `cpu_capacity` of the ARM schedulers, `cpu_core` of Intel's hybrid processors). On Windows, from
//! `GetLogicalProcessorInformationEx`; on macOS, from `sysctl`. Each system's answer is read by a
//! function of its own that is compiled everywhere. Elsewhere only the number of cores is known.

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

/// More logical cores than any machine has.
const MOST: usize = 4096;

/// ARM cores below this share of the largest capacity are efficiency cores.
#[cfg(any(not(any(windows, target_os = "macos")), test))]
const FAST_CAPACITY: f64 = 0.5;

/// The logical cores that this process may use, by number; empty if the system does not tell.
pub fn topology() -> Vec<Core> {
    let allowed = allowed();
    let mut cores = answer();
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

/// What this system says of its cores.
#[cfg(not(any(windows, target_os = "macos")))]
fn answer() -> Vec<Core> {
    read(Path::new("/sys/devices"))
}

/// What this system says of its cores.
#[cfg(windows)]
fn answer() -> Vec<Core> {
    #[link(name = "kernel32")]
    unsafe extern "system" {
        fn GetLogicalProcessorInformationEx(relation: u32, buffer: *mut u64, len: *mut u32) -> i32;
    }
    // Records of physical cores (relation 0), aligned as they are and enough for any machine.
    let mut buffer = vec![0u64; 8 * MOST];
    let mut len = size_of_val(&buffer[..]) as u32;
    // SAFETY: `len` bytes can be written to the buffer.
    let told = unsafe { GetLogicalProcessorInformationEx(0, buffer.as_mut_ptr(), &mut len) };
    let bytes: &[u8] = bytemuck::cast_slice(&buffer);
    from_windows(if told == 0 { &[] } else { &bytes[..len as usize] })
}

/// What this system says of its cores.
#[cfg(target_os = "macos")]
fn answer() -> Vec<Core> {
    from_macos(&|name| {
        let (mut value, mut len) = (0u32, size_of::<u32>());
        let (name, new) = (std::ffi::CString::new(name).ok()?, std::ptr::null_mut());
        let place = (&raw mut value).cast();
        // SAFETY: the name ends with a zero, and `len` bytes can be written to `value`.
        let told = unsafe { libc::sysctlbyname(name.as_ptr(), place, &mut len, new, 0) };
        (told == 0 && len == size_of::<u32>()).then_some(value as usize)
    })
}

/// Reads the records `SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX` of physical cores, as 64-bit Windows
/// lays them out: kind and length (u32), flags and efficiency class (u8), 20 bytes, the number of
/// groups (u16), and for each group a mask of logical cores (u64), its number (u16) and 6 bytes.
/// Cores of the highest class are performance cores.
#[cfg(any(windows, test))]
fn from_windows(mut answer: &[u8]) -> Vec<Core> {
    let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let short = |bytes: &[u8]| usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let mut cores = Vec::new();
    for physical in 0.. {
        let len = (number(answer) >> 32) as usize;
        let Some((record, rest)) = answer.split_at_checked(len).filter(|_| len >= 48) else {
            break;
        };
        for group in record[32..].chunks_exact(16).take(short(&record[30..])) {
            let (mask, first) = (number(group), 64 * short(&group[8..]));
            let ids = (0..64).filter(|bit| mask >> bit & 1 == 1).map(|bit| first + bit);
            let core = |id| Core { id, physical: (0, physical), performance: true };
            cores.extend(ids.map(|id| (record[9], core(id))));
        }
        answer = rest;
    }
    let best = cores.iter().map(|(class, _)| *class).max();
    cores.iter_mut().for_each(|(class, core)| core.performance = Some(*class) == best);
    cores.sort_by_key(|(_, core)| core.id);
    cores.into_iter().map(|(_, core)| core).collect()
}

/// Reads the numbers that `sysctl` knows by name. Level 0 has the fastest cores. Which numbers they
/// have is not told; macOS binds no thread to one.
#[cfg(any(target_os = "macos", test))]
fn from_macos(number: &dyn Fn(&str) -> Option<usize>) -> Vec<Core> {
    let (Some(all), Some(logical)) = (number("hw.physicalcpu"), number("hw.logicalcpu")) else {
        return Vec::new();
    };
    let levels = number("hw.nperflevels").unwrap_or(1);
    let fast = number("hw.perflevel0.physicalcpu").filter(|_| levels > 1).unwrap_or(all);
    let threads = logical.checked_div(all).unwrap_or(0).max(1);
    let core = |id| Core { id, physical: (0, id / threads), performance: id / threads < fast };
    (0..logical.min(MOST)).map(core).collect()
}

/// Reads the tree of `/sys/devices`.
#[cfg(any(not(any(windows, target_os = "macos")), test))]
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
#[cfg(any(not(any(windows, target_os = "macos")), test))]
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
        if first > last || last >= MOST {
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

    /// A record of Windows for each physical core: its class, its group and the mask of its threads.
    fn windows(cores: impl IntoIterator<Item = (u8, u16, u64)>) -> Vec<u8> {
        let record = |(class, group, mask): (u8, u16, u64)| {
            let mut record = vec![0u8; 48];
            record[4] = 48;
            record[8] = u8::from(mask.count_ones() > 1);
            record[9] = class;
            record[30] = 1;
            record[32..40].copy_from_slice(&mask.to_le_bytes());
            record[40..42].copy_from_slice(&group.to_le_bytes());
            record
        };
        cores.into_iter().flat_map(record).collect()
    }

    /// Written by the layout that Microsoft documents and the cores that makers list, not recorded.
    #[test]
    fn answers_of_windows() {
        let pair = |at: u64| 3u64 << (2 * at);
        // A Core i9-13900K: 8 fast cores of two threads, 16 slow ones.
        let fast = (0..8).map(|k| (1, 0, pair(k)));
        let hybrid: Vec<_> = fast.chain((16..32).map(|bit| (0, 0, 1 << bit))).collect();
        let cores = from_windows(&windows(hybrid));
        assert_eq!((cores.len(), cores.iter().filter(|c| c.performance).count()), (32, 16));
        assert_eq!(physical_cores(&cores), [0, 2, 4, 6, 8, 10, 12, 14]);
        // A Core Ultra 7 155H: 6 fast cores, 8 slow ones, 2 slower ones.
        let slow = (12..20).map(|bit| (1, 0, 1u64 << bit));
        let slower = (20..22).map(|bit| (0, 0, 1u64 << bit));
        let three = (0..6).map(|k| (2, 0, pair(k))).chain(slow).chain(slower);
        assert_eq!(physical_cores(&from_windows(&windows(three))), [0, 2, 4, 6, 8, 10]);
        // A Ryzen 7 5800X: 8 cores of two threads, of one class.
        let equal = (0..8).map(|k| (0, 0, pair(k)));
        assert_eq!(physical_cores(&from_windows(&windows(equal))).len(), 8);
        // A Snapdragon 8cx Gen 3: 4 slow cores, 4 fast ones.
        let arm = (0..8).map(|bit| (u8::from(bit > 3), 0, 1u64 << bit));
        assert_eq!(physical_cores(&from_windows(&windows(arm))), [4, 5, 6, 7]);
        // A Threadripper 3990X: 64 cores of two threads in two groups.
        let groups = (0..64).map(|k| (0, (k / 32) as u16, pair(k % 32)));
        let cores = from_windows(&windows(groups));
        assert_eq!((cores.len(), physical_cores(&cores).len()), (128, 64));
        assert_eq!(cores.last().map(|c| (c.id, c.physical)), Some((127, (0, 63))));
        // What is cut off, or has no length, ends the list.
        let whole = windows((0..2).map(|k| (0, 0, 1 << k)));
        for (bytes, cores) in [(&whole[..], 2), (&whole[..95], 1), (&whole[..40], 0), (&[0; 96], 0)]
        {
            assert_eq!(from_windows(bytes).len(), cores);
        }
    }

    /// Written by the names that Apple documents and the cores that it lists, not recorded.
    #[test]
    fn answers_of_macos() {
        let cores = |answer: &str| {
            let find = |name: &str| {
                let line = answer.lines().find_map(|line| line.trim().strip_prefix(name))?;
                line.strip_prefix(": ")?.parse().ok()
            };
            let cores = from_macos(&find);
            (cores.len(), physical_cores(&cores).len())
        };
        let m1 = "hw.nperflevels: 2\nhw.perflevel0.physicalcpu: 4\nhw.physicalcpu: 8\n\
                  hw.logicalcpu: 8";
        let m3_max = "hw.nperflevels: 2\nhw.perflevel0.physicalcpu: 12\nhw.physicalcpu: 16\n\
                      hw.logicalcpu: 16";
        let intel = "hw.nperflevels: 1\nhw.perflevel0.physicalcpu: 8\nhw.physicalcpu: 8\n\
                     hw.logicalcpu: 16";
        let before_levels = "hw.physicalcpu: 2\nhw.logicalcpu: 4";
        assert_eq!(cores(m1), (8, 4));
        assert_eq!(cores(m3_max), (16, 12));
        assert_eq!(cores(intel), (16, 8));
        assert_eq!(cores(before_levels), (4, 2));
        assert_eq!(cores("hw.physicalcpu: 0\nhw.logicalcpu: 1"), (1, 0));
        assert_eq!(cores(""), (0, 0));
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
