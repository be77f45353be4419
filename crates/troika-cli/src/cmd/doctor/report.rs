//! `troika doctor --report`: what this machine has and reaches, in one file that its owner may send.
//! The file is whole after each step. It holds no names, no paths and no serial numbers. And
//! `troika doctor --read`: reports side by side.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use troika::npu::{NpuSpec, survey};
use troika::{DeviceOptions, gpu_adapters, instruction_sets, open_devices};

use super::measure::{self, Budget};
use super::presets::SHAPES;
use crate::doctor::{Finding, HostMachine, examine};
use crate::error::CliError;
use crate::flags::DoctorArgs;
use crate::interrupt::Interrupt;
use crate::output::{self, printable};
use crate::{file, gpu};

/// The version of the format of reports.
const VERSION: u64 = 1;

/// What doctor says of the user's folders and settings is no part of a report.
const PRIVATE: [&str; 4] = ["model cache", "cache", "Hub", "port"];

/// A name, and what is measured by it.
type Measuring<'a> = (String, Box<dyn Fn(&Budget) -> measure::Measured + 'a>);

/// Measures this machine, writes the report after each step, and prints it.
///
/// # Errors
/// A file that cannot be written, or Ctrl-C: what is done is kept.
pub fn run(args: &DoctorArgs, path: &Path) -> Result<(), CliError> {
    file::check("report", Some(path))?;
    output::keep_apart();
    let interrupt = Interrupt::listen();
    let end = Instant::now() + Duration::from_secs(args.seconds);
    let budget = Budget { end, interrupt: interrupt.clone() };
    let mut report = Report::new(path);
    report.write()?;
    let machine = args.machine();
    report.machine(&machine)?;
    let targets = targets(&machine, &mut report);
    let chosen = DeviceOptions { auto: Some(gpu::auto(None)), ..machine.devices() };
    let steps = steps(&targets, &chosen);
    for (done, (name, work)) in steps.iter().enumerate().take_while(|_| !interrupt.pressed()) {
        if !budget.goes_on() {
            report.skipped.push(name.clone());
            continue;
        }
        let (at, all, seconds) = (done + 1, steps.len(), budget.left().as_secs());
        output::note_line(&format!("{at} of {all}: {name} ({seconds} s left)"));
        let (start, measured) = (Instant::now(), work(&budget.part(all - done)));
        let (says, result) = measured.unwrap_or_else(|e| (format!("failed: {e}"), Value::Null));
        report.add(name, &says);
        if let Some(entry) = report.entries.last_mut() {
            entry["seconds"] = start.elapsed().as_secs_f64().into();
            entry["result"] = result;
        }
        report.write()?;
    }
    report.state = match (interrupt.pressed(), report.skipped.is_empty()) {
        (true, _) => "interrupted",
        (_, true) => "whole",
        (_, false) => "out of time",
    };
    let value = report.write()?;
    match args.json {
        true => output::json(&value)?,
        false => output::write(&table(&[value]))?,
    }
    if interrupt.pressed() {
        let why = format!("measuring was ended; what is done is kept in {}", path.display());
        return Err(CliError::Interrupted(why));
    }
    Ok(())
}

/// A device of its own.
struct Target {
    /// As `--device` takes it.
    name: String,
    devices: DeviceOptions,
    /// Whether its times say something: no software stands in for it.
    real: bool,
    /// Bytes of memory of its own.
    memory: Option<u64>,
}

/// The devices of this machine. Adds to the report what they are.
fn targets(machine: &HostMachine, report: &mut Report<'_>) -> Vec<Target> {
    let mut all = Vec::new();
    let mut add = |name: String, real, memory| {
        let devices = name.parse().into_iter().collect();
        let devices = DeviceOptions { devices, ..machine.devices() };
        all.push(Target { name, devices, real, memory });
    };
    add("cpu".into(), true, None);
    // The last set of instructions is what the others are compared with.
    let others = instruction_sets().into_iter().rev().skip(1);
    others.for_each(|set| add(format!("cpu@{set}"), false, None));
    for (i, gpu) in gpu_adapters().into_iter().enumerate() {
        let name = format!("gpu:{i}");
        let facts = gpu.facts.iter().map(|(name, value)| format!("{name}: {value}"));
        let facts: Vec<String> = gpu.fault.iter().cloned().chain(facts).collect();
        report.add(&name, &facts.join("; "));
        if gpu.fault.is_none() {
            add(name, !gpu.is_software, gpu.free.filter(|_| gpu.has_own_memory));
        }
    }
    for (provider, found) in survey(&machine.npu.runtime) {
        for hardware in found.into_iter().flatten() {
            let spec = NpuSpec { provider: Some(provider), hardware: Some(hardware) };
            add(spec.to_string(), hardware.is_real(), None);
        }
    }
    all
}

