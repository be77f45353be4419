//! `cargo xtask soak --server`: a server of its own, under everything that clients do to it, killed
//! in the middle of streams and started again.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::address::Address;
use super::http::Connection;
use super::process::health;
use super::stream::{self, Refusal};
use super::{WAIT, churn, idle, malformed};
use crate::command::Result;

/// The longest time from start to the first answer, as a bound on a machine that is busy: what a
/// quiet one takes is printed.
const START: Duration = Duration::from_secs(20);

/// How much is done.
pub struct Amount {
    /// Requests that are wrong.
    pub malformed: u64,
    /// Seconds with clients that come and go.
    pub seconds: u64,
    /// Times that the server is killed.
    pub kills: u64,
    /// What is done.
    pub seed: u64,
}

/// A server that runs until this is dropped.
struct Server {
    child: Child,
    address: Address,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts it on a port, and waits until it is well.
    fn start(troika: &Path, port: u16, flags: &[&str]) -> Result<Self> {
        let mut command = Command::new(troika);
        command.args(["serve", "--port", &port.to_string()]).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|e| format!("{}: {e}", troika.display()))?;
        let mut server = Self { child, address: Address::local(port) };
        let start = Instant::now();
        while let Err(why) = health(&server.address) {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("troika serve ended at once ({status})"));
            }
            if start.elapsed() > START {
                return Err(format!("not within {START:?}: {why}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

/// A port that nobody uses at the moment.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| e.to_string())?;
    listener.local_addr().map(|a| a.port()).map_err(|e| e.to_string())
}

/// Does all of it.
///
/// # Errors
/// The first thing that the server should not have done.
pub fn run(troika: &Path, amount: &Amount) -> Result<()> {
    let port = free_port()?;
    println!("{}", kill(troika, port, amount.kills)?);
    println!("{}", malformed(troika, port, amount)?);
    let server = Server::start(troika, port, &[])?;
    let (address, seed, pid) = (&server.address, amount.seed, server.child.id());
    let options = idle::Options { streams: 1000, pid, mib: 200.0, seconds: 5, admitted: 100 };
    println!("{}", idle::run(address, &options)?);
    let (pid, mib) = (Some(pid), 32.0);
    let options = churn::Options { seconds: amount.seconds, clients: 24, seed, pid, mib };
    println!("{}", churn::run(address, &options)?);
    Ok(())
}

/// Some of these requests are valid after all, and lost the field that says how long the answer is:
/// the server's limit keeps those short.
fn malformed(troika: &Path, port: u16, amount: &Amount) -> Result<String> {
    let server = Server::start(troika, port, &["--max-tokens", "4"])?;
    let options = malformed::Options {
        requests: amount.malformed,
        minutes: 30,
        clients: 4,
        seed: amount.seed,
        pid: Some(server.child.id()),
        failures: 5,
        mib: 32.0,
    };
    malformed::run(&server.address, &options)
}

/// Kills the server while it streams. Its clients must see that their streams broke off, and the next
/// start must write the same text.
fn kill(troika: &Path, port: u16, kills: u64) -> Result<String> {
    let (mut want, mut slowest) = (None, Duration::ZERO);
    for _ in 0..=kills {
        let start = Instant::now();
        let mut server = Server::start(troika, port, &[])?;
        let mut open = Connection::open(&server.address, WAIT).map_err(|e| e.to_string())?;
        let model = stream::model(&mut open)?;
        let body = |tokens| stream::body(&model, "It was a dark night, and the old man", tokens);
        let got = stream::read(&mut open, &body(24), |_| Ok(()));
        let text = got.map_err(|e| format!("after a start: {e:?}"))?.text;
        slowest = slowest.max(start.elapsed());
        match want.get_or_insert_with(|| text.clone()) == &text {
            true => {}
            false => return Err(format!("after a kill: {text:?} where it was {want:?}")),
        }
        let ended = stream::read(&mut open, &body(900), |n| match n {
            5 => server.child.kill().map_err(Refusal::from),
            _ => Ok(()),
        });
        match ended {
            Err(Refusal::Failed(_)) => {}
            Err(Refusal::Full) => return Err("a server with one client is full".into()),
            Ok(_) => return Err("a stream ends well though its server was killed".into()),
        }
    }
    Ok(format!(
        "server: killed {kills} times in the middle of a stream, the text always the same, at most \
         {slowest:.2?} from start to the end of the first answer"
    ))
}
