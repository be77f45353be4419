//! `troika doctor --report`: what this machine has and reaches, in one file that its owner may send.
//! The file is whole after each step. It holds no names, no paths and no serial numbers.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use troika::npu::{NpuSpec, survey};
use troika::{DeviceOptions, DeviceSpec, gpu_adapters, instruction_sets, open_devices};

use super::measure::{self, Measured, Target};
use super::read;
use crate::doctor::{Finding, HostMachine, examine};
use crate::error::CliError;
use crate::file;
use crate::flags::DoctorArgs;
use crate::interrupt::Interrupt;
use crate::output;

/// The version of the format.
pub const VERSION: u64 = 1;
/// What is measured: a small shape, one that most people run, and one of experts.
const SHAPES: [&str; 3] = ["qwen3-0.6b:Q4_K_M", "olmoe-1b-7b:Q4_K_M", "qwen3-8b:Q4_K_M"];
/// What doctor says of the user's folders and settings is not part of a report.
const PRIVATE: [&str; 5] = ["model", "model cache", "cache", "Hub", "port"];
/// A shorter rest is not begun.
const SHORTEST: Duration = Duration::from_millis(500);

/// The time that is left, which Ctrl-C ends.
#[derive(Clone)]
pub struct Budget {
    end: Instant,
    interrupt: Interrupt,
}

impl Budget {
    /// What is left.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether there is some.
    pub fn goes_on(&self) -> bool {
        !self.interrupt.pressed() && !self.left().is_zero()
    }

    /// The part of one of several steps: twice its share, since most need less.
    fn part(&self, steps: usize) -> Budget {
        let part = self.left() * 2 / steps.max(1) as u32;
        Budget { end: Instant::now() + part.min(self.left()), ..self.clone() }
    }
}

/// What is measured, and on which of the targets.
#[derive(Clone, Copy)]
enum Step {
    Limits(usize),
    Kernels(usize),
    HandOvers(Option<usize>),
    Speed(&'static str, usize),
    Choice(&'static str),
}

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
    let machine = HostMachine { measure: false, online: false, ..args.machine() };
    report.machine(&machine)?;
    let mut targets = targets(&machine, &mut report);
    let steps = steps(&targets);
    for (done, step) in steps.iter().enumerate() {
        let name = step.name(&targets);
        if interrupt.pressed() {
            break;
        }
        if budget.left() < SHORTEST {
            report.skipped.push(name);
            continue;
        }
        output::note_line(&format!(
            "{} of {}: {name} ({} s left)",
            done + 1,
            steps.len(),
            budget.left().as_secs()
        ));
        let (start, part) = (Instant::now(), budget.part(steps.len() - done));
        let measured = step.run(&mut targets, &machine.devices(), &part);
        report.add_measured(&name, measured, start.elapsed());
        report.write()?;
    }
    let whole = !interrupt.pressed() && report.skipped.is_empty();
    report.state = match (interrupt.pressed(), whole) {
        (true, _) => "interrupted",
        (_, true) => "whole",
        _ => "out of time",
    };
    report.write()?;
    match args.json {
        true => output::json(&report.value())?,
        false => output::write(&read::table(&[report.value()]))?,
    }
    if interrupt.pressed() {
        let why = format!("measuring was ended; what is done is kept in {}", path.display());
        return Err(CliError::Interrupted(why));
    }
    Ok(())
}

/// The devices of this machine; adds to the report what they are.
fn targets(machine: &HostMachine, report: &mut Report<'_>) -> Vec<Target> {
    let of = |name: String, software, memory| {
        let spec: DeviceSpec = name.parse().ok()?;
        Some(Target { name, spec, software, memory, multiply: 100.0 })
    };
    let mut all = vec![of("cpu".into(), false, None)];
    let sets = instruction_sets();
    let others = sets.iter().rev().skip(1);
    all.extend(others.map(|set| of(format!("cpu@{set}"), true, None)));
    for (i, gpu) in gpu_adapters().into_iter().enumerate() {
        let name = format!("gpu:{i}");
        let facts: Vec<String> = gpu.facts.iter().map(|(n, v)| format!("{n}: {v}")).collect();
        let facts = gpu.fault.iter().cloned().chain(facts).collect::<Vec<_>>().join("; ");
        report.add(&name, &facts);
        let memory = gpu.free.filter(|_| gpu.has_own_memory);
        all.extend(gpu.fault.is_none().then(|| of(name, gpu.is_software, memory)));
    }
    for (provider, found) in survey(&machine.npu.runtime) {
        for hardware in found.into_iter().flatten() {
            let spec = NpuSpec { provider: Some(provider), hardware: Some(hardware) };
            report.add(&spec.to_string(), if hardware.is_real() { "an NPU" } else { "no NPU" });
            all.push(of(spec.to_string(), !hardware.is_real(), None));
        }
    }
    all.into_iter().flatten().collect()
}

/// What is to be done, the quick and telling first.
fn steps(targets: &[Target]) -> Vec<Step> {
    let real = || (0..targets.len()).filter(|i| !targets[*i].software);
    let (devices, stand_ins): (Vec<usize>, Vec<usize>) =
        (0..targets.len()).partition(|i| !targets[*i].software);
    let mut steps: Vec<Step> = real().map(Step::Limits).collect();
    steps.extend(real().map(|i| Step::HandOvers((i > 0).then_some(i))));
    steps.extend(devices.into_iter().map(Step::Kernels));
    for shape in SHAPES {
        steps.extend(real().map(|i| Step::Speed(shape, i)));
        steps.push(Step::Choice(shape));
    }
    // Those may be slow.
    steps.extend(stand_ins.into_iter().map(Step::Kernels));
    steps
}

impl Step {
    fn name(self, targets: &[Target]) -> String {
        let of = |i: usize| targets.get(i).map_or("?", |target| &*target.name);
        match self {
            Step::Limits(i) => format!("limits of {}", of(i)),
            Step::Kernels(i) => format!("kernels of {}", of(i)),
            Step::HandOvers(None) => "hand-overs within the CPU".into(),
            Step::HandOvers(Some(i)) => format!("hand-overs of {}", of(i)),
            Step::Speed(shape, i) => format!("{shape} on {}", of(i)),
            Step::Choice(shape) => format!("{shape} as chosen"),
        }
    }

