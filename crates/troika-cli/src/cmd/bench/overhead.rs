//! The cost of a token beside its kernels: scheduler, queues and completions.
//!
//! Tokens are decoded with spans on, which say how long devices worked. What is left of the same
//! tokens' time is the route, with what it takes to note the spans.

use std::time::{Duration, Instant};

use serde_json::json;
use troika::OpenOptions;
use troika::plan::Phase;
use troika::plan::median;
use troika::trace::{Span, Tracer};
use troika_lab::Subject;

use super::print::BenchRows;
use crate::error::CliError;
use crate::flags::BenchArgs;

/// A model's figures, microseconds per token.
struct Cost {
    token: f64,
    /// In which a device worked.
    kernels: f64,
}

/// Measures and prints.
pub fn run(args: &BenchArgs, subject: &Subject) -> Result<(), CliError> {
    const HEAD: &str = "| model | threads | token | devices compute | the rest | of the token |\n\
        | --- | ---: | ---: | ---: | ---: | ---: |\n";
    let tokens = args.n_gen.iter().copied().max().unwrap_or(0).max(1);
    let all = super::all_options(args, subject, tokens.saturating_add(1))?;
    BenchRows::print(args.output, |rows| {
        for options in all {
            let threads = options.devices.threads();
            let Cost { token, kernels } = measure(args, subject, options, tokens)?;
            // It is not negative: the kernels' time is a part of each token's, and so are the medians.
            let route = token - kernels;
            let share = route / token;
            let line = format!(
                "| {subject} | {threads} | {token:.1} us | {kernels:.1} us | {route:.1} us | {:.1} % |\n",
                100.0 * share
            );
            let object = json!({
                "model_filename": subject.to_string(), "n_threads": threads, "n_gen": tokens,
                "token_us": token, "kernels_us": kernels, "route_us": route, "route_share": share,
            });
            rows.add(HEAD, &line, &object)?;
        }
        Ok(())
    })
}

fn measure(
    args: &BenchArgs,
    subject: &Subject,
    options: OpenOptions,
    tokens: usize,
) -> Result<Cost, CliError> {
    let tracer = Tracer::on();
    let model = super::open(subject, options, tracer.clone())?;
    let (mut times, mut kernels) = (Vec::new(), Vec::new());
    let each = |t: Duration| t.as_secs_f64() * 1e6 / tokens as f64;
    let (ids, mut logits) = (super::ids(tokens, 0, model.spec().vocab), Vec::new());
    // The first run warms caches up and is not counted.
    for i in 0..=args.repetitions {
        tracer.take();
        let (mut session, start) = (model.fresh_session()?, Instant::now());
        for id in ids.chunks(1) {
            super::feed(&mut session, Phase::Decode, id, &mut logits)?;
        }
        if i > 0 {
            times.push(each(start.elapsed()));
            kernels.push(each(device_time(&tracer.take())));
        }
    }
    Ok(Cost { token: median(times).unwrap_or(0.0), kernels: median(kernels).unwrap_or(0.0) })
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