/// What is to be done.
fn steps<'a>(targets: &'a [Target], chosen: &'a DeviceOptions) -> Vec<Measuring<'a>> {
    let mut steps: Vec<Measuring<'a>> = Vec::new();
    let kernels = |Target { name, devices, .. }: &'a Target| -> Measuring<'a> {
        let compare = |budget: &Budget| measure::kernels(devices, budget);
        (format!("kernels of {name}"), Box::new(compare))
    };
    for target in targets.iter().filter(|target| target.real) {
        let Target { name, devices, .. } = target;
        steps.push(kernels(target));
        // Loops of their own reach the limits of CPUs and GPUs only.
        if devices.devices.iter().all(|spec| spec.npu.is_none()) {
            steps.push((format!("limits of {name}"), Box::new(|_| measure::limits(devices))));
        }
        let hand_overs = |budget: &Budget| measure::hand_overs(devices, budget);
        steps.push((format!("hand-overs of {name}"), Box::new(hand_overs)));
    }
    for shape in SHAPES {
        let mut speed = |name: String, devices: &'a DeviceOptions, memory| {
            let work = move |budget: &Budget| measure::speed(shape, devices, memory, budget);
            steps.push((format!("{shape} {name}"), Box::new(work)));
        };
        for target in targets.iter().filter(|target| target.real) {
            speed(format!("on {}", target.name), &target.devices, target.memory);
        }
        speed("as chosen".into(), chosen, None);
    }
    // Last, with all the time that is left: software is slow.
    steps.extend(targets.iter().filter(|target| !target.real).map(kernels));
    steps
}

/// A report that is being made.
struct Report<'a> {
    path: &'a Path,
    start: Instant,
    state: &'static str,
    skipped: Vec<String>,
    entries: Vec<Value>,
    /// What is left out wherever it stands: the user's folder, and names of user and machine.
    home: Option<String>,
    names: Vec<String>,
}

