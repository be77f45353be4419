//! The claim that experts which are read ahead while decoding cost less time: in modelled time, and
//! with the built-in model and this machine's disk.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use troika::plan::{Prediction, RoutingPredictor, RoutingTrace, median};
use troika::weights::CacheFolder;
use troika::{
    DeviceOptions, MemoryLimits, Model, OpenOptions, PredictorOptions, RecordedRouting, Request,
    Source,
};
use troika_check::Random;
use troika_device::Eviction;

use super::caches::{CachePolicy, Choice, Prefetch, Replay, choices};
use super::experts::{novel, predictor_of_text, zipf_routing};
use super::lab::{Lab, temporary_folder};
use super::outcome::Outcome;
use crate::Result;

/// Tokens of a prompt and of an answer, and how many pairs are measured.
const PROMPT: usize = 64;
const ANSWER: usize = 96;
const PAIRS: usize = 21;
/// The share of the experts that the measured predictor finds, with one named for each used.
const FOUND: f64 = 0.77;
/// The share of the experts in memory, in per cent, and the one that the claim is tried at.
const SHARES: [u64; 3] = [25, HALF, 75];
const HALF: u64 = 50;
/// Milliseconds that disks take to read an expert, where attention takes 0.4.
const READS: [f64; 3] = [0.2, 0.6, 2.0];

pub fn preloaded(_: &mut Lab) -> Result<Outcome> {
    let (predictor, rest) = predictor_of_text()?;
    let (mut words, mut pass) = (Vec::new(), true);
    let zipf = zipf_routing();
    let drawn = found(&zipf);
    for (name, trace, choices) in [
        ("recorded", &rest.trace, named(&predictor, &rest)),
        ("8 of 128 experts, Zipf", &zipf, drawn),
    ] {
        let layers: Vec<usize> = trace.layers.iter().map(|l| l.experts).collect();
        for share in SHARES {
            let room = layers.iter().sum::<usize>() * share as usize / 100;
            let time = |prefetch, read| {
                let policy = CachePolicy::Rule(Eviction::Frequency, prefetch);
                Replay::new(&layers, &choices, room, policy).reading(read).run().decode_ms
            };
            let ratios = READS.map(|read| time(Prefetch::Named, read) / time(Prefetch::None, read));
            let [fast, usual, slow] = ratios;
            pass &= share != HALF || (fast <= 1.0 && usual < 1.0 && slow < 1.0);
            words.push(format!(
                "modelled, {name}, {share} % in memory: {fast:.3}, {usual:.3}, {slow:.3} of the time"
            ));
        }
    }
    let predictor = Arc::new(predictor);
    let folder = temporary_folder()?;
    for share in SHARES {
        let Measured { ratio, on_demand, stalled } = measured(share, &predictor, folder.path())?;
        pass &= share != HALF || ratio < 1.0;
        words.push(format!(
            "this disk, {share} % in memory: {ratio:.3} of {:.0} us on demand, {:.0} % of them waits",
            on_demand.as_secs_f64() * 1e6,
            100.0 * stalled
        ));
    }
    let note = "The built-in model (4 layers, 16 experts, 2 of a token); its predictor learnt from other \
        parts of the same novel. Modelled: an expert takes 0.2, 0.6 or 2 ms to read, attention of a token \
        0.4 ms, an expert 0.13 ms. Zipf: drawn tokens, and a predictor that finds 77 % of \
        the experts, as C05 measures. This disk: the folder for temporary files, answers of 96 tokens, the \
        median of 21 pairs; waits include those of a prompt. Tokens of this model are so short that a \
        disk's figures say little; larger models: troika bench --predictor.";
    Ok(Outcome::words("below 1", words.join("\n"), pass).noted(note))
}

