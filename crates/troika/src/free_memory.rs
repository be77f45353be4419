//! How much memory is free.

use std::path::Path;

/// Bytes of memory that this process can get, if the system tells: what the machine has free, or
/// what the process's control group leaves (Linux).
pub fn free_memory() -> Option<u64> {
    let free = free_of_machine()?;
    Some(free.min(left_by_groups(Path::new("/sys/fs/cgroup")).unwrap_or(u64::MAX)))
}

/// What the machine has free, with what the system's cache of files takes.
fn free_of_machine() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory_specifics(sysinfo::MemoryRefreshKind::nothing().with_ram());
    Some(system.available_memory()).filter(|_| sysinfo::IS_SUPPORTED_SYSTEM)
}

/// What the control groups of this process leave, of both versions.
fn left_by_groups(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut left = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (base, names) = if controllers.is_empty() {
            (root.to_path_buf(), ["memory.max", "memory.current"])
        } else if controllers.split(',').any(|c| c == "memory") {
            (root.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes"])
        } else {
            continue;
        };
        // Groups within groups: each has a limit of its own.
        let inner = base.join(path.trim_start_matches('/'));
        let all = inner.ancestors().take_while(|at| at.starts_with(&base));
        left = all.filter_map(|at| left_by_group(at, names)).chain(left).min();
    }
    left
}

/// What a group leaves: its limit without what is used, where files in the system's cache make way.
fn left_by_group(at: &Path, [limit, used]: [&str; 2]) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(at.join(name)).ok()?.trim().parse().ok()
    };
    let (limit, used) = (number(limit)?, number(used)?);
    let stat = std::fs::read_to_string(at.join("memory.stat")).unwrap_or_default();
    let files = |name: &str| -> Option<u64> {
        let line = stat.lines().find(|l| l.split(' ').next() == Some(name))?;
        line.split(' ').nth(1)?.parse().ok()
    };
    let of_files = |prefix: &str| {
        let each = ["active_file", "inactive_file"].map(|name| files(&format!("{prefix}{name}")));
        Some(each[0]? + each[1]?)
    };
    // Version 1 counts a group's children apart.
    let files = of_files("total_").or_else(|| of_files("")).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(files)))
}