    fn run(
        self,
        targets: &mut [Target],
        others: &DeviceOptions,
        budget: &Budget,
    ) -> Result<Measured, CliError> {
        match self {
            Step::Limits(i) => measure::limits(&mut targets[i], others),
            Step::Kernels(i) => measure::kernels(&targets[i], others, budget),
            Step::HandOvers(None) => measure::hand_overs(),
            Step::HandOvers(Some(i)) => measure::hand_overs_with(&targets[i], others, budget),
            Step::Speed(shape, i) => measure::speed(shape, &targets[i], others, budget),
            Step::Choice(shape) => measure::choice(shape, &targets[0], others, budget),
        }
    }
}

/// A report that is being made.
struct Report<'a> {
    path: &'a Path,
    start: Instant,
    state: &'static str,
    skipped: Vec<String>,
    entries: Vec<Value>,
    /// What is left out wherever it stands: names of this machine and its user.
    names: Vec<String>,
}

impl<'a> Report<'a> {
    fn new(path: &'a Path) -> Report<'a> {
        let variables = ["USER", "LOGNAME", "USERNAME", "HOSTNAME", "COMPUTERNAME"];
        let mut names: Vec<String> =
            variables.iter().filter_map(|name| std::env::var(name).ok()).collect();
        names.extend(std::fs::read_to_string("/proc/sys/kernel/hostname"));
        names.iter_mut().for_each(|name| *name = name.trim().to_string());
        names.retain(|name| name.len() > 2);
        let (skipped, entries) = (Vec::new(), Vec::new());
        Report { path, start: Instant::now(), state: "unfinished", skipped, entries, names }
    }

    fn add(&mut self, name: &str, says: &str) {
        let says = self.nameless(says);
        self.entries.push(json!({ "name": name, "says": says }));
    }

    fn add_measured(&mut self, name: &str, measured: Result<Measured, CliError>, took: Duration) {
        let (says, result) = match measured {
            Ok(measured) => (self.nameless(&measured.says), measured.result),
            Err(e) => (format!("failed: {}", self.nameless(&e.to_string())), Value::Null),
        };
        let mut entry = json!({ "name": name, "says": says, "seconds": took.as_secs_f64() });
        entry["result"] = self.nameless_value(result);
        self.entries.push(entry);
    }

    /// What the machine is, as doctor finds it.
    fn machine(&mut self, machine: &HostMachine) -> Result<(), CliError> {
        self.add("system", &format!("{}, {}", std::env::consts::OS, std::env::consts::ARCH));
        self.add("processor", &processor(machine));
        let devices = open_devices(&machine.devices()).map_err(|e| CliError::Troika(e.into()))?;
        for (name, value) in devices.iter().flat_map(|device| &device.caps().facts) {
            self.add(name, value);
        }
        for Finding { topic, state, says, .. } in examine(machine) {
            if !PRIVATE.contains(&topic) {
                self.add(&format!("doctor on {topic}"), &format!("{}: {says}", state.name()));
            }
        }
        self.write()
    }

    /// A text without paths, of which the file's name stays, and without names.
    fn nameless(&self, text: &str) -> String {
        let plain = |word: &str| {
            let is_path = word.starts_with(['/', '~', '\\']) || word.contains(":\\");
            let bare =
                if is_path { word.rsplit(['/', '\\']).next().unwrap_or_default() } else { word };
            let named = |name: &String| bare.eq_ignore_ascii_case(name);
            if self.names.iter().any(named) { "(name)".to_string() } else { bare.to_string() }
        };
        let between = |c: char| c.is_whitespace() || "\"'()=,;".contains(c);
        text.split_inclusive(between)
            .map(|piece| {
                let word = piece.trim_end_matches(between);
                plain(word) + &piece[word.len()..]
            })
            .collect()
    }

    fn nameless_value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => self.nameless(&text).into(),
            Value::Array(all) => all.into_iter().map(|v| self.nameless_value(v)).collect(),
            Value::Object(all) => {
                all.into_iter().map(|(key, v)| (key, self.nameless_value(v))).collect()
            }
            other => other,
        }
    }

    fn value(&self) -> Value {
        json!({
            "version": VERSION, "report_of": "troika", "troika": env!("CARGO_PKG_VERSION"),
            "state": self.state, "seconds": self.start.elapsed().as_secs(),
            "skipped": self.skipped, "entries": self.entries,
        })
    }

    fn write(&self) -> Result<(), CliError> {
        file::write_json("report", self.path, &format!("{:#}\n", self.value()))
    }
}

