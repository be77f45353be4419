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
    /// Microjoules since some time, the value at which the counter wraps, and what it counts.
    Counter { file: PathBuf, wraps_at: u64, of: String },
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

/// Whether a battery in a folder such as `/sys` feeds the machine.
pub fn on_battery(sys: &Path) -> bool {
    let is = |dir: &Path, file, what| text(&dir.join(file)) == what;
    let feeds = |dir: &PathBuf| is(dir, "type", "Battery") && is(dir, "status", "Discharging");
    folders(&sys.join("class/power_supply")).iter().any(feeds)
}

impl EnergyMeter {
    /// The sources in a folder such as `/sys`: counters of processors and their memory, else
    /// discharging batteries.
    ///
    /// # Errors
    /// Why none can be read: a sentence.
    pub fn find(sys: &Path) -> Result<EnergyMeter, String> {
        let mut whys = Vec::new();
        let mut sources = counters(&sys.join("class/powercap"), &mut whys);
        if sources.is_empty() {
            for dir in folders(&sys.join("class/power_supply")) {
                match watts(&dir) {
                    Ok(_) => sources.push(EnergySource::Battery(dir)),
                    Err(why) => whys.extend(why),
                }
            }
        }
        if sources.is_empty() && whys.is_empty() {
            whys.push("the system has no counters of processors (powercap) and no battery".into());
        }
        if sources.is_empty() { Err(whys.join("; ")) } else { Ok(EnergyMeter { sources }) }
    }

    /// What is read, for people: `powercap package-0, dram`, or `battery BAT0`.
    pub fn source(&self) -> String {
        let name = |s: &EnergySource| match s {
            EnergySource::Counter { of, .. } => of.clone(),
            EnergySource::Battery(dir) => name_of(dir),
        };
        let names: Vec<String> = self.sources.iter().map(name).collect();
        let kind = match self.sources.first() {
            Some(EnergySource::Battery(_)) => "battery",
            _ => "powercap",
        };
        format!("{kind} {}", names.join(", "))
    }

    /// A meter of the power from now on.
    pub fn power(&self) -> PowerMeter {
        let (sources, last) = (self.sources.clone(), self.sources.iter().map(read).collect());
        PowerMeter { sources, last, at: Instant::now(), joules: Some(0.0) }
    }

