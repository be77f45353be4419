//! The server's process and its status, as seen from beside it.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::WAIT;
use super::address::Address;
use super::http::Connection;
use crate::command::Result;

/// The memory that a process has in RAM, in MiB.
///
/// # Errors
/// There is none of this number, or the system has no /proc.
pub fn resident(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("cannot read {path}: {e}"))?;
    let kib = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).and_then(|l| {
        let number = l.split_whitespace().next()?;
        number.parse::<f64>().ok()
    });
    kib.map(|kib| kib / 1024.0).ok_or(format!("{path} has no VmRSS"))
}

/// What `GET /troika/status` says.
///
/// # Errors
/// The server does not answer so.
pub fn status(address: &Address) -> Result<Value> {
    let asked =
        Connection::open(address, WAIT).and_then(|mut c| c.ask("GET", "/troika/status", b""));
    let (head, data) = asked.map_err(|e| format!("/troika/status: {e}"))?;
    match (head.status, serde_json::from_slice(&data)) {
        (200, Ok(status)) => Ok(status),
        (status, _) => Err(format!("/troika/status answers {status}")),
    }
}

/// Waits until nothing runs and nothing is queued; says how long that took.
///
/// # Errors
/// It does not happen in time.
pub fn settle(address: &Address, within: Duration) -> Result<Duration> {
    let start = Instant::now();
    loop {
        let status = status(address)?;
        let left = [&status["running"], &status["queued"]].map(Value::as_u64);
        if left == [Some(0), Some(0)] {
            return Ok(start.elapsed());
        }
        if start.elapsed() > within {
            return Err(format!(
                "{within:?} after the last client, {} run and {} are queued",
                status["running"], status["queued"]
            ));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The pages of all models: used, and there.
///
/// # Errors
/// The status has none.
pub fn pages(address: &Address) -> Result<[u64; 2]> {
    let status = status(address)?;
    let models = status["models"].as_array().ok_or("/troika/status has no models")?;
    let sum = |name: &str| models.iter().filter_map(|m| m[name].as_u64()).sum();
    Ok([sum("pages_used"), sum("pages")])
}

/// Whether `/health` answers with 200.
///
/// # Errors
/// It does not.
pub fn health(address: &Address) -> Result<()> {
    let asked = Connection::open(address, WAIT).and_then(|mut c| c.ask("GET", "/health", b""));
    match asked {
        Ok((head, _)) if head.status == 200 => Ok(()),
        Ok((head, _)) => Err(format!("/health answers {}", head.status)),
        Err(e) => Err(format!("/health does not answer: {e}")),
    }
}