/// The processor's name, where the system tells it.
fn processor(machine: &HostMachine) -> String {
    let info = machine.read("proc/cpuinfo").unwrap_or_default();
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        matches!(name.trim(), "model name" | "Model").then(|| value.trim().to_string())
    };
    let board = || machine.read("sys/firmware/devicetree/base/model");
    let apple = || {
        let mut ask = std::process::Command::new("sysctl");
        let told = ask.args(["-n", "machdep.cpu.brand_string"]).output().ok()?;
        let told = String::from_utf8(told.stdout).ok()?.trim().to_string();
        (!told.is_empty()).then_some(told)
    };
    let found = info.lines().find_map(field).or_else(board);
    let found = found.or_else(|| std::env::var("PROCESSOR_IDENTIFIER").ok());
    let found = found.or_else(|| cfg!(target_os = "macos").then(apple).flatten());
    found.map_or("unknown".into(), |name| name.trim_end_matches('\0').to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::Report;

    #[test]
    fn paths_and_names_are_left_out() {
        let mut report = Report::new(Path::new("report.json"));
        report.names = vec!["alice".into(), "her-laptop".into()];
        for (text, want) in [
            ("reads 12.3 GB/s, int8 5 GOP/s", "reads 12.3 GB/s, int8 5 GOP/s"),
            ("/home/alice/npu/lib.so.1: no", "lib.so.1: no"),
            ("/home/alice (Alice) on her-laptop", "(name) ((name)) on (name)"),
            (r"C:\Users\alice\ort.dll cannot be loaded", "ort.dll cannot be loaded"),
            ("file=\"/root/x y\"", "file=\"x y\""),
        ] {
            assert_eq!(report.nameless(text), want);
        }
        let value = report.nameless_value(json!({ "a": ["/x/alice", 1] }));
        assert_eq!(value, json!({ "a": ["(name)", 1] }));
    }
}