    /// Starts measuring. It samples at intervals, since counters wrap and power changes. `None` if
    /// no thread can be started.
    pub fn start(&self, every: Duration) -> Option<Metering> {
        let (stop, stopped) = sync_channel(1);
        let mut meter = self.power();
        let look = move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                meter.look();
            }
            meter.look();
            meter.joules
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
/// parts of them, and a zone of the whole board includes them. Adds why one cannot be read.
fn counters(dir: &Path, whys: &mut Vec<String>) -> Vec<EnergySource> {
    let mut found = Vec::new();
    for zone in folders(dir) {
        let of = text(&zone.join("name"));
        if !of.starts_with("package") && of != "dram" {
            continue;
        }
        let file = zone.join("energy_uj");
        // Most systems let only the superuser read it.
        if let Err(e) = std::fs::read_to_string(&file) {
            whys.push(format!("{} cannot be read: {e}", file.display()));
            continue;
        }
        let wraps_at = number(&zone.join("max_energy_range_uj")).unwrap_or(u64::MAX);
        if number(&file).is_some() {
            found.push(EnergySource::Counter { file, wraps_at, of });
        }
    }
    found
}

fn name_of(dir: &Path) -> String {
    dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The power of a discharging battery; else why there is none, if it is a battery.
fn watts(dir: &Path) -> Result<f64, Option<String>> {
    if text(&dir.join("type")) != "Battery" {
        return Err(None);
    }
    let status = text(&dir.join("status"));
    if status != "Discharging" {
        let status = if status.is_empty() { "of no known state".into() } else { status };
        let name = name_of(dir);
        return Err(Some(format!(
            "battery {name} is {status}: only one that is Discharging tells"
        )));
    }
    // Values are in millionths; some systems report discharge as negative.
    let signed = |name: &str| text(&dir.join(name)).parse::<i64>().ok().map(i64::unsigned_abs);
    let micro = |n: u64| n as f64 * 1e-6;
    let product = || Some(micro(signed("current_now")?) * micro(signed("voltage_now")?));
    let watts = signed("power_now").map(micro).or_else(product);
    watts.ok_or_else(|| Some(format!("battery {} does not tell its power", name_of(dir))))
}

/// Reads the power between two looks.
#[derive(Debug)]
pub struct PowerMeter {
    sources: Vec<EnergySource>,
    last: Vec<Option<f64>>,
    at: Instant,
    /// The sum so far.
    joules: Option<f64>,
}

impl PowerMeter {
    /// Watts in the mean since the last call, or since the meter was made; `None` if a source cannot
    /// be read any more. Counters that wrap twice between two calls mislead it.
    pub fn watts(&mut self) -> Option<f64> {
        let seconds = self.at.elapsed().as_secs_f64();
        let before = self.joules?;
        self.look();
        (seconds > 0.0).then_some((self.joules? - before) / seconds)
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
        EnergySource::Battery(dir) => watts(dir).ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::{EnergyMeter, on_battery};

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
        let why = EnergyMeter::find(sys).unwrap_err();
        assert!(why.contains("no counters of processors (powercap) and no battery"), "{why}");
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
        assert_eq!(meter.source(), "powercap package-0, dram");
        let metering = meter.start(Duration::from_secs(60)).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        // The package's counter wrapped: 1 J up to its end, and 0.5 J after.
        zone(CAP, "package-0\n", "500000\n");
        zone(&format!("{CAP}:2"), "dram\n", "1250000\n");
        zone(&format!("{CAP}:0"), "core\n", "4000000\n");
        let joules = metering.stop().unwrap();
        assert!((joules - 1.75).abs() < 1e-9, "{joules}");
        let (mut power, start) = (meter.power(), std::time::Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        zone(&format!("{CAP}:2"), "dram\n", "2250000\n");
        let watts = power.watts().unwrap();
        assert!(watts <= 20.0 && watts >= 1.0 / start.elapsed().as_secs_f64(), "{watts}");
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
        let why = EnergyMeter::find(sys).unwrap_err();
        assert!(why.contains("battery BAT0 is Charging"), "{why}");
        assert!(!on_battery(sys));
        write(sys, &[(&status, "Discharging\n")]);
        assert!(on_battery(sys));
        let meter = EnergyMeter::find(sys).unwrap();
        assert_eq!(meter.source(), "battery BAT0");
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

    /// The kernel may take a device away while it is measured.
    #[test]
    fn what_vanishes_or_cannot_be_read_gives_no_figure() {
        let dir = tempfile::tempdir().unwrap();
        let sys = dir.path();
        let [name, energy] = ["name", "energy_uj"].map(|f| format!("{CAP}/{f}"));
        write(sys, &[(&name, "package-0\n"), (&energy, "4000000\n")]);
        let meter = EnergyMeter::find(sys).unwrap();
        let metering = meter.start(Duration::from_millis(5)).unwrap();
        std::fs::remove_file(sys.join(&energy)).unwrap();
        assert_eq!(metering.stop(), None);
        // As a folder, it is there, and nobody can read it: not even the superuser.
        std::fs::create_dir(sys.join(&energy)).unwrap();
        let why = EnergyMeter::find(sys).unwrap_err();
        assert!(why.contains("energy_uj cannot be read: "), "{why}");
        // A battery of a phone has no power_now; one that tells nothing at all is not a source.
        let [kind, status] = ["type", "status"].map(|f| format!("class/power_supply/battery/{f}"));
        write(sys, &[(&kind, "Battery\n"), (&status, "Discharging\n")]);
        let why = EnergyMeter::find(sys).unwrap_err();
        assert!(why.ends_with("battery battery does not tell its power"), "{why}");
    }
}
