//! Progress bars while a model is opened: quantizing weights, comparing kernels and compiling
//! graphs.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressFinish, ProgressStyle};
use troika::engine::OnCompiled;
use troika::{CheckProgress, LoadProgress, Notices, OpenOptions};

use crate::interrupt::Interrupt;
use crate::output::note_line;

/// Shorter compiling shows no bar.
const WORTH_SHOWING: Duration = Duration::from_secs(1);

/// Draws bars on a terminal - indicatif draws nothing elsewhere - and prints notices.
pub fn watch(options: &mut OpenOptions) {
    let bars = MultiProgress::new();
    options.progress = Some(LoadProgress(quantizing(bars.clone())));
    options.notices = Some(Notices(Arc::new(notice(bars.clone()))));
    options.compile.progress = Some(compiling(bars));
    options.devices.gpu.progress = Some(comparing());
}

fn notice(bars: MultiProgress) -> impl Fn(&str) + Send + Sync {
    move |sentence| bars.suspend(|| note_line(&format!("warning: {sentence}")))
}

fn comparing() -> CheckProgress {
    let bar: Mutex<Option<ProgressBar>> = Mutex::default();
    CheckProgress(Arc::new(move |kernel| {
        let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
        match kernel {
            Some(kernel) => {
                let bar = bar.get_or_insert_with(|| unknown("checking the GPU"));
                bar.set_message(format!("checking the GPU: {kernel}"));
            }
            None => drop(bar.take()),
        }
    }))
}

fn quantizing(bars: MultiProgress) -> Arc<dyn Fn(u64, u64) + Send + Sync> {
    let bar: OnceLock<ProgressBar> = OnceLock::new();
    Arc::new(move |done, all| {
        let bar =
            bar.get_or_init(|| new_bar(&bars, all, "quantizing [{bar:30}] {percent} % {eta}"));
        bar.set_position(done);
        if done >= all {
            bar.finish_and_clear();
        }
    })
}

fn compiling(bars: MultiProgress) -> OnCompiled {
    let start: OnceLock<Instant> = OnceLock::new();
    let bar: OnceLock<ProgressBar> = OnceLock::new();
    Arc::new(move |done, all| {
        let start = start.get_or_init(Instant::now);
        if done >= all {
            bar.get().inspect(|bar| bar.finish_and_clear());
        } else if start.elapsed() > WORTH_SHOWING {
            let form = "compiling {pos} of {len} [{bar:30}] {eta}";
            bar.get_or_init(|| new_bar(&bars, all as u64, form)).set_position(done as u64);
        }
    })
}

/// A bar for what is done part by part: told how much is done, of how much.
pub fn counting(what: &'static str) -> impl FnMut(usize, usize) {
    let bars = MultiProgress::new();
    let mut bar: Option<ProgressBar> = None;
    move |done, all| {
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
