//! Requests that are wrong, by the million: no crash, no leak, no status that blames the server.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::WAIT;
use super::address::Address;
use super::http::Connection;
use super::mutate::{Mutant, Mutants};
use super::process::{health, resident, settle};
use super::stream;
use crate::command::Result;

/// Requests that are wrong, over connections that are kept
#[derive(clap::Args)]
pub struct Options {
    /// Requests
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub requests: u64,
    /// End after so many minutes, whatever is left
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub minutes: u64,
    /// Clients at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub clients: u64,
    /// What is sent
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The server's process: its memory must not grow
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// End after so many answers that should not be
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub failures: usize,
    /// How much memory may grow after the first tenth of the requests
    #[arg(long, value_name = "MIB", default_value_t = 32.0)]
    pub mib: f64,
}

/// Requests between two questions whether the server is well.
const ASKED_AFTER: u64 = 10_000;

/// How far all clients are.
#[derive(Default)]
struct Progress {
    sent: AtomicU64,
    stop: AtomicBool,
    statuses: Mutex<BTreeMap<u16, u64>>,
    found: Mutex<Vec<String>>,
    /// The memory after the first tenth.
    warm: Mutex<Option<f64>>,
    /// The longest wait for an answer, and to what.
    slowest: Mutex<(Duration, String)>,
}

impl Progress {
    fn fail(&self, why: String, most: usize) {
        let mut found = self.found.lock().unwrap_or_else(|e| e.into_inner());
        found.push(why);
        if found.len() >= most {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Sends them.
///
/// # Errors
/// An answer is missing or blames the server, it is not well, or its memory grew.
pub fn run(address: &Address, options: &Options) -> Result<String> {
    let mut first = Connection::open(address, WAIT).map_err(|e| e.to_string())?;
    let model = stream::model(&mut first)?;
    drop(first);
    let (start, progress) = (Instant::now(), Progress::default());
    let before = options.pid.map(resident).transpose()?;
    std::thread::scope(|scope| {
        for client in 0..options.clients {
            let seed = options.seed << 16 | client;
            let mutants = Mutants::new(seed, address.host(), &model);
            let progress = &progress;
            scope.spawn(move || send(address, options, mutants, progress));
        }
    });
    health(address)?;
    settle(address, WAIT)?;
    let (took, sent) = (start.elapsed(), progress.sent.into_inner());
    let statuses = progress.statuses.into_inner().map_err(|e| e.to_string())?;
    let statuses: Vec<String> = statuses.iter().map(|(s, n)| format!("{n} x {s}")).collect();
    let mut text = format!(
        "malformed: seed {}, {sent} requests in {took:.0?} ({:.0}/s): {}",
        options.seed,
        sent as f64 / took.as_secs_f64(),
        statuses.join(", ")
    );
    let (slowest, what) = progress.slowest.into_inner().map_err(|e| e.to_string())?;
    text += &format!("\nmalformed: the slowest answer after {slowest:.1?}, to {what}");
    let mut found = progress.found.into_inner().map_err(|e| e.to_string())?;
    if let (Some(pid), Some(before)) = (options.pid, before) {
        let warm = progress.warm.into_inner().map_err(|e| e.to_string())?.unwrap_or(before);
        let after = resident(pid)?;
        text += &format!(
            "\nmalformed: {before:.1} MiB before, {warm:.1} after the first tenth, {after:.1} at the end"
        );
        if after - warm > options.mib {
            found.push(format!("the server's memory grew by more than {} MiB", options.mib));
        }
    }
    match found.is_empty() {
        true => Ok(text),
        false => Err(format!("{text}\n{}", found.join("\n"))),
    }
}

/// One client.
fn send(address: &Address, options: &Options, mut mutants: Mutants, progress: &Progress) {
    let end = Instant::now() + Duration::from_secs(60 * options.minutes);
    let mut connection = None;
    while Instant::now() < end && !progress.stop.load(Ordering::Relaxed) {
        let number = progress.sent.fetch_add(1, Ordering::Relaxed);
        if number >= options.requests {
            progress.sent.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        if number.is_multiple_of(ASKED_AFTER)
            && let Err(why) = health(address)
        {
            progress.fail(format!("after {number} requests: {why}"), options.failures);
        }
        if number == options.requests / 10 {
            let now = options.pid.and_then(|pid| resident(pid).ok());
            *progress.warm.lock().unwrap_or_else(|e| e.into_inner()) = now;
        }
        let mutant = mutants.next();
        let opened = match connection.take() {
            Some(open) => Ok(open),
            None => Connection::open(address, WAIT),
        };
        match opened.map_err(|e| e.to_string()).and_then(|open| one(open, &mutant, progress)) {
            Ok(open) => connection = open,
            Err(why) => {
                progress.fail(format!("{why}, to {}", shown(&mutant.bytes)), options.failures)
            }
        }
    }
}

/// Sends a request, and gives the connection back if it can be used for another.
fn one(mut open: Connection, mutant: &Mutant, progress: &Progress) -> Result<Option<Connection>> {
    if !mutant.is_http {
        not_http(open, mutant);
        return Ok(None);
    }
    let start = Instant::now();
    let asked = open.send(&mutant.bytes).and_then(|()| open.head());
    let head = asked.map_err(|e| e.to_string())?;
    let body = open.incoming(&head).rest().map_err(|e| e.to_string())?;
    let took = start.elapsed();
    let mut slowest = progress.slowest.lock().unwrap_or_else(|e| e.into_inner());
    if took > slowest.0 {
        *slowest = (took, shown(&mutant.bytes));
    }
    drop(slowest);
    *progress.statuses.lock().unwrap_or_else(|e| e.into_inner()).entry(head.status).or_default() +=
        1;
    match head.status {
        500.. => Err(format!("{} {}", head.status, shown(&body))),
        400.. if serde_json::from_slice::<serde_json::Value>(&body).is_err() => {
            Err(format!("{} without JSON ({})", head.status, shown(&body)))
        }
        _ => Ok((!head.closes()).then_some(open)),
    }
}

/// Sends what is not HTTP. It may be answered, or the connection closed, even before it was sent;
/// what is unfinished is left so.
fn not_http(mut open: Connection, mutant: &Mutant) {
    let _ = open.send(&mutant.bytes);
    let _ = open.socket().set_read_timeout(Some(Duration::from_millis(5)));
    let _ = open.socket().read(&mut [0; 1024]);
    open.abandon();
}

/// The begin of a request or answer, in ASCII.
fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(700)].escape_ascii().to_string()
}
