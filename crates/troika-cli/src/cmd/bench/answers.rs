//! Whole answers: a prompt of some length through the model's chat template, and an answer of some
//! length. Tokenizing is timed apart from the model.

use std::time::Duration;

use serde_json::json;
use troika::plan::median;
use troika::trace::Tracer;
use troika::{Control, Conversation, Model, OpenOptions, Request};
use troika_lab::Subject;

use super::print::BenchRows;
use super::{ids, open};
use crate::error::CliError;
use crate::flags::BenchArgs;
use crate::stats::ms;

/// A text of any length, in words that tokenizers know.
const WORDS: [&str; 16] = [
    "the", "night", "was", "dark", "and", "wind", "came", "from", "sea", "over", "old", "house",
    "where", "no", "light", "stood",
];

/// Measures and prints each pair of lengths with each of the options.
pub fn run(args: &BenchArgs, subject: &Subject, all: Vec<OpenOptions>) -> Result<(), CliError> {
    const HEAD: &str = "| model | strategy | threads | prompt | answer | tokenizer | TTFT | TPOT | \
        end to end |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
    BenchRows::print(args.output, |rows| {
        for options in all {
            let threads = options.devices.threads();
            let model = open(subject, options, Tracer::off())?;
            let (name, strategy) = (subject.to_string(), model.engine()?.plan().strategy.clone());
            for &(prompt, generate) in &args.answers {
                let t = measure(&model, prompt, generate, args.repetitions)?;
                let tpot = t.tpot.map_or("-".to_string(), |ms| format!("{ms:.2} ms"));
                let line = format!(
                    "| {name} | {strategy} | {threads} | {} | {} | {:.2} ms | {:.1} ms | {tpot} | {:.1} ms |\n",
                    t.prompt, t.generated, t.tokenizer, t.ttft, t.all
                );
                let object = json!({
                    "model_filename": name, "strategy": strategy,
                    "n_threads": threads, "n_prompt": t.prompt, "n_gen": t.generated,
                    "tokenizer_ms": t.tokenizer, "ttft_ms": t.ttft, "tpot_ms": t.tpot,
                    "end_to_end_ms": t.all,
                });
                rows.add(HEAD, &line, &object)?;
            }
        }
        Ok(())
    })
}

/// The middle of the repetitions' times.
struct Times {
    prompt: usize,
    generated: usize,
    tokenizer: f64,
    ttft: f64,
    tpot: Option<f64>,
    all: f64,
}

/// Answers once to warm up, and then as often as asked.
fn measure(
    model: &Model,
    prompt: usize,
    generate: usize,
    repetitions: usize,
) -> Result<Times, CliError> {
    let (tokens, tokenizer) = prompt_of(model, prompt)?;
    let request = Request { max_tokens: Some(generate), ignore_eos: true, ..Request::default() };
    let (mut ttft, mut tpot, mut all) = (Vec::new(), Vec::new(), Vec::new());
    let mut generated = 0;
    for i in 0..=repetitions {
        let mut session = model.fresh_session()?;
        let out = session.generate(&tokens, &request, &mut |_, _| Control::Continue)?;
        if i == 0 {
            continue;
        }
        generated = out.stats.generated_tokens;
        ttft.push(ms(out.stats.ttft));
        tpot.extend(out.stats.tpot().map(ms));
        all.push(ms(tokenizer + out.stats.ttft + out.stats.decode));
    }
    Ok(Times {
        prompt: tokens.len(),
        generated,
        tokenizer: ms(tokenizer),
        ttft: median(ttft).unwrap_or(0.0),
        tpot: median(tpot),
        all: median(all).unwrap_or(0.0),
    })
}

/// A prompt of `tokens` tokens, or of the most words that do not give more, with the time to
/// tokenize it. Without a tokenizer it has arbitrary tokens.
fn prompt_of(model: &Model, tokens: usize) -> Result<(Vec<u32>, Duration), CliError> {
    if model.tokenizer().is_none() {
        return Ok((ids(tokens, 0, model.spec().vocab), Duration::ZERO));
    }
    let of_words = |words: usize| -> Result<(Vec<u32>, Duration), CliError> {
        let text: Vec<&str> = WORDS.iter().copied().cycle().take(words).collect();
        let text = text.join(" ");
        if !model.has_template() {
            return Ok(model.tokenize(&text)?);
        }
        let messages = vec![json!({ "role": "user", "content": text })];
        let prompt = model.chat_prompt(&Conversation::new(messages))?;
        Ok(model.tokenize_chat(&prompt)?)
    };
    // Each word has a token or more, and the template has some.
    let (mut fits, mut beyond) = (0, tokens + 1);
    while beyond - fits > 1 {
        let middle = fits.midpoint(beyond);
        if of_words(middle)?.0.len() <= tokens { fits = middle } else { beyond = middle }
    }
    of_words(fits.max(1))
}
