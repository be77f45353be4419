//! The load of devices, by which a plan may choose: how slow they were recently, and what else they
//! have to do. The choice itself is the plan's ([`troika_plan::LoadRules::choose`]).

use std::time::Duration;

use troika_plan::{DeviceLoad, DeviceTime};

/// The part of a device's slowness that remains after a chunk without work for it, so that it is
/// tried again later.
const REMEMBERED: f64 = 7.0 / 8.0;
/// The weight of a new measurement against what is known.
const NEW: f64 = 0.5;
/// The highest slowness recorded.
const SLOWEST: f64 = 64.0;

/// Number of chunks by how their placement was chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// By the plan's rules for their length.
    pub by_length: u64,
    /// In another way, because of load.
    pub otherwise: u64,
}

/// The loads of devices, as far as this engine knows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loads {
    /// For each device, how many times longer than predicted its work took recently.
    slower: Vec<f64>,
    /// Devices whose work was measured at least once.
    seen: Vec<bool>,
    /// How long a decode step takes, and when the one in flight began.
    pub decoding: Duration,
    pub decoding_since: Option<Duration>,
    pub decisions: Decisions,
}

impl Loads {
    pub fn new(devices: usize) -> Loads {
        Loads { slower: vec![1.0; devices], seen: vec![false; devices], ..Loads::default() }
    }

    /// The load of each device; `decodes` says whether a device decodes.
    pub fn of_devices(&self, now: Duration, decodes: impl Fn(usize) -> bool) -> Vec<DeviceLoad> {
        let left = self
            .decoding_since
            .map(|since| self.decoding.saturating_sub(now.saturating_sub(since)));
        let queued = left.unwrap_or_default().as_nanos() as f64 * 1e-3;
        let of = |(d, slower): (usize, &f64)| DeviceLoad {
            slower: *slower,
            queued_us: if decodes(d) { queued } else { 0.0 },
        };
        self.slower.iter().enumerate().map(of).collect()
    }

    /// Learns that a device was busy with a chunk for `busy_us`, where `own` and the whole chunk's
    /// `all` were predicted. Delay counts against all work that passes through the device. A device
    /// with a small part of the chunk tells little.
    pub fn learn(&mut self, device: usize, busy_us: f64, (own, all): (DeviceTime, f64)) {
        let Some(slower) = self.slower.get_mut(device) else { return };
        if own.span_us <= 0.0 {
            *slower = 1.0 + (*slower - 1.0) * REMEMBERED;
            return;
        }
        let first = !std::mem::replace(&mut self.seen[device], true);
        let weight = if first { 1.0 } else { NEW } * (2.0 * own.span_us / all).min(1.0);
        let now = (1.0 + (busy_us - own.busy_us) / own.span_us).clamp(1.0, SLOWEST);
        *slower += (now - *slower) * weight;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use troika_plan::DeviceTime;

    use super::Loads;

    fn slower(loads: &Loads) -> Vec<f64> {
        loads.of_devices(Duration::ZERO, |_| false).iter().map(|l| l.slower).collect()
    }

    #[test]
    fn what_is_measured_counts_by_the_part_of_the_chunk_that_it_concerns() {
        let mut loads = Loads::new(3);
        let time = |busy_us, span_us| (DeviceTime { busy_us, span_us }, 100.0);
        // A device with work throughout the chunk, and one with next to none.
        loads.learn(0, 250.0, time(50.0, 100.0));
        loads.learn(1, 20.0, time(1.0, 1.0));
        assert!((slower(&loads)[0] - 3.0).abs() < 1e-9);
        assert!((slower(&loads)[1] - (1.0 + 19.0 * 0.02)).abs() < 1e-9);
        // A new measurement counts half; slowness is never below 1.
        loads.learn(0, 10.0, time(50.0, 100.0));
        assert!((slower(&loads)[0] - 2.0).abs() < 1e-9);
        // Slowness of an unused device fades, and the device is tried again.
        for _ in 0..40 {
            loads.learn(0, 0.0, time(0.0, 0.0));
        }
        assert!(slower(&loads)[0] < 1.01);
        assert!((slower(&loads)[2] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_step_of_decoding_occupies_its_devices_until_it_should_end() {
        let ms = Duration::from_millis;
        let mut loads = Loads::new(2);
        (loads.decoding, loads.decoding_since) = (ms(10), Some(ms(100)));
        let queued = |loads: &Loads, now| -> Vec<f64> {
            loads.of_devices(ms(now), |d| d == 1).iter().map(|l| l.queued_us).collect()
        };
        assert_eq!(queued(&loads, 104), [0.0, 6000.0]);
        assert_eq!(queued(&loads, 120), [0.0, 0.0]);
        loads.decoding_since = None;
        assert_eq!(queued(&loads, 104), [0.0, 0.0]);
    }
}