impl<'a> Report<'a> {
    fn new(path: &'a Path) -> Report<'a> {
        let variables = ["USER", "LOGNAME", "USERNAME", "HOSTNAME", "COMPUTERNAME"];
        let names = variables.iter().filter_map(|name| std::env::var(name).ok());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
        let names = names.chain(host).map(|name| name.trim().to_string()).collect();
        let home = std::env::home_dir().map(|home| home.display().to_string());
        let home = home.filter(|home| home.len() > 1);
        let (start, state) = (Instant::now(), "unfinished");
        Report { path, start, state, skipped: Vec::new(), entries: Vec::new(), home, names }
    }

    fn add(&mut self, name: &str, says: &str) {
        let says = self.nameless(says);
        self.entries.push(json!({ "name": name, "says": says }));
    }

    /// What the machine is, as doctor finds it.
    fn machine(&mut self, machine: &HostMachine) -> Result<(), CliError> {
        self.add("system", &format!("{}, {}", std::env::consts::OS, std::env::consts::ARCH));
        self.add("processor", &processor(machine));
        let devices = open_devices(&machine.devices())?;
        for (name, value) in devices.iter().flat_map(|device| &device.caps().facts) {
            self.add(name, value);
        }
        for Finding { topic, state, says, .. } in examine(machine) {
            if !PRIVATE.contains(&topic) {
                self.add(&format!("doctor on {topic}"), &format!("{}: {says}", state.name()));
            }
        }
        self.write().map(drop)
    }

    /// A text without names, and without paths, of which a file's name stays.
    fn nameless(&self, text: &str) -> String {
        let between = |c: char| c.is_whitespace() || "\"'()=,;".contains(c);
        let plain = |piece: &str| {
            let word = piece.trim_end_matches(between);
            let is_path = word.starts_with(['/', '~', '\\']) || word.contains(":\\");
            let last = word.rsplit(['/', '\\']).next().filter(|_| is_path).unwrap_or(word);
            let named = self.names.iter().any(|name| last.eq_ignore_ascii_case(name));
            let shown = if named && last.len() > 2 { "(name)" } else { last };
            format!("{shown}{}", &piece[word.len()..])
        };
        // A folder's name may have blanks.
        let text = self.home.as_ref().map_or(text.into(), |home| text.replace(home, "~"));
        text.split_inclusive(between).map(plain).collect()
    }

    /// Writes what is there so far, and returns it.
    fn write(&self) -> Result<Value, CliError> {
        let value = json!({
            "version": VERSION, "report_of": "troika", "troika": env!("CARGO_PKG_VERSION"),
            "commit": env!("TROIKA_COMMIT"),
            "state": self.state, "seconds": self.start.elapsed().as_secs(),
            "skipped": self.skipped, "entries": self.entries,
        });
        file::write_json("report", self.path, &format!("{value:#}\n"))?;
        Ok(value)
    }
}

/// The processor's name, where the system tells it.
fn processor(machine: &HostMachine) -> String {
    let info = machine.read("proc/cpuinfo").unwrap_or_default();
    let field = |(name, value): (&str, &str)| {
        matches!(name.trim(), "model name" | "Model").then(|| value.trim().to_string())
    };
    let apple = || {
        let ask = ["-n", "machdep.cpu.brand_string"];
        let told = std::process::Command::new("sysctl").args(ask).output().ok()?;
        String::from_utf8(told.stdout).ok()
    };
    let found = info.lines().filter_map(|line| line.split_once(':')).find_map(field);
    let found = found.or_else(|| std::env::var("PROCESSOR_IDENTIFIER").ok());
    let found = found.or_else(|| cfg!(target_os = "macos").then(apple).flatten());
    found.map_or("not told".into(), |name| name.trim().to_string())
}

/// Prints reports side by side, as a table.
pub fn read(files: &[PathBuf]) -> Result<(), CliError> {
    let reports = files.iter().map(|file| parsed(file)).collect::<Result<Vec<_>, _>>()?;
    output::write(&table(&reports))
}

fn parsed(file: &Path) -> Result<Value, CliError> {
    let refuse = |why: &str| CliError::of_file(file, why);
    let text = troika::device::read_text(file);
    let text = text.map_err(|e| refuse(&format!("the report cannot be read: {e}")))?;
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let (version, by) = (&value["version"], value["troika"].as_str().unwrap_or("?"));
    if value["report_of"] == "troika" && version.is_u64() && *version != VERSION {
        return Err(refuse(&format!(
            "the report is of version {version}, by troika {by}, and this troika reads version \
             {VERSION}; make it again, or read it with that troika"
        )));
    }
    match value["report_of"] == "troika" && value["entries"].is_array() {
        true => Ok(value),
        false => Err(refuse("it is no report of troika doctor --report")),
    }
}

/// A row for each thing that a report tells, a column for each report.
fn table(reports: &[Value]) -> String {
    let cell = |text: &Value| printable(text.as_str().unwrap_or("-")).replace('|', "/");
    let entries = |report: &Value| report["entries"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<Value> = Vec::new();
    for entry in reports.iter().flat_map(entries) {
        if !names.contains(&entry["name"]) {
            names.push(entry["name"].clone());
        }
    }
    let row = |name: String, of: &dyn Fn(&Value) -> String| {
        let cells: Vec<String> = reports.iter().map(of).collect();
        format!("| {name} | {} |\n", cells.join(" | "))
    };
    let mut out = row("report by troika".into(), &|report| cell(&report["troika"]));
    out.push_str(&format!("| --- |{}\n", " --- |".repeat(reports.len())));
    out.push_str(&row("state".into(), &|report| {
        let skipped = report["skipped"].as_array().map_or(0, Vec::len);
        format!("{} after {} s, {skipped} skipped", cell(&report["state"]), report["seconds"])
    }));
    for name in &names {
        out.push_str(&row(cell(name), &|report| {
            let found = entries(report).into_iter().find(|entry| entry["name"] == *name);
            found.map_or("-".into(), |entry| cell(&entry["says"]))
        }));
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Report;

    #[test]
    fn paths_and_names_are_left_out() {
        let mut report = Report::new(Path::new("report.json"));
        report.names = vec!["alice".into(), "her-laptop".into()];
        report.home = Some("/Users/Alice Doe".into());
        for (text, want) in [
            ("reads 12.3 GB/s, int8 5 GOP/s", "reads 12.3 GB/s, int8 5 GOP/s"),
            ("/srv/alice/npu/lib.so.1: no", "lib.so.1: no"),
            ("/srv/alice (Alice) on her-laptop", "(name) ((name)) on (name)"),
            ("/Users/Alice Doe/npu/lib.so.1: no", "lib.so.1: no"),
            (r"C:\Users\alice\ort.dll cannot be loaded", "ort.dll cannot be loaded"),
            ("file=\"/srv/x y\"", "file=\"x y\""),
        ] {
            assert_eq!(report.nameless(text), want);
        }
    }
}
