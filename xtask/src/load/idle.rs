//! Streams whose clients do not read: how much memory each costs the server.

use std::io::Read;
use std::time::{Duration, Instant};

use super::WAIT;
use super::address::Address;
use super::http::Connection;
use super::process::{health, resident, settle, status};
use super::stream;
use crate::command::Result;

/// Streams that wait in the queue, or whose clients do not read: the server's memory with them
#[derive(clap::Args)]
pub struct Options {
    /// Streams at once
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub streams: usize,
    /// The server's process
    #[arg(long, value_name = "PID")]
    pub pid: u32,
    /// Memory that all streams together may take
    #[arg(long, value_name = "MIB", default_value_t = 200.0)]
    pub mib: f64,
    /// How long the streams are left alone
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub seconds: u64,
    /// The share of streams that the server must take, in percent: others may be told that it is full
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub admitted: usize,
}

/// What the clients find when they look at last.
#[derive(Default)]
struct Found {
    waiting: usize,
    streaming: usize,
    full: usize,
    other: Vec<String>,
}

impl Found {
    /// Looks at what has come, without waiting for more.
    fn look(&mut self, connection: &mut Connection) {
        let mut begin = [0; 12];
        let mut socket = connection.socket();
        // What cannot be set is found by the read.
        let _ = socket.set_read_timeout(Some(Duration::from_millis(1)));
        match socket.read(&mut begin) {
            Ok(n) if begin[..n].ends_with(b" 200") => self.streaming += 1,
            Ok(n) if begin[..n].ends_with(b" 429") => self.full += 1,
            Ok(n) => self.other.push(String::from_utf8_lossy(&begin[..n]).into_owned()),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock) => self.waiting += 1,
            Err(e) => self.other.push(e.to_string()),
        }
    }
}

/// Opens the streams, leaves them alone, and closes them.
///
/// # Errors
/// They take more memory than allowed, are not taken, or go on after their clients went.
pub fn run(address: &Address, options: &Options) -> Result<String> {
    let mut first = Connection::open(address, WAIT).map_err(|e| e.to_string())?;
    let model = stream::model(&mut first)?;
    // One answer before it is measured: what a server makes once is not the streams'.
    let body = stream::body(&model, "It was a dark night", 8);
    stream::read(&mut first, &body, |_| Ok(())).map_err(|e| format!("the first answer: {e:?}"))?;
    let before = resident(options.pid)?;
    let start = Instant::now();
    let mut open = Vec::with_capacity(options.streams);
    for i in 0..options.streams {
        let body = stream::body(&model, &format!("On night {i} the old man said"), 900);
        let mut one = Connection::open(address, WAIT)
            .map_err(|e| format!("stream {i}: {e}; see `ulimit -n`, for the server too"))?;
        let bytes = one.request_bytes("POST", stream::PATH, body.to_string().as_bytes());
        one.send(&bytes).map_err(|e| format!("stream {i}: {e}"))?;
        open.push(one);
    }
    let opened = start.elapsed();
    std::thread::sleep(Duration::from_secs(options.seconds));
    health(address)?;
    let (during, state) = (resident(options.pid)?, status(address)?);
    let mut found = Found::default();
    open.iter_mut().for_each(|one| found.look(one));
    open.into_iter().for_each(Connection::abandon);
    let settled = settle(address, Duration::from_secs(10))?;
    let after = resident(options.pid)?;
    let grown = during - before;
    let text = format!(
        "idle: {} streams, opened in {opened:.1?}: {} stream, {} wait, {} were told that it is full, \
         {} other; status: {} run, {} queued\n\
         idle: {before:.1} MiB before, {during:.1} with them (+{grown:.1}, {:.1} KiB each), \
         {after:.1} after; nothing runs {settled:.1?} after they went",
        options.streams,
        found.streaming,
        found.waiting,
        found.full,
        found.other.len(),
        state["running"],
        state["queued"],
        grown * 1024.0 / options.streams.max(1) as f64,
    );
    let taken = found.streaming + found.waiting;
    if let Some(other) = found.other.first() {
        return Err(format!("{text}\none stream got {other:?}"));
    }
    if taken * 100 < options.streams * options.admitted {
        return Err(format!("{text}\nonly {taken} streams were taken"));
    }
    match grown > options.mib {
        true => Err(format!("{text}\nthey may take {} MiB", options.mib)),
        false => Ok(text),
    }
}
