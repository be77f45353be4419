//! What a model's runs use of the machine: energy, and the CPU.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use crate::energy::Metering;
use crate::open::Model;

/// What computing some tokens used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenUse {
    /// How many: of a prompt, or generated.
    pub tokens: usize,
    /// How long it took.
    pub seconds: f64,
    /// Energy of the machine, if it is known.
    pub joules: Option<f64>,
    /// CPU time of all cores together, if it is known.
    pub cpu_seconds: Option<f64>,
    /// CPU cycles, where they are counted.
    pub cpu_cycles: Option<f64>,
}

impl TokenUse {
    /// The sum with other tokens (`times` 1), or without what was used before (-1). What is not known
    /// of one is not known.
    pub fn plus(&self, other: &TokenUse, times: f64) -> TokenUse {
        let sum = |a: Option<f64>, b: Option<f64>| Some(a? + times * b?);
        TokenUse {
            tokens: self.tokens + other.tokens,
            seconds: self.seconds + times * other.seconds,
            joules: sum(self.joules, other.joules),
            cpu_seconds: sum(self.cpu_seconds, other.cpu_seconds),
            cpu_cycles: sum(self.cpu_cycles, other.cpu_cycles),
        }
    }

    fn each(&self, all: Option<f64>) -> Option<f64> {
        all.filter(|_| self.tokens > 0).map(|all| all / self.tokens as f64)
    }

    /// Joules of a token.
    pub fn joules_per_token(&self) -> Option<f64> {
        self.each(self.joules)
    }

    /// The mean power in watts.
    pub fn watts(&self) -> Option<f64> {
        self.joules.map(|joules| joules / self.seconds).filter(|watts| watts.is_finite())
    }

    /// CPU time of a token in milliseconds.
    pub fn cpu_ms_per_token(&self) -> Option<f64> {
        self.each(self.cpu_seconds).map(|seconds| seconds * 1e3)
    }

    /// CPU cycles of a token.
    pub fn cycles_per_token(&self) -> Option<f64> {
        self.each(self.cpu_cycles)
    }

    /// For people, `-` where it is not known: millijoules of a token, watts, milliseconds of CPU time
    /// of a token, and millions of cycles of a token.
    pub fn figures(&self) -> [String; 4] {
        let millijoules = self.joules_per_token().map(|joules| joules * 1e3);
        let cycles = self.cycles_per_token().map(|cycles| cycles * 1e-6);
        let all = [millijoules, self.watts(), self.cpu_ms_per_token(), cycles];
        all.map(|figure| figure.map_or_else(|| "-".into(), |figure| format!("{figure:.3}")))
    }
}

impl Display for TokenUse {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let ([joules, watts, ms, cycles], tokens) = (self.figures(), self.tokens);
        write!(
            f,
            "{tokens} tokens: {joules} mJ/token, {watts} W, CPU {ms} ms/token, {cycles} Mcycles/token"
        )
    }
}

/// Reads CPU cycles.
type CycleCounter = Box<dyn Fn() -> Option<f64> + Send + Sync>;

/// Measures what the CPU does for this process.
pub struct CpuMeter {
    cycles: Result<CycleCounter, String>,
}

/// A measurement that runs.
pub struct Measuring<'a> {
    cpu: &'a CpuMeter,
    model: &'a Model,
    energy: Option<Metering>,
    before: TokenUse,
}

impl CpuMeter {
    /// A meter. Cycles count of this thread, and of those that it and they start from now on: it is to
    /// be opened before others are started.
    pub fn open() -> CpuMeter {
        CpuMeter { cycles: cycle_counter() }
    }

    /// Where figures of a model's CPU are from: a sentence.
    pub fn source(&self, model: &Model) -> String {
        if model.cpu_time().is_some() {
            return "CPU time: modelled, how long the CPUs of the file work".into();
        }
        match &self.cycles {
            Ok(_) => "CPU cycles: as the processor counts them, without the kernel's".into(),
            Err(why) => format!("CPU time, since this system gives no cycle counter: {why}"),
        }
    }

