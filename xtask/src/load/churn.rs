//! Clients that come and go, stall and break off: at the end, nothing may be left of them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::WAIT;
use super::address::Address;
use super::http::Connection;
use super::process::{health, pages, resident, settle};
use super::prompt::Prompts;
use super::stream::{self, Attempt, Refusal};
use crate::command::Result;
use crate::random::Random;

/// Clients that come, go, stall and break off; then nothing may run, and pages must be back
#[derive(clap::Args)]
pub struct Options {
    /// How long
    #[arg(long, value_name = "N", default_value_t = 600)]
    pub seconds: u64,
    /// Clients at once
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub clients: u64,
    /// What they do
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The server's process: its memory must not grow
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// How much memory may grow in the second half
    #[arg(long, value_name = "MIB", default_value_t = 32.0)]
    pub mib: f64,
}

/// Prompts that are asked again and again: their greedy texts must always be the same.
const KNOWN: usize = 12;

/// What a client does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Conduct {
    /// Reads to the end.
    Reads,
    /// Reads, with long pauses.
    Stalls,
    /// Goes away after some tokens.
    LeavesStream,
    /// Goes away before the answer begins.
    LeavesQueue,
    /// Sends a part of the request, and goes away.
    LeavesRequest,
    /// Sends the request in small parts.
    SendsSlowly,
    /// Waits for a whole answer, not a stream.
    WaitsForAll,
}

const CONDUCTS: &[Conduct] = &[
    Conduct::Reads,
    Conduct::Reads,
    Conduct::Stalls,
    Conduct::LeavesStream,
    Conduct::LeavesStream,
    Conduct::LeavesQueue,
    Conduct::LeavesRequest,
    Conduct::SendsSlowly,
    Conduct::WaitsForAll,
];

/// What all clients saw.
#[derive(Default)]
struct Seen {
    done: BTreeMap<Conduct, u64>,
    full: u64,
    tokens: u64,
    texts: BTreeMap<usize, String>,
    errors: Vec<String>,
}

/// Runs the clients, and looks at what is left of them.
///
/// # Errors
/// A client that stays gets no answer or another text, or something is left.
pub fn run(address: &Address, options: &Options) -> Result<String> {
    let prompts = Prompts::new(address, 40, 8)?;
    let mut first = Connection::open(address, WAIT).map_err(|e| e.to_string())?;
    let model = stream::model(&mut first)?;
    drop(first);
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let (seen, used) = (Mutex::new(Seen::default()), pages(address)?);
    let half = std::thread::scope(|scope| {
        for client in 0..options.clients {
            let mut client = Client {
                address,
                model: &model,
                prompts,
                random: Random(options.seed << 16 | client),
                seen: &seen,
            };
            scope.spawn(move || client.until(end));
        }
        sleep(Duration::from_secs(options.seconds / 2));
        options.pid.map(resident).transpose()
    })?;
    let settled = settle(address, Duration::from_secs(5));
    let seen = seen.into_inner().map_err(|e| e.to_string())?;
    let counts: Vec<String> = seen.done.iter().map(|(c, n)| format!("{n} x {c:?}")).collect();
    let [after, all] = pages(address)?;
    let mut text = format!(
        "churn: seed {}, {} clients, {} s: {}; {} times full, {:.0} tokens/s read\n\
         churn: {} of {all} pages used before, {after} after",
        options.seed,
        options.clients,
        options.seconds,
        counts.join(", "),
        seen.full,
        seen.tokens as f64 / options.seconds.max(1) as f64,
        used[0],
    );
    let mut found = seen.errors;
    found.truncate(5);
    found.extend(settled.err());
    found.extend(health(address).err());
    found.extend(whole_context(address, &model).err());
    if let (Some(pid), Some(half)) = (options.pid, half) {
        let last = resident(pid)?;
        text += &format!("\nchurn: {half:.1} MiB in the middle, {last:.1} at the end");
        if last - half > options.mib {
            found.push(format!("the server's memory grew by more than {} MiB", options.mib));
        }
    }
    match found.is_empty() && seen.done.contains_key(&Conduct::Reads) {
        true => Ok(text),
        false => Err(format!("{text}\n{}", found.join("\n"))),
    }
}

/// Pages are back where requests find them: one that fills most of the context, next to others.
fn whole_context(address: &Address, model: &str) -> Result<()> {
    let prompts = Prompts::new(address, 800, 0)?;
    std::thread::scope(|scope| {
        let ask = |i: u64| {
            let mut open = Connection::open(address, WAIT)?;
            let body = stream::body(model, &prompts.get((1 << 40) + i), 16);
            stream::read(&mut open, &body, |_| Ok(()))
        };
        let asked: Vec<_> = (0..4).map(|i| scope.spawn(move || ask(i))).collect();
        for one in asked {
            let read = one.join().map_err(|_| "a client stopped")?;
            read.map_err(|e| format!("a long prompt after all clients went: {e:?}"))?;
        }
        Ok(())
    })
}

