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
    let limit = super::cores();
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
        let mut value = [0u8; 64];
        let mut len = value.len();
        let (name, new) = (std::ffi::CString::new(name).ok()?, std::ptr::null_mut());
        let place = value.as_mut_ptr().cast();
        // SAFETY: the name ends with a zero, and `len` bytes can be written to `value`.
        let told = unsafe { libc::sysctlbyname(name.as_ptr(), place, &mut len, new, 0) };
        (told == 0).then(|| value[..len].to_vec())
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

/// Reads what `sysctl` knows by name: numbers in four bytes, and text. Level 0 has the fastest cores;
/// the others count as fast unless they are named "Efficiency", or have no name. Which numbers cores
/// have is not told; macOS binds no thread to one.
#[cfg(any(target_os = "macos", test))]
fn from_macos(value: &dyn Fn(&str) -> Option<Vec<u8>>) -> Vec<Core> {
    let number = |name: &str| value(name)?.try_into().map(u32::from_ne_bytes).ok();
    let (Some(all), Some(logical)) = (number("hw.physicalcpu"), number("hw.logicalcpu")) else {
        return Vec::new();
    };
    let is_fast = |level: &u32| {
        let name = value(&format!("hw.perflevel{level}.name"));
        *level == 0 || name.is_some_and(|name| !name.starts_with(b"Efficiency"))
    };
    let levels = (0..number("hw.nperflevels").unwrap_or(0).min(8)).filter(is_fast);
    let fast = levels.filter_map(|level| number(&format!("hw.perflevel{level}.physicalcpu"))).sum();
    let fast = if fast == 0 { all } else { fast } as usize;
    let threads = logical.checked_div(all).unwrap_or(0).max(1) as usize;
    let core = |id| Core { id, physical: (0, id / threads), performance: id / threads < fast };
    (0..(logical as usize).min(MOST)).map(core).collect()
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

    /// What `GetLogicalProcessorInformationEx` told on real machines: class, group and mask of each
    /// core as programs printed them, since no raw bytes were found.
    #[test]
    fn recorded_answers_of_windows() {
        let read = |cores: Vec<(u8, u16, u64)>| from_windows(&windows(cores));
        let pairs = |n: u64| (0..n).map(|k| 3u64 << (2 * k));
        let alone = |bits: std::ops::Range<u64>| bits.map(|bit| 1u64 << bit);
        // A Core i5-14600K with Windows 11: github.com/SimonvBez/CPUSetSetter/issues/3, 2025-10-31.
        // The last four of its 14 lines were cut off; the CPU's other slow cores are taken for them.
        let fast = pairs(6).map(|mask| (1, 0, mask));
        let cores = read(fast.chain(alone(12..20).map(|mask| (0, 0, mask))).collect());
        assert_eq!((cores.len(), cores.iter().filter(|c| c.performance).count()), (20, 12));
        assert_eq!(physical_cores(&cores), [0, 2, 4, 6, 8, 10]);
        // A Core i7-12700KF whose slow cores are switched off: class 0 is the best one. Same page,
        // 2025-11-05.
        let cores = read(pairs(8).map(|mask| (0, 0, mask)).collect());
        assert_eq!(physical_cores(&cores), [0, 2, 4, 6, 8, 10, 12, 14]);
        // A Core Ultra 7 165U, whose fast cores are not the first ones; Coreinfo prints no classes:
        // learn.microsoft.com/sysinternals/downloads/coreinfo, version 4.0.
        let masks = pairs(1).chain(alone(2..10)).chain([3 << 10]).chain(alone(12..14));
        let cores = read(masks.map(|mask| (0, 0, mask)).collect());
        assert_eq!(physical_cores(&cores), [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13]);
        // A server with two sockets of six cores, of Windows Server before classes:
        // dba.stackexchange.com/a/36578.
        let cores = read(pairs(12).map(|mask| (0, 0, mask)).collect());
        assert_eq!((cores.len(), physical_cores(&cores).len()), (24, 12));
        // A server with groups of 64, 16 and 64 logical cores. The page tells the groups, not the
        // cores: github.com/open-mpi/hwloc/issues/497, 2021-11-17.
        let group = |group, n: u64| pairs(n / 2).map(move |mask| (0, group, mask));
        let cores = read(group(0, 64).chain(group(1, 16)).chain(group(2, 64)).collect());
        assert_eq!((cores.len(), physical_cores(&cores).len()), (144, 72));
        assert_eq!(cores.last().map(|c| (c.id, c.physical)), Some((191, (0, 71))));
    }

    #[test]
    fn an_answer_of_windows_that_is_cut_off_ends_the_list() {
        let whole = windows((0..2).map(|k| (0, 0, 1 << k)));
        for (bytes, cores) in [(&whole[..], 2), (&whole[..95], 1), (&whole[..40], 0), (&[0; 96], 0)]
        {
            assert_eq!(from_windows(bytes).len(), cores);
        }
    }

    /// What `sysctl` told on real Macs, as their owners published it.
    #[test]
    fn recorded_answers_of_macos() {
        let cores = |answer: &str| {
            let find = |name: &str| {
                let mut pairs = answer.split(", ").filter_map(|pair| pair.split_once(": "));
                let text = pairs.find(|(key, _)| *key == name.trim_start_matches("hw."))?.1;
                let number = text.parse::<u32>().map(|n| n.to_ne_bytes().to_vec());
                Some(number.unwrap_or_else(|_| [text.as_bytes(), b"\0"].concat()))
            };
            let cores = from_macos(&find);
            (cores.len(), physical_cores(&cores).len())
        };
        // A MacBookPro11,3 with a Core i7-4850HQ: github.com/osquery/osquery/pull/1501.
        assert_eq!(cores("physicalcpu: 4, logicalcpu: 8"), (8, 4));
        // An M1 with macOS 11, which has no levels: github.com/seanmonstar/num_cpus/issues/104.
        assert_eq!(cores("physicalcpu: 8, logicalcpu: 8"), (8, 8));
        // An M1 Pro; the numbers of all cores are told as ncpu and activecpu:
        // github.com/Dr-Noob/cpufetch/issues/139.
        let m1_pro = "physicalcpu: 10, logicalcpu: 10, nperflevels: 2, perflevel0.physicalcpu: 8, \
                      perflevel1.physicalcpu: 2";
        assert_eq!(cores(m1_pro), (10, 8));
        // An M5 Max (Mac17,6), none of whose cores is slow: github.com/vladkens/macmon/issues/47.
        let m5_max = "physicalcpu: 18, logicalcpu: 18, nperflevels: 2, perflevel0.physicalcpu: 6, \
                      perflevel0.name: Super, perflevel1.physicalcpu: 12, \
                      perflevel1.name: Performance";
        assert_eq!(cores(m5_max), (18, 18));
        // An M6 with macOS 27: github.com/kjn-void/gd-rs, the page of its benchmarks.
        let m6 = "physicalcpu: 12, logicalcpu: 12, nperflevels: 3, perflevel0.name: Super, \
                  perflevel0.physicalcpu: 2, perflevel1.name: Performance, \
                  perflevel1.physicalcpu: 4, perflevel2.name: Efficiency, \
                  perflevel2.physicalcpu: 6";
        assert_eq!(cores(m6), (12, 6));
        // No machine's.
        assert_eq!(cores("physicalcpu: 0, logicalcpu: 1"), (1, 0));
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
