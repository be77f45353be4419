//! The machine's energy use, where the system reports it: counters of processors
//! (`class/powercap`), or the power of a discharging battery (`class/power_supply`).

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The energy sources that can be read on a machine.
#[derive(Clone, Debug)]
pub struct EnergyMeter {
    sources: Vec<EnergySource>,
}

#[derive(Clone, Debug)]
enum EnergySource {
    /// Microjoules since some time, and the value at which the counter wraps.
    Counter { file: PathBuf, wraps_at: u64 },
    /// A battery's folder.
    Battery(PathBuf),
}

/// A running energy measurement.
#[derive(Debug)]
pub struct Metering {
    stop: SyncSender<()>,
    thread: JoinHandle<Option<f64>>,
}

fn number(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn text(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default().trim().to_string()
}

fn folders(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|e| e.path()).collect();
    all.sort();
    all
}

impl EnergyMeter {
    /// The sources in a folder such as `/sys`: counters of processors and their memory, else
    /// discharging batteries. `None` if none can be read.
    pub fn find(sys: &Path) -> Option<EnergyMeter> {
        let mut sources = counters(&sys.join("class/powercap"));
        if sources.is_empty() {
            let batteries = folders(&sys.join("class/power_supply")).into_iter();
            let batteries = batteries.filter(|dir| watts(dir).is_some());
            sources = batteries.map(EnergySource::Battery).collect();
        }
        (!sources.is_empty()).then_some(EnergyMeter { sources })
    }

    /// The kind of source.
    pub fn source(&self) -> &'static str {
        match self.sources.first() {
            Some(EnergySource::Battery(_)) => "power_supply",
            _ => "powercap",
        }
    }

    /// Starts measuring. It samples at intervals, since counters wrap and power changes. `None` if
    /// no thread can be started.
    pub fn start(&self, every: Duration) -> Option<Metering> {
        let (stop, stopped) = sync_channel(1);
        let mut samples = Samples::new(self.sources.clone());
        let look = move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                samples.look();
            }
            samples.look();
            samples.joules
        };
        let name = "troika-energy".to_string();
        let thread = std::thread::Builder::new().name(name).spawn(look).ok()?;
        Some(Metering { stop, thread })
    }
}

impl Metering {
    /// Joules from the start until now; `None` if a sample failed.
    pub fn stop(self) -> Option<f64> {
        // A thread that has ended already has its result.
        let _ = self.stop.send(());
        self.thread.join().ok().flatten()
    }
}

/// Counters of processor packages and their memory. Others are excluded: zones within packages are
/// parts of them, and a zone of the whole board includes them.
fn counters(dir: &Path) -> Vec<EnergySource> {
    let zone = |dir: PathBuf| {
        let name = text(&dir.join("name"));
        let counts = name.starts_with("package") || name == "dram";
        let file = dir.join("energy_uj");
        let wraps_at = number(&dir.join("max_energy_range_uj")).unwrap_or(u64::MAX);
        (counts && number(&file).is_some()).then_some(EnergySource::Counter { file, wraps_at })
    };
    folders(dir).into_iter().filter_map(zone).collect()
}

/// The power of a discharging battery, or `None`.
fn watts(dir: &Path) -> Option<f64> {
    let discharged = text(&dir.join("status")) == "Discharging";
    if text(&dir.join("type")) != "Battery" || !discharged {
        return None;
    }
    // Values are in millionths; some systems report discharge as negative.
    let signed = |name: &str| text(&dir.join(name)).parse::<i64>().ok().map(i64::unsigned_abs);
    let micro = |n: u64| n as f64 * 1e-6;
    let product = || Some(micro(signed("current_now")?) * micro(signed("voltage_now")?));
    signed("power_now").map(micro).or_else(product)
}

/// The sums so far.
struct Samples {
    sources: Vec<EnergySource>,
    last: Vec<Option<f64>>,
    at: Instant,
    joules: Option<f64>,
}