/// What a text's tokens choose, with what a predictor names.
fn named(predictor: &RoutingPredictor, recorded: &RecordedRouting) -> Vec<Choice> {
    let layers = &recorded.trace.layers;
    let first = |at: usize| layers[..at].iter().map(|l| l.experts).sum::<usize>();
    let (mut all, mut row, mut memory) =
        (choices(&recorded.trace), Vec::new(), Prediction::default());
    for choice in all.iter_mut().filter(|c| c.tokens == 1) {
        let Some(next) = predictor.after(layers[choice.layer].layer) else { continue };
        let Some(to) = layers.iter().position(|l| l.layer == next.layer) else { continue };
        recorded.input(choice.layer, choice.at, &mut row);
        let names = predictor.predict(next.layer, &row, next.top_k, &mut memory);
        choice.named = names.iter().map(|e| first(to) as u32 + u32::from(*e)).collect();
    }
    all
}

/// What drawn tokens choose, with what a predictor names that finds a share of it. In place of an
/// expert that it does not find, it names one that another token chose.
fn found(trace: &RoutingTrace) -> Vec<Choice> {
    let (mut all, mut random) = (choices(trace), Random(17));
    for choice in all.iter_mut().filter(|c| c.tokens == 1) {
        let Some(next) = trace.layers.get(choice.layer + 1) else { continue };
        let first: usize = trace.layers[..=choice.layer].iter().map(|l| l.experts).sum();
        let name = |e: &u16| {
            let finds = random.below(1000) < (1000.0 * FOUND) as usize;
            let other = random.below(next.ids.len());
            let named = if finds { *e } else { next.ids[other] };
            first as u32 + u32::from(named)
        };
        choice.named = next.of_token(choice.at).iter().map(name).collect();
    }
    all
}

/// What reading ahead does on this machine.
struct Measured {
    ratio: f64,
    /// Of a token.
    on_demand: Duration,
    /// The share of it that computing waited.
    stalled: f64,
}

fn measured(share: u64, predictor: &Arc<RoutingPredictor>, folder: &Path) -> Result<Measured> {
    let options = |experts| OpenOptions {
        context: Some(2 * (PROMPT + ANSWER)),
        cache: Some(CacheFolder::new(folder)),
        devices: DeviceOptions { threads: Some(1), ..DeviceOptions::default() },
        memory: MemoryLimits { experts, ..MemoryLimits::default() },
        ..OpenOptions::default()
    };
    let all = Model::open(Source::BuiltIn, &options(None))?.store().expert_bytes();
    let on_demand = options(Some(all * share / 100));
    let file = "reproduce".into();
    let ahead = PredictorOptions { file, predictor: predictor.clone(), named: None };
    let ahead = OpenOptions { predictor: Some(ahead), ..on_demand.clone() };
    let models = [Model::open(Source::BuiltIn, &on_demand)?, Model::open(Source::BuiltIn, &ahead)?];
    let text = novel()?;
    let (mut ratios, mut times, mut stalls) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        // Another part of the text each time: what was learnt is not repeated.
        let end = text.len() - pair * PROMPT;
        let answer = |model: &Model| answer(model, &text[end - PROMPT..end]);
        let [(time, stall), (ahead, _)] = [answer(&models[0])?, answer(&models[1])?];
        ratios.push(ahead / time);
        times.push(time);
        stalls.push(stall / time);
    }
    let middle = |list| median(list).unwrap_or(f64::NAN);
    let (ratio, on_demand) = (middle(ratios), Duration::from_secs_f64(middle(times)));
    Ok(Measured { ratio, on_demand, stalled: middle(stalls) })
}

/// Seconds of a decoded token, and how many of them computing waited for experts.
fn answer(model: &Model, prompt: &[u32]) -> Result<(f64, f64)> {
    let before = model.expert_stats().unwrap_or_default();
    let request = Request { max_tokens: Some(ANSWER), ignore_eos: true, ..Request::default() };
    let on_token = &mut |_, _: &str| troika::Control::Continue;
    let out = model.session()?.generate(prompt, &request, on_token)?;
    let stall = model.expert_stats().unwrap_or_default().since(&before).stall.as_secs_f64();
    Ok((out.stats.tpot().unwrap_or_default().as_secs_f64(), stall / ANSWER as f64))
}
