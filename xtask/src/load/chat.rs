//! Clients that stream chat completions back to back: tokens and requests per second, and waits.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::WAIT;
use super::address::Address;
use super::figures::Times;
use super::http::Connection;
use super::prompt::Prompts;
use super::stream::{self, Refusal, Streamed};
use crate::command::Result;

/// Chat completions, streamed, back to back (the default)
#[derive(clap::Args)]
pub struct Options {
    /// Clients at once
    #[arg(long, value_name = "N", default_value_t = 16)]
    clients: u64,
    /// How long is measured
    #[arg(long, value_name = "N", default_value_t = 20)]
    seconds: u64,
    /// How long the clients run before it is measured
    #[arg(long, value_name = "N", default_value_t = 2)]
    warm: u64,
    /// Tokens of a prompt, about
    #[arg(long, value_name = "N", default_value_t = 128)]
    prompt: usize,
    /// Tokens with which all prompts begin
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared: usize,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// The model's name [default: the server's first]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        let model = None;
        Self { clients: 16, seconds: 20, warm: 2, prompt: 128, shared: 0, tokens: 64, model }
    }
}

/// When requests count.
#[derive(Clone, Copy)]
struct Window {
    start: Instant,
    end: Instant,
}

impl Window {
    fn has(self, moment: Instant) -> bool {
        moment >= self.start && moment < self.end
    }
}

/// What all clients got.
#[derive(Default)]
struct Total {
    tokens: f64,
    requests: u64,
    prompts: u64,
    first: Vec<Duration>,
    token: Vec<Duration>,
    short: u64,
    full: u64,
    errors: BTreeMap<String, u64>,
}

impl Total {
    /// Counts a request. Of one that is only partly in the window, the share of its pieces there.
    fn add(&mut self, sent: Instant, got: &Streamed, window: Window, wanted: usize) {
        let inside = got.moments.iter().filter(|m| window.has(**m)).count();
        self.tokens += got.tokens as f64 * inside as f64 / got.moments.len().max(1) as f64;
        self.short += u64::from(got.tokens != wanted as u64);
        if got.moments.last().is_some_and(|m| window.has(*m)) {
            self.requests += 1;
            self.prompts += got.prompt;
        }
        if window.has(sent) {
            self.first.push(got.first);
            if let (Some(first), Some(last)) = (got.moments.first(), got.moments.last())
                && got.tokens > 1
            {
                self.token.push((*last - *first).div_f64((got.tokens - 1) as f64));
            }
        }
    }

    fn text(self, options: &Options) -> String {
        let seconds = options.seconds as f64;
        let mean = self.prompts as f64 / self.requests.max(1) as f64;
        format!(
            "load: {} clients, {} s, prompts of {mean:.0} tokens ({} shared), {} tokens each\n\
             load: {:.1} generated tokens/s, {:.2} requests/s\n\
             load: time to first token {}\n\
             load: time per token {}\n\
             load: {} errors, {} times full",
            options.clients,
            options.seconds,
            options.shared,
            options.tokens,
            self.tokens / seconds,
            self.requests as f64 / seconds,
            Times::new(self.first).text(),
            Times::new(self.token).text(),
            self.errors.values().sum::<u64>(),
            self.full,
        )
    }
}

/// Runs the clients.
///
/// # Errors
/// No request was answered, one failed, or one had not as many tokens as it asked for.
pub fn run(address: &Address, options: &Options) -> Result<String> {
    let prompts = Prompts::new(address, options.prompt, options.shared)?;
    let mut first = Connection::open(address, WAIT).map_err(|e| e.to_string())?;
    let model = options.model.clone().map_or_else(|| stream::model(&mut first), Ok)?;
    let start = Instant::now() + Duration::from_secs(options.warm);
    let window = Window { start, end: start + Duration::from_secs(options.seconds) };
    let total = Mutex::new(Total::default());
    std::thread::scope(|scope| {
        for client in 0..options.clients {
            let (total, model, prompts) = (&total, &model, &prompts);
            let one = move || {
                let body =
                    |i: u64| stream::body(model, &prompts.get(client << 32 | i), options.tokens);
                requests(address, window, options.tokens, body, total);
            };
            scope.spawn(one);
        }
    });
    let total = total.into_inner().map_err(|e| e.to_string())?;
    let (errors, short, answered) = (total.errors.clone(), total.short, total.requests);
    let text = total.text(options);
    match (errors.first_key_value(), short, answered) {
        (Some((error, n)), ..) => Err(format!("{text}\n{n} times: {error}")),
        (None, 1.., _) => Err(format!("{text}\n{short} answers have another number of tokens")),
        (None, _, 0) => Err(format!("{text}\nno request was answered in time")),
        _ => Ok(text),
    }
}

/// One client: a request after the other over one connection, until the window ends.
fn requests(
    address: &Address,
    window: Window,
    tokens: usize,
    body: impl Fn(u64) -> serde_json::Value,
    total: &Mutex<Total>,
) {
    let mut connection = None;
    for i in 0.. {
        if Instant::now() >= window.end {
            return;
        }
        let opened = match connection.take() {
            Some(open) => Ok(open),
            None => Connection::open(address, WAIT),
        };
        let sent = Instant::now();
        let got = opened.map_err(Refusal::from).and_then(|mut open| {
            let got = stream::read(&mut open, &body(i), |_| Ok(()));
            connection = got.is_ok().then_some(open);
            got
        });
        // Another client's panic does not make the numbers wrong.
        let mut total = total.lock().unwrap_or_else(|e| e.into_inner());
        match got {
            Ok(got) => total.add(sent, &got, window, tokens),
            Err(Refusal::Full) => total.full += 1,
            Err(Refusal::Failed(why)) => *total.errors.entry(why).or_default() += 1,
        }
        drop(total);
        if connection.is_none() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_as_far_as_it_is_in_the_window() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let window = Window { start, end: at(100) };
        let got = Streamed {
            first: Duration::from_millis(20),
            moments: (0..8).map(|i| at(20 + 20 * i)).collect(),
            tokens: 8,
            prompt: 5,
            text: String::new(),
        };
        let mut total = Total::default();
        total.add(start, &got, window, 8);
        assert_eq!((total.tokens, total.requests, total.short), (4.0, 0, 0));
        assert_eq!(total.token, [Duration::from_millis(20)]);
        total.add(at(100), &got, window, 9);
        assert_eq!((total.first.len(), total.short), (1, 1));
    }
}