/// One client after the other.
struct Client<'a> {
    address: &'a Address,
    model: &'a str,
    prompts: Prompts,
    random: Random,
    seen: &'a Mutex<Seen>,
}

impl Client<'_> {
    fn until(&mut self, end: Instant) {
        while Instant::now() < end {
            let conduct = *self.random.pick(CONDUCTS);
            let did = self.conduct(conduct);
            let mut seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
            match did {
                Ok(()) => *seen.done.entry(conduct).or_default() += 1,
                Err(Refusal::Full) => seen.full += 1,
                Err(Refusal::Failed(why)) if seen.errors.len() < 20 => {
                    seen.errors.push(format!("{conduct:?}: {why}"));
                }
                Err(Refusal::Failed(_)) => {}
            }
            drop(seen);
            sleep(Duration::from_millis(self.random.below(30) as u64));
        }
    }

    fn conduct(&mut self, conduct: Conduct) -> Attempt<()> {
        let mut open = Connection::open(self.address, WAIT)?;
        let number = self.random.below(KNOWN);
        let tokens = 8 + 8 * (number % 5);
        let mut body = stream::body(self.model, &self.prompts.get(number as u64), tokens);
        match conduct {
            Conduct::Reads => self.read(&mut open, number, |_| 0)?,
            Conduct::Stalls => {
                let (at, pause) = (1 + self.random.below(6), 100 + self.random.below(1900));
                self.read(&mut open, number, |n| if n == at { pause } else { 0 })?;
            }
            Conduct::LeavesStream => {
                let leave = 1 + self.random.below(6);
                let left = |n| match n < leave {
                    true => Ok(()),
                    false => Err(Refusal::Failed(String::new())),
                };
                match stream::read(&mut open, &body, left) {
                    Err(Refusal::Failed(why)) if why.is_empty() => open.abandon(),
                    other => other.map(drop)?,
                }
            }
            Conduct::LeavesQueue => {
                open.send(&open.request_bytes("POST", stream::PATH, body.to_string().as_bytes()))?;
                sleep(Duration::from_millis(self.random.below(20) as u64));
                open.abandon();
            }
            Conduct::LeavesRequest => {
                let bytes = open.request_bytes("POST", stream::PATH, body.to_string().as_bytes());
                open.send(&bytes[..self.random.below(bytes.len())])?;
                sleep(Duration::from_millis(self.random.below(200) as u64));
                open.abandon();
            }
            Conduct::SendsSlowly | Conduct::WaitsForAll => {
                body["stream"] = false.into();
                if let Some(fields) = body.as_object_mut() {
                    fields.remove("stream_options");
                }
                let small = conduct == Conduct::SendsSlowly;
                self.whole(&mut open, &body, number, small)?;
            }
        }
        Ok(())
    }

    /// Reads a stream of a prompt that others ask too; pauses are in milliseconds.
    fn read(
        &mut self,
        open: &mut Connection,
        number: usize,
        pause: impl Fn(usize) -> usize,
    ) -> Attempt<()> {
        let tokens = 8 + 8 * (number % 5);
        let body = stream::body(self.model, &self.prompts.get(number as u64), tokens);
        let got = stream::read(open, &body, |n| {
            sleep(Duration::from_millis(pause(n) as u64));
            Ok(())
        })?;
        self.compare(number, got.text, got.tokens)
    }

    /// Waits for a whole answer, whose request goes out in small parts if that is asked for.
    fn whole(
        &mut self,
        open: &mut Connection,
        body: &serde_json::Value,
        number: usize,
        small: bool,
    ) -> Attempt<()> {
        let bytes = open.request_bytes("POST", stream::PATH, body.to_string().as_bytes());
        let length = if small { bytes.len() / 8 + 1 } else { bytes.len() };
        for part in bytes.chunks(length) {
            open.send(part)?;
            sleep(Duration::from_millis(if small { 10 } else { 0 }));
        }
        let head = open.head()?;
        if head.status != 200 {
            return Err(stream::refusal(open, &head));
        }
        let data = open.incoming(&head).rest()?;
        let answer: serde_json::Value = serde_json::from_slice(&data).unwrap_or_default();
        let text = answer["choices"][0]["message"]["content"].as_str();
        let text = text.ok_or_else(|| Refusal::Failed(format!("no text in {answer}")))?;
        let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap_or_default();
        self.compare(number, text.to_string(), tokens)
    }

    /// The same prompt has the same text, whoever else is there.
    fn compare(&self, number: usize, text: String, tokens: u64) -> Attempt<()> {
        let mut seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
        seen.tokens += tokens;
        let want = seen.texts.entry(number).or_insert_with(|| text.clone());
        match *want == text {
            true => Ok(()),
            false => Err(Refusal::Failed(format!("{text:?} where it was {want:?}"))),
        }
    }
}
