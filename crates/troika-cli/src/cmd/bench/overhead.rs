//! The cost of a token beside its kernels: scheduler, queues and completions.
//!
//! The same tokens are decoded in turns with spans off, which gives the time, and with spans on,
//! which gives the device's working time. The difference is the overhead.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use troika::trace::{Span, Tracer};
use troika::{Model, OpenOptions, Subject};

use super::row::median;
use crate::error::CliError;
use crate::flags::{BenchArgs, TableFlag};
use crate::output;

/// A model's figures, microseconds per token.
struct Cost {
    model: String,
    threads: usize,
    tokens: usize,
    /// With spans off.
    token: f64,
    /// With spans on.
    token_traced: f64,
    /// While a device worked.
    kernels: f64,
}

impl Cost {
    /// The overhead without that of spans.
    fn route(&self) -> f64 {
        self.token - self.kernels
    }

    fn json(&self) -> Value {
        json!({
            "model_filename": self.model, "n_threads": self.threads, "n_gen": self.tokens,
            "token_us": self.token, "token_traced_us": self.token_traced,
            "kernels_us": self.kernels, "route_us": self.route(),
            "route_share": self.route() / self.token,
        })
    }
}

/// Measures and prints.
///
/// # Errors
/// A model that does not open.
pub fn run(args: &BenchArgs, subject: &Subject, threads: &[usize]) -> Result<(), CliError> {
    let tokens = args.n_gen.iter().copied().max().unwrap_or(0).max(1);
    let mut costs = Vec::new();
    for (threads, options) in super::all_options(args, subject, threads, tokens.saturating_add(1))?
    {
        costs.push(measure(args, subject, (threads, options), tokens)?);
    }
    if args.output != TableFlag::Md {
        return output::json(&Value::Array(costs.iter().map(Cost::json).collect()));
    }
    let mut text = String::from(
        "| model | threads | token | spans on | kernels | route | of a token |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for c in &costs {
        text.push_str(&format!(
            "| {} | {} | {:.1} us | {:.1} us | {:.1} us | {:.1} us | {:.1} % |\n",
            c.model,
            c.threads,
            c.token,
            c.token_traced,
            c.kernels,
            c.route(),
            100.0 * c.route() / c.token
        ));
    }
    output::write(&text)
}

fn measure(
    args: &BenchArgs,
    subject: &Subject,
    (threads, options): (usize, OpenOptions),
    tokens: usize,
) -> Result<Cost, CliError> {
    let tracer = Tracer::on();
    let model = super::open(subject, options, tracer.clone())?;
    let (mut off, mut on, mut kernels) = (Vec::new(), Vec::new(), Vec::new());
    let each = |t: Duration| t.as_secs_f64() * 1e6 / tokens as f64;
    for _ in 0..args.repetitions {
        for paused in [true, false] {
            tracer.pause(paused);
            // Decodes once to warm up, since the other turn's spans were processed meanwhile.
            decode(&model, tokens)?;
            tracer.take();
            let time = decode(&model, tokens)?;
            if paused {
                off.push(each(time));
            } else {
                on.push(each(time));
                kernels.push(each(device_time(&tracer.take())));
            }
        }
    }
    Ok(Cost {
        model: subject.to_string(),
        threads,
        tokens,
        token: median(&mut off),
        token_traced: median(&mut on),
        kernels: median(&mut kernels),
    })
}

/// The time of decoding some tokens.
fn decode(model: &Model, tokens: usize) -> Result<Duration, CliError> {
    let ids = super::ids(tokens, 0, model.spec().vocab);
    let mut logits = Vec::new();
    let mut session = super::session(model)?;
    let start = Instant::now();
    ids.chunks(1).try_for_each(|id| super::feed(&mut session, id, &mut logits))?;
    Ok(start.elapsed())
}

/// The time in which any device worked. Overlapping work counts once, so that the rest of a token
/// is time in which no device computes.
fn device_time(spans: &[Span]) -> Duration {
    let on_devices = spans.iter().filter(|s| &*s.lane != "host");
    let mut busy: Vec<(Duration, Duration)> = on_devices.map(|s| (s.start, s.end)).collect();
    busy.sort_unstable();
    let (mut sum, mut until) = (Duration::ZERO, Duration::ZERO);
    for (start, end) in busy {
        sum += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use troika::trace::Span;

    #[test]
    fn devices_that_work_at_the_same_time_count_once() {
        let span = |lane: &str, start, end| Span {
            name: "task".into(),
            lane: lane.into(),
            start: Duration::from_micros(start),
            end: Duration::from_micros(end),
            args: vec![],
        };
        let spans = [
            span("b", 30, 50),
            span("a", 0, 20),
            span("b", 10, 15),
            span("a", 15, 25),
            span("host", 0, 100),
            span("a", 50, 60),
        ];
        assert_eq!(super::device_time(&spans), Duration::from_micros(25 + 20 + 10));
        assert_eq!(super::device_time(&[]), Duration::ZERO);
    }
}
