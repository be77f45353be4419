//! Progress bars while a model is opened: quantizing weights, comparing kernels and compiling
//! graphs.

use std::io::IsTerminal;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressFinish, ProgressStyle};
use troika::OpenObserver;

use crate::interrupt::Interrupt;
use crate::output::note_line;

/// Shorter compiling shows no bar.
const WORTH_SHOWING: Duration = Duration::from_secs(1);

/// The time between lines about what goes on, where no bar can be drawn.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// What hears of opening a model: it draws bars on a terminal - indicatif draws nothing elsewhere -
/// and prints notices.
#[derive(Debug, Default)]
pub struct OpeningBars {
    bars: MultiProgress,
    quantizing: OnceLock<ProgressBar>,
    compiling: OnceLock<Instant>,
    compiled: OnceLock<ProgressBar>,
    checking: Mutex<Option<ProgressBar>>,
    /// What ends compiling.
    pub cancel: Option<Arc<AtomicBool>>,
    /// How long compiling may take.
    pub limit: Option<Duration>,
}

impl OpenObserver for OpeningBars {
    fn quantized(&self, done: u64, all: u64) {
        let new = || new_bar(&self.bars, all, "quantizing [{bar:30}] {percent} % {eta}");
        let bar = self.quantizing.get_or_init(new);
        bar.set_position(done);
        if done >= all {
            bar.finish_and_clear();
        }
    }

    fn checked(&self, kernel: Option<&str>) {
        let mut bar = self.checking.lock().unwrap_or_else(PoisonError::into_inner);
        match kernel {
            Some(kernel) => bar
                .get_or_insert_with(|| unknown("checking the GPU"))
                .set_message(format!("checking the GPU: {kernel}")),
            None => drop(bar.take()),
        }
    }

    fn compiled(&self, done: usize, all: usize) {
        let start = self.compiling.get_or_init(Instant::now);
        if done >= all {
            self.compiled.get().inspect(|bar| bar.finish_and_clear());
        } else if start.elapsed() > WORTH_SHOWING {
            let form = "compiling {pos} of {len} [{bar:30}] {eta}";
            let new = || new_bar(&self.bars, all as u64, form);
            self.compiled.get_or_init(new).set_position(done as u64);
        }
    }

    fn notice(&self, sentence: &str) {
        self.bars.suspend(|| note_line(&format!("warning: {sentence}")));
    }

    fn placed(&self, sentence: &str) {
        self.bars.suspend(|| note_line(&format!("note: {sentence}")));
    }

    fn cancel(&self) -> Option<Arc<AtomicBool>> {
        self.cancel.clone()
    }

    fn limit(&self) -> Option<Duration> {
        self.limit
    }
}

/// A bar for what is done part by part: told how much is done, of how much. Where it cannot be
/// drawn, a line now and then.
pub fn counting(what: &'static str) -> impl FnMut(usize, usize) {
    let bars = MultiProgress::new();
    let mut bar: Option<ProgressBar> = None;
    let mut said = Instant::now();
    move |done, all| {
        if !std::io::stderr().is_terminal() && said.elapsed() > BETWEEN_LINES {
            said = Instant::now();
            note_line(&format!("{what} {done} of {all}"));
        }
        let form = format!("{what} {{pos}} of {{len}} [{{bar:30}}] {{eta}}");
        let bar = bar.get_or_insert_with(|| new_bar(&bars, all as u64, &form));
        bar.set_position(done as u64);
        if done >= all {
            bar.finish_and_clear();
        }
    }
}

/// Such a bar for what goes on until Ctrl-C.
pub fn going_on(what: &'static str, until: &Interrupt) -> impl FnMut(usize, usize) -> bool {
    let mut count = counting(what);
    move |done, all| {
        count(done, all);
        !until.pressed()
    }
}

/// The time that something takes whose length is unknown.
pub fn unknown(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what).with_finish(ProgressFinish::AndClear);
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    if std::io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    bar
}

/// A bar for a number of steps.
pub fn bar(all: u64, form: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(form);
    ProgressBar::new(all).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A bar that is gone when whoever shows it is: also after a failure.
fn new_bar(bars: &MultiProgress, all: u64, form: &str) -> ProgressBar {
    bars.add(bar(all, form).with_finish(ProgressFinish::AndClear))
}
