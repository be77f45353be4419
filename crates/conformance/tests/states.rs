//! States of sequences on virtual devices, whose computed positions are watched: sequences go on
//! from the last checkpoint and no earlier one, are forked, and change devices in the midst of a
//! prompt. Their numbers are always those of a sequence that one device computed at once.

#![allow(clippy::panic, clippy::unwrap_used)]

mod setup;

use std::sync::{Arc, Mutex};

use conformance::golden::bits;
use setup::engines::{EngineOptions, engine};
use setup::{TWO_PROCESSORS, described, in_f32, plan_of, processors, some_tokens};
use troika::device::{Device, Work};
use troika::engine::{Admission, Engine, Event, Next, SeqId, SequenceInput, Sharing, WantedLogits};
use troika::plan::Strategy;
use troika_check::{Doing, Hook, Hooked, Random};
use troika_sim::VirtualClock;

const CHUNK: usize = 16;
const PAGE: usize = 8;
/// A state of one row beside pages of all positions; pages of two windows; convolutions, and scans
/// beside attention; delta rules.
const MODELS: [&str; 5] = [
    "test-recurrent",
    "gemma-3",
    "../golden-2026/lfm2",
    "../golden-2026/falcon-h1",
    "../golden-2026/qwen3.5",
];

struct World {
    engine: Engine,
    /// The first position that was computed since it was last asked for.
    first: Arc<Mutex<usize>>,
}

impl World {
    fn new(model: &str, strategy: Strategy) -> World {
        let d = described(model);
        let clock = Arc::new(VirtualClock::new());
        let hook = Hook::default();
        let count = if strategy == Strategy::OneDevice { 1 } else { 2 };
        // Each has memory of its own: a state has to be copied from one to the other.
        let soc = TWO_PROCESSORS.replace("launch_us", "own_memory = true\nlaunch_us");
        let devices = processors(&soc, &clock).into_iter().take(count);
        let watched = |device| Arc::new(Hooked::new(device, hook.clone())) as Arc<dyn Device>;
        let devices: Vec<Arc<dyn Device>> = devices.map(watched).collect();
        let mut plan = plan_of(&d, &devices, &in_f32(strategy, CHUNK));
        (plan.page_len, plan.prefill.chunks_in_flight) = (PAGE, 2);
        let sharing = Sharing { sequences: 4, ..Sharing::default() };
        let options = EngineOptions { clock: Some(clock), sharing, ..EngineOptions::default() };
        let engine = engine(&d, &devices, plan, options).unwrap();
        let first = Arc::new(Mutex::new(usize::MAX));
        let seen = first.clone();
        hook.set(move |doing| {
            let Doing::Submit(list) = doing else { return Ok(()) };
            let runs = list.tasks.iter().filter_map(|task| match &task.work {
                Work::Run(run) => run.forward.seqs.iter().map(|s| s.pos).min(),
                _ => None,
            });
            let mut seen = seen.lock().unwrap();
            *seen = runs.fold(*seen, usize::min);
            Ok(())
        });
        World { engine, first }
    }

    /// The logits behind each of some tokens that a sequence is fed.
    fn feed(&mut self, input: &SequenceInput<'_>) -> Vec<Vec<u32>> {
        let mut rows = Vec::new();
        self.engine.run(&[*input], &mut |_, _, row| rows.push(bits(row))).unwrap();
        self.engine.audit().unwrap();
        rows
    }

    fn prompt(&mut self, seq: SeqId, tokens: &[u32]) -> Vec<Vec<u32>> {
        self.feed(&SequenceInput::prompt(seq, tokens, WantedLogits::All))
    }

    fn decode(&mut self, seq: SeqId, tokens: &[u32]) -> Vec<Vec<u32>> {
        self.feed(&SequenceInput::decode(seq, tokens, WantedLogits::All))
    }

    /// What one device computes of some tokens at once.
    fn alone(model: &str, tokens: &[u32]) -> Vec<Vec<u32>> {
        let mut world = World::new(model, Strategy::OneDevice);
        let seq = world.engine.open();
        world.prompt(seq, tokens)
    }

    fn first(&self) -> usize {
        std::mem::replace(&mut *self.first.lock().unwrap(), usize::MAX)
    }
}

/// The places where a strategy computes prompts and decodes.
fn strategies() -> [Strategy; 3] {
    [Strategy::OneDevice, Strategy::Alternate, Strategy::PrefillDecode]
}

