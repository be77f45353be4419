//! NPUMoE's claim about splits of hot and cold experts, on the devices at hand: the planner takes one
//! where it pays, and no slower plan.

use std::time::Instant;

use troika::plan::{Goal, Strategy, median};
use troika::{Model, OpenOptions, PlanSource, ProfileAt, SolveOptions, Source};
use troika_engine::{SequenceInput, WantedLogits};

use super::lab::{Lab, temporary_folder};
use super::outcome::Outcome;
use crate::Result;
use crate::profile::{ProfileOptions, profile};
use crate::subject::Subject;

/// Tokens of prompts.
const PROMPTS: [usize; 3] = [64, 256, 1000];
const CONTEXT: usize = 1024;
/// Prompts of each plan, in turns.
const ROUNDS: usize = 15;
/// The most of the time of one device.
const MOST: f64 = 1.05;

pub fn planned(lab: &mut Lab) -> Result<Outcome> {
    let folder = temporary_folder()?;
    let file = ProfileAt::File(folder.path().join("profile.json"));
    let open = OpenOptions {
        devices: lab.devices.clone(),
        context: Some(CONTEXT),
        ..OpenOptions::default()
    };
    let options =
        ProfileOptions { open: open.clone(), file: Some(file.clone()), soc: false, cancel: None };
    let profiled = profile(&Subject::Files(Source::BuiltIn), &options, &mut |_, _| ())?.profile;
    let first = profiled.subject.devices.first().map_or("", |d| d.name.as_str());
    let strategy = Strategy::OneNamed(first.into());
    let (mut words, mut pass) = (Vec::new(), true);
    for prompt in PROMPTS {
        let solve = SolveOptions {
            profile: file.clone(),
            goal: Goal::Ttft,
            prompt: Some(prompt),
            generate: Some(16),
        };
        let plan = PlanSource::Profile(solve);
        let chosen = Model::open(Source::BuiltIn, &OpenOptions { plan, ..open.clone() })?;
        let chunk = Some(chosen.plan().prefill.chunk);
        let alone = OpenOptions { strategy: strategy.clone(), chunk, ..open.clone() };
        let alone = Model::open(Source::BuiltIn, &alone)?;
        let [chosen_ms, alone_ms, ratio] = in_turns([&chosen, &alone], prompt)?;
        let plan = chosen.plan();
        // One device is as fast as itself, whatever short prompts take on a busy machine.
        pass &= ratio <= MOST || plan.devices == [first];
        let groups = plan.prefill.rules.iter().filter_map(|r| r.experts());
        let groups: usize = groups.map(|split| split.groups.len()).sum();
        words.push(format!(
            "{prompt} tokens: {chosen_ms:.2} ms on {} ({groups} groups of experts), {alone_ms:.2} ms on \
             {first} alone, ratio {ratio:.3}",
            plan.devices.join(" and "),
        ));
    }
    let devices: Vec<&str> = profiled.subject.devices.iter().map(|d| d.name.as_str()).collect();
    let note = format!(
        "The built-in model on {}: profiled, then {ROUNDS} prompts of each plan in turns; ratios are \
         medians over turns.",
        devices.join(" and ")
    );
    Ok(Outcome::words("hot/cold splits pay", words.join("\n"), pass).noted(note))
}

/// Milliseconds of a prompt by each of two models, and the median of their ratios, in turns.
fn in_turns(models: [&Model; 2], prompt: usize) -> Result<[f64; 3]> {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        // Who begins changes, so that a disturbance affects both alike.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let ms = prompt_ms(models[which], prompt, round)?;
            // The first one warms up.
            if round > 0 {
                times[which].push(ms);
            }
        }
    }
    let [chosen, alone] = times;
    let ratios = chosen.iter().zip(&alone).map(|(chosen, alone)| chosen / alone).collect();
    let middle = |all: Vec<f64>| median(all).unwrap_or(f64::NAN);
    Ok([middle(chosen), middle(alone), middle(ratios)])
}

/// Milliseconds of a prompt that was not computed before.
fn prompt_ms(model: &Model, prompt: usize, round: usize) -> Result<f64> {
    let vocab = model.spec().vocab;
    let token = |i: usize| ((i * 31 + round * 17 + 5) % vocab) as u32;
    let tokens: Vec<u32> = (0..prompt).map(token).collect();
    let mut engine = model.engine()?;
    let seq = engine.open();
    let input = [SequenceInput::prompt(seq, &tokens, WantedLogits::Last)];
    let start = Instant::now();
    engine.run_unread(&input)?;
    let took = start.elapsed();
    engine.close(seq);
    Ok(took.as_secs_f64() * 1e3)
}