impl Samples {
    fn new(sources: Vec<EnergySource>) -> Samples {
        let last = sources.iter().map(read).collect();
        Samples { sources, last, at: Instant::now(), joules: Some(0.0) }
    }

    /// Adds the energy used since the last sample.
    fn look(&mut self) {
        let seconds = std::mem::replace(&mut self.at, Instant::now()).elapsed().as_secs_f64();
        for (source, last) in self.sources.iter().zip(&mut self.last) {
            let now = read(source);
            let before = std::mem::replace(last, now);
            let taken = now.zip(before).map(|(now, before)| match source {
                EnergySource::Counter { wraps_at, .. } if now < before => {
                    now - before + *wraps_at as f64 * 1e-6
                }
                EnergySource::Counter { .. } => now - before,
                EnergySource::Battery(_) => (now + before) / 2.0 * seconds,
            });
            self.joules = self.joules.zip(taken).map(|(sum, taken)| sum + taken);
        }
    }
}

/// Joules of a counter, or watts of a battery.
fn read(source: &EnergySource) -> Option<f64> {
    match source {
        EnergySource::Counter { file, .. } => number(file).map(|uj| uj as f64 * 1e-6),
        EnergySource::Battery(dir) => watts(dir),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::EnergyMeter;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let file = dir.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
    }

    const CAP: &str = "class/powercap/intel-rapl:0";

    #[test]
    fn counters_of_packages_and_memory_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path();
        assert!(EnergyMeter::find(sys).is_none(), "there is nothing");
        let zone = |at: &str, name: &str, uj: &str| {
            let [a, b, c] =
                ["name", "energy_uj", "max_energy_range_uj"].map(|f| format!("{at}/{f}"));
            write(sys, &[(&a, name), (&b, uj), (&c, "5000000\n")]);
        };
        zone(CAP, "package-0\n", "4000000\n");
        // A part of the package, and the whole board.
        zone(&format!("{CAP}:0"), "core\n", "1000000\n");
        zone("class/powercap/intel-rapl:1", "psys\n", "1000000\n");
        zone(&format!("{CAP}:2"), "dram\n", "1000000\n");
        let meter = EnergyMeter::find(sys).unwrap();
        assert_eq!(meter.source(), "powercap");
        let metering = meter.start(Duration::from_secs(60)).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        // The package's counter wrapped: 1 J up to its end, and 0.5 J after.
        zone(CAP, "package-0\n", "500000\n");
        zone(&format!("{CAP}:2"), "dram\n", "1250000\n");
        zone(&format!("{CAP}:0"), "core\n", "4000000\n");
        let joules = metering.stop().unwrap();
        assert!((joules - 1.75).abs() < 1e-9, "{joules}");
    }

    #[test]
    fn a_battery_is_read_while_it_is_discharged() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path();
        let at = |name: &str| format!("class/power_supply/BAT0/{name}");
        let [kind, status, current, voltage] =
            ["type", "status", "current_now", "voltage_now"].map(at);
        write(sys, &[(&kind, "Battery\n"), (&status, "Charging\n")]);
        write(sys, &[(&current, "-2000000\n"), (&voltage, "10000000\n")]);
        assert!(EnergyMeter::find(sys).is_none(), "its power is not what the machine takes");
        write(sys, &[(&status, "Discharging\n")]);
        let meter = EnergyMeter::find(sys).unwrap();
        assert_eq!(meter.source(), "power_supply");
        let start = std::time::Instant::now();
        let metering = meter.start(Duration::from_millis(5)).unwrap();
        std::thread::sleep(Duration::from_millis(60));
        let joules = metering.stop().unwrap();
        let most = 20.0 * start.elapsed().as_secs_f64();
        assert!((20.0 * 0.06..=most).contains(&joules), "{joules}, {most}");
        // Plugged in meanwhile: the result is unknown.
        let metering = meter.start(Duration::from_millis(5)).unwrap();
        write(sys, &[(&status, "Charging\n")]);
        assert_eq!(metering.stop(), None);
    }
}
