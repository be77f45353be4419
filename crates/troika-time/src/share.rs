//! What work needs, and how processors share the memory's bandwidth.

/// What a task needs on an idle machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCost {
    /// Nanoseconds.
    pub ns: u64,
    /// Bytes read and written meanwhile.
    pub bytes: u64,
    /// Whether it mostly waits for memory or weights.
    pub streams: bool,
    /// What [`Sharing`] knows the task by, if that needs to know more.
    pub tag: usize,
}

impl TaskCost {
    /// The bandwidth it wants, in bytes per nanosecond.
    pub fn wants(&self) -> f64 {
        if self.ns == 0 { 0.0 } else { self.bytes as f64 / self.ns as f64 }
    }
}

/// How tasks on different processors slow each other down.
pub trait Sharing {
    /// The share of its speed on an idle machine that each of some tasks gets while all run.
    fn shares(&self, running: &[TaskCost]) -> Vec<f64>;
}

/// Memory bandwidth in bytes per nanosecond; `None`: as much as is wanted.
///
/// If all tasks together want more than there is, it is divided by water-filling: equal parts for
/// those that want more than such a part. A task that gets less takes longer in proportion.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth(pub Option<f64>);

impl Sharing for Bandwidth {
    fn shares(&self, running: &[TaskCost]) -> Vec<f64> {
        let wants: Vec<f64> = running.iter().map(TaskCost::wants).collect();
        let level = self.0.map_or(f64::INFINITY, |all| water_level(&wants, all));
        wants.into_iter().map(|w| if w > level { level / w } else { 1.0 }).collect()
    }
}

/// The highest bandwidth per task such that all together stay within `all`.
fn water_level(wants: &[f64], all: f64) -> f64 {
    let mut sorted = wants.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut left = all;
    for (i, want) in sorted.iter().enumerate() {
        let level = left / (sorted.len() - i) as f64;
        if *want > level {
            return level;
        }
        left -= want;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::water_level;

    #[test]
    fn bandwidth_is_shared_by_water_filling() {
        // A task that wants less than an equal part gets it; the others share the rest.
        assert_eq!(water_level(&[10.0, 20.0], 30.0), f64::INFINITY);
        assert_eq!(water_level(&[40.0, 40.0], 60.0), 30.0);
        assert_eq!(water_level(&[40.0, 10.0], 40.0), 30.0);
        assert_eq!(water_level(&[5.0, 40.0, 50.0], 45.0), 20.0);
        assert_eq!(water_level(&[], 45.0), f64::INFINITY);
    }
}