    fn now(&self, model: &Model) -> TokenUse {
        let modelled = model.cpu_time();
        let cycles = self.cycles.as_ref().ok().filter(|_| modelled.is_none());
        TokenUse {
            tokens: 0,
            seconds: model.clock().now().as_secs_f64(),
            joules: model.joules(),
            cpu_seconds: modelled.or_else(cpu_time).map(|time| time.as_secs_f64()),
            cpu_cycles: cycles.and_then(|read| read()),
        }
    }

    /// Starts to measure a model's runs, with the machine's energy. Virtual devices have their own.
    pub fn start<'a>(&'a self, model: &'a Model, energy: Option<Metering>) -> Measuring<'a> {
        Measuring { cpu: self, model, energy, before: self.now(model) }
    }
}

impl Measuring<'_> {
    /// What was used since the start, for so many tokens.
    pub fn stop(self, tokens: usize) -> TokenUse {
        let used = self.cpu.now(self.model).plus(&self.before, -1.0);
        TokenUse { tokens, joules: self.energy.and_then(Metering::stop).or(used.joules), ..used }
    }
}

/// CPU time of all threads of this process; `None` if the system does not tell.
pub fn cpu_time() -> Option<Duration> {
    #[cfg(unix)]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).ok()?);
        Some(seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).ok()?))
    }
    #[cfg(not(unix))]
    {
        use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};
        let (own, mut system) = (sysinfo::get_current_pid().ok()?, System::new());
        let (only, kind) = ([own], ProcessRefreshKind::nothing().with_cpu());
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&only), false, kind);
        system.process(own).map(|process| Duration::from_millis(process.accumulated_cpu_time()))
    }
}

/// The counter of Linux, on processors that its crate knows.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn cycle_counter() -> Result<CycleCounter, String> {
    use perf_event::{Builder, events::Hardware};
    use std::sync::Mutex;
    // By default the kernel's cycles do not count, which most systems show to the superuser only.
    let mut builder = Builder::new().kind(Hardware::CPU_CYCLES);
    builder.inherit(true);
    let why = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => "the processor has none, or its virtual machine".into(),
        _ => e.to_string(),
    };
    let mut counter = builder.build().map_err(why)?;
    counter.enable().map_err(why)?;
    let counter = Mutex::new(counter);
    Ok(Box::new(move || {
        let read = troika_device::lock(&counter)
            .read_count_and_time()
            .ok()
            .filter(|read| read.time_running > 0)?;
        // Where a processor has too few counters, they take turns.
        Some(read.count as f64 * (read.time_enabled as f64 / read.time_running as f64))
    }))
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn cycle_counter() -> Result<CycleCounter, String> {
    Err("it is read on Linux only".into())
}

#[cfg(test)]
mod tests {
    use super::{CpuMeter, TokenUse, cpu_time};

    #[test]
    fn figures_are_of_a_token() {
        let (seconds, joules, cpu_seconds) = (0.5, Some(2.0), Some(0.25));
        let of = TokenUse { tokens: 50, seconds, joules, cpu_seconds, cpu_cycles: Some(4e8) };
        let says = "50 tokens: 40.000 mJ/token, 4.000 W, CPU 5.000 ms/token, 8.000 Mcycles/token";
        assert_eq!(of.to_string(), says);
        assert_eq!((of.plus(&of, 1.0).tokens, of.plus(&of, 1.0).figures()), (100, of.figures()));
        let unknown = TokenUse { joules: None, cpu_cycles: None, ..of.clone() };
        assert_eq!(of.plus(&unknown, 1.0).figures(), ["-", "-", "5.000", "-"]);
        assert_eq!(TokenUse { tokens: 0, seconds: 0.0, ..of }.figures(), ["-"; 4]);
    }

    #[test]
    fn work_of_threads_counts() {
        let (meter, before) = (CpuMeter::open(), cpu_time().unwrap());
        let busy = || (0..10_000_000_u64).fold(0, |sum, n| std::hint::black_box(sum ^ n));
        std::thread::spawn(busy).join().unwrap();
        assert!(cpu_time().unwrap() > before);
        assert!(meter.cycles.is_err() || meter.cycles.unwrap()().unwrap() > 1e6);
    }
}