#[test]
fn a_check_goes_on_from_where_it_began() {
    let tokens = some_tokens(60, 1);
    let want = World::alone(MODELS[0], &tokens);
    for strategy in strategies() {
        // Within a page, over its end, from its end on.
        for prompt in [18, 21, 24] {
            let mut world = World::new(MODELS[0], strategy.clone());
            let seq = world.engine.open();
            world.prompt(seq, &tokens[..prompt]);
            let mut kept = prompt;
            for _ in 0..5 {
                let wrong = tokens[kept + 2..][..3].iter().map(|token| token ^ 1);
                let check: Vec<u32> = tokens[kept..][..2].iter().copied().chain(wrong).collect();
                assert!(world.decode(seq, &check)[..2] == want[kept..][..2], "{strategy}: {kept}");
                world.engine.truncate(seq, kept + 2).unwrap();
                world.first();
                let row = world.decode(seq, &tokens[kept + 2..=kept + 2]);
                assert!(row[..] == want[kept + 2..=kept + 2], "{strategy}: behind {kept}");
                // The two that were kept are computed again at most, not what was before them.
                let ends = (kept + 2) / PAGE * PAGE;
                assert_eq!(world.first(), kept.max(ends), "{strategy}: behind {kept}");
                kept += 3;
            }
        }
    }
}

#[test]
fn what_is_cut_back_to_the_prompt_goes_on_from_its_end() {
    let tokens = some_tokens(40, 1);
    let want = World::alone(MODELS[0], &tokens);
    for strategy in strategies() {
        let mut world = World::new(MODELS[0], strategy.clone());
        let seq = world.engine.open();
        world.prompt(seq, &tokens[..21]);
        // Answers that are decoded token by token, longer than what is left of the page or not.
        for answer in [1, 2, 7, 3] {
            for token in &tokens[21..21 + answer] {
                world.decode(seq, &[token ^ 1]);
            }
            world.engine.truncate(seq, 21).unwrap();
            world.first();
            let rows = world.decode(seq, &tokens[21..=21]);
            assert!(rows[..] == want[21..=21], "{strategy}: behind {answer}");
            assert_eq!(world.first(), 21, "{strategy}: behind {answer}");
        }
    }
}

#[test]
fn forks_go_on_from_the_pages_that_they_share() {
    let tokens = some_tokens(47, 1);
    for model in MODELS {
        let want = World::alone(model, &tokens);
        for strategy in [Strategy::OneDevice, Strategy::Alternate] {
            let mut world = World::new(model, strategy.clone());
            let shares = Admission { shares: true, ..Admission::default() };
            let root = world.engine.handle().admit(shares).unwrap();
            world.prompt(root, &tokens[..29]);
            world.decode(root, &tokens[29..30]);
            let mut of = root;
            // Forks of forks, at lengths within pages and at their ends.
            for (len, other) in [(30, 5), (24, 9), (27, 2), (9, 14)] {
                let fork = world.engine.handle().fork(of).unwrap();
                let own: Vec<u32> = tokens[len..][..other].iter().map(|token| token ^ 3).collect();
                let text = [&tokens[..len], &own].concat();
                let logits = WantedLogits::Last;
                world.engine.handle().feed(&SequenceInput::prompt(fork, &text, logits)).unwrap();
                let (mut row, mut shared) = (Vec::new(), 0);
                while row.is_empty() {
                    world
                        .engine
                        .step(&mut |event| {
                            match event {
                                Event::Begun { cached, .. } => shared = cached,
                                Event::Logits { logits, .. } => row = bits(logits),
                                event => panic!("{event:?}"),
                            }
                            Next::Wait
                        })
                        .unwrap();
                }
                // Chunks that are in flight together leave the states behind the last ones only,
                // and windows forget.
                let whole = len / PAGE * PAGE;
                let all = model == MODELS[0] && (strategy == Strategy::OneDevice || len > CHUNK);
                assert!(shared == whole || !all, "{model}, {strategy}: {shared} of {len}");
                let alone = World::alone(model, &text);
                assert!(row == alone[text.len() - 1], "{model}, {strategy}: {len} of {of}");
                of = fork;
            }
            // What they went on from is as it was.
            let rows = world.prompt(root, &tokens[30..]);
            assert!(rows[..] == want[30..], "{model}, {strategy}");
        }
    }
}

/// Pieces of a text are computed as prompts and as checks, and so by one device and the other.
#[test]
fn states_are_handed_over_in_the_midst_of_a_prompt() {
    let tokens = some_tokens(90, 1);
    for model in MODELS {
        let want = World::alone(model, &tokens);
        for seed in 0..12 {
            let mut random = Random(seed);
            let mut world = World::new(model, Strategy::PrefillDecode);
            let seq = world.engine.open();
            let mut len = 0;
            while len < tokens.len() {
                let end = tokens.len().min(len + 1 + random.below(11));
                let rows = match random.once_in(2) {
                    true => world.prompt(seq, &tokens[len..end]),
                    false => world.decode(seq, &tokens[len..end]),
                };
                assert!(rows[..] == want[len..end], "{model}, seed {seed}: {len} to {end}");
                len = end;
                if random.once_in(3) {
                    len -= random.below(len.min(6));
                    world.engine.truncate(seq, len).unwrap();
                }
            }
        }
    }
}
