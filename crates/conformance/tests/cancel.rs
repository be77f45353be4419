//! Cancels sequences at any moment, in virtual time. Devices finish with a sequence within a chunk,
//! and the others get bit-identical results to running alone. Where rows of several sequences are
//! not mixed, all take turns.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

mod setup;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use setup::engines::{EngineOptions, engine};
use setup::{
    TWO_PROCESSORS, best, described, feed, in_f32, logits_of, plan_of, processors, some_tokens,
};
use troika::device::{Clock, CommandList, Device, DeviceError, Work};
use troika::engine::{
    Admission, Engine, EngineHandle, Event, Next, SeqId, SequenceInput, Sharing, WantedLogits,
};
use troika::plan::{LengthRules, Plan, Ratio, Strategy};
use troika_check::{Doing, Hook, Hooked};
use troika_sim::VirtualClock;

const CHUNK: usize = 8;
const VOCAB: usize = 200;
/// With windows and without, and with states of one row.
const MODELS: [&str; 3] = ["qwen3", "gemma-3", "test-recurrent"];

/// A sequence as its owner sees it.
#[derive(Default)]
struct Owned {
    tokens: Vec<u32>,
    /// Number of tokens to decode.
    left: usize,
    /// Logits received, by position.
    seen: Vec<(usize, Vec<f32>)>,
    /// When its last event came: cancelled, or done.
    ended: Option<Duration>,
}

/// The sequences whose logits were handed out, in order.
type Served = Arc<Mutex<Vec<SeqId>>>;

struct World {
    served: Served,
    engine: Engine,
    handle: EngineHandle,
    clock: Arc<VirtualClock>,
    hook: Hook,
    owned: HashMap<SeqId, Owned>,
}

fn world(model: &str, strategy: Strategy) -> World {
    world_of(model, strategy, (false, TWO_PROCESSORS), |_| ())
}

/// The devices may claim different numerics, although they have the same.
fn world_of(
    model: &str,
    strategy: Strategy,
    (unlike, soc): (bool, &str),
    edit: impl Fn(&mut Plan),
) -> World {
    let d = described(model);
    let clock = Arc::new(VirtualClock::new());
    let hook = Hook::default();
    let count = if strategy == Strategy::OneDevice { 1 } else { 2 };
    let watched = |device: Arc<dyn Device>| -> Arc<dyn Device> {
        let mut caps = device.caps().clone();
        if unlike {
            caps.numerics.push_str(device.name());
        }
        Arc::new(Hooked { caps, ..Hooked::new(device, hook.clone()) })
    };
    let devices = processors(soc, &clock).into_iter().take(count).map(watched);
    let devices: Vec<Arc<dyn Device>> = devices.collect();
    let mut plan = plan_of(&d, &devices, &in_f32(strategy, CHUNK));
    plan.page_len = 8;
    edit(&mut plan);
    let sharing = Sharing { sequences: 4, kv_bytes: None, rows_per_step: CHUNK };
    let own: Option<Arc<dyn Clock>> = Some(clock.clone());
    let options = EngineOptions { clock: own, sharing, ..EngineOptions::default() };
    let engine = engine(&d, &devices, plan, options).unwrap();
    let handle = engine.handle().clone();
    World { served: Served::default(), engine, handle, clock, hook, owned: HashMap::new() }
}

impl World {
    fn hook(&self, mut hook: impl FnMut(&CommandList) + Send + 'static) {
        self.hook.set(move |doing| {
            if let Doing::Submit(list) = doing {
                hook(list);
            }
            Ok(())
        });
    }

    fn admit(&mut self, tokens: Vec<u32>, left: usize) -> SeqId {
        let logits = WantedLogits::All;
        let admission = Admission { tokens: tokens.clone(), logits, ..Admission::default() };
        let seq = self.handle.admit(admission).unwrap();
        self.owned.insert(seq, Owned { tokens, left, ..Owned::default() });
        seq
    }

    /// Runs until nothing is left to compute, or until `enough`. Returns the number of steps.
    fn run(&mut self, mut enough: impl FnMut(&HashMap<SeqId, Owned>) -> bool) -> usize {
        for steps in 0..10_000 {
            let World { served, engine, clock, owned, .. } = self;
            let went_on = engine.step(&mut |event| {
                let seq = event.seq();
                let Some(o) = owned.get_mut(&seq) else { return Next::Wait };
                match event {
                    Event::Begun { .. } => {}
                    Event::Logits { position, logits, last, .. } => {
                        o.seen.push((position, logits.to_vec()));
                        let mut served = served.lock().unwrap();
                        if served.last() != Some(&seq) {
                            served.push(seq);
                        }
                        if last && o.left > 0 {
                            o.left -= 1;
                            o.tokens.push(best(&logits[..VOCAB]));
                            return Next::Append(*o.tokens.last().unwrap());
                        }
                        o.ended = last.then(|| clock.now()).or(o.ended);
                    }
                    Event::Fed { .. } | Event::TopK { .. } => panic!("all logits are wanted"),
                    Event::Cancelled { .. } => o.ended = Some(clock.now()),
                    Event::Failed { error, .. } => panic!("{error}"),
                }
                Next::Wait
            });
            engine.audit().unwrap();
            if !went_on.unwrap() || enough(&self.owned) {
                return steps;
            }
        }
        panic!("it never ends");
    }

    /// Checks that each position from `from` on was handed out once, and equals the result alone.
    fn check(&self, (seq, from): (SeqId, usize), alone: &mut Engine, what: &str) {
        let o = &self.owned[&seq];
        let rows = logits_of(alone, &o.tokens);
        for (i, (position, row)) in o.seen.iter().enumerate() {
            assert_eq!(*position, from + i, "{what}");
            assert!(*row == rows[from + i], "{what}: position {position}");
        }
    }

    /// The time of a prompt's last chunk alone.
    fn chunk_time(&mut self) -> Duration {
        let seq = self.engine.open();
        let mut time = |tokens: &[u32]| {
            let start = self.clock.now();
            feed(&mut self.engine, seq, tokens).unwrap();
            self.clock.now() - start
        };
        time(&some_tokens(64, 9));
        let time = time(&some_tokens(CHUNK, 9));
        self.engine.close(seq);
        time
    }
}

/// A short prompt that then decodes, a long one, and one behind them.
fn three(w: &mut World) -> [SeqId; 3] {
    [(12, 6), (60, 0), (30, 3)].map(|(n, left)| w.admit(some_tokens(n, n), left))
}

#[test]
fn what_is_cancelled_leaves_the_devices_within_a_chunk() {
    let half = Ratio::HALF;
    let strategies = [
        Strategy::Alternate,
        Strategy::OneDevice,
        Strategy::PrefillDecode,
        Strategy::SplitColumns(half),
    ];
    for (model, strategy) in MODELS.iter().flat_map(|m| strategies.clone().map(|s| (*m, s))) {
        let mut alone = world(model, Strategy::OneDevice).engine;
        let mut w = world(model, strategy.clone());
        let chunk = w.chunk_time();
        let count = Arc::new(Mutex::new(0));
        let counting = count.clone();
        w.hook(move |_| *counting.lock().unwrap() += 1);
        three(&mut w);
        w.run(|_| false);
        let lists: usize = *count.lock().unwrap();
        let mut cancelled = [0; 3];
        for (victim, at) in (0..3).flat_map(|v| (0..lists).step_by(lists / 7).map(move |n| (v, n)))
        {
            let what = format!("{model}, {strategy}: {victim} is cancelled at list {at}");
            let mut w = world(model, strategy.clone());
            let all = three(&mut w);
            let (asked, noted) = (Arc::new(Mutex::new(None)), w.clock.clone());
            let (noting, handle, seq, mut left) =
                (asked.clone(), w.handle.clone(), all[victim], at);
            w.hook(move |_| {
                if left == 0 && handle.is_pending(seq) {
                    handle.cancel(seq).unwrap();
                    *noting.lock().unwrap() = Some(noted.now());
                }
                left = left.wrapping_sub(1);
            });
            w.run(|_| false);
            for seq in all {
                w.check((seq, 0), &mut alone, &what);
            }
            let Some(asked) = *asked.lock().unwrap() else { continue };
            cancelled[victim] += 1;
            let ended = w.owned[&seq].ended.unwrap();
            assert!(ended - asked <= chunk, "{what}: {:?} of {chunk:?}", ended - asked);
            // It continues where it was.
            let (len, o) = (w.handle.len(seq).unwrap(), w.owned.get_mut(&seq).unwrap());
            assert!((o.seen.len()..=o.tokens.len()).contains(&len), "{what}: {len}");
            let rest = if len < o.tokens.len() { o.tokens[len..].to_vec() } else { vec![1] };
            o.tokens.truncate(len);
            o.tokens.extend(&rest);
            o.left = 0;
            o.seen.clear();
            w.handle.feed(&SequenceInput::prompt(seq, &rest, WantedLogits::All)).unwrap();
            w.run(|_| false);
            assert_eq!(w.owned[&seq].seen.len(), rest.len(), "{what}");
            w.check((seq, len), &mut alone, &what);
        }
        assert!(cancelled.iter().all(|n| *n > 1), "{model}, {strategy}: {cancelled:?}");
    }
}

/// However often others are cancelled, a prompt is finished. It is computed once, or with windows
/// at most twice, without overlapping batches.
#[test]
fn cancelling_others_again_and_again_stops_nobody() {
    for (model, every) in MODELS.iter().flat_map(|m| [2, 7, 30].map(|n| (*m, n))) {
        let mut alone = world(model, Strategy::OneDevice).engine;
        let mut w = world(model, Strategy::Alternate);
        let seq = w.admit(some_tokens(120, 1), 0);
        let start = w.clock.now();
        w.run(|_| false);
        let (by_itself, start) = (w.clock.now() - start, w.clock.now());
        w.handle.close(seq).unwrap();
        let seq = w.admit(some_tokens(120, 1), 0);
        let admission = || Admission { tokens: some_tokens(40, 3), ..Admission::default() };
        let (mut left, handle) = (every, w.handle.clone());
        let mut victim = handle.admit(admission()).unwrap();
        w.hook(move |_| {
            left -= 1;
            if left == 0 {
                left = every;
                handle.close(victim).unwrap();
                victim = handle.admit(admission()).unwrap();
            }
        });
        w.run(|owned| owned[&seq].ended.is_some());
        let what = format!("{model}, every {every} lists");
        let took = w.owned[&seq].ended.unwrap() - start;
        assert_eq!(w.owned[&seq].seen.len(), 120, "{what}");
        w.check((seq, 0), &mut alone, &what);
        println!("{what}: {took:?}, by itself {by_itself:?}");
        assert!(took < by_itself * 4, "{what}: {took:?}, by itself {by_itself:?}");
    }
}

/// A prompt that computes alone stops for a short one that comes, and loses at most what of a batch
/// was under way.
#[test]
fn a_prompt_that_is_alone_makes_way_for_one_that_comes() {
    let slow = TWO_PROCESSORS.replace("peak_gops = 1.0", "peak_gops = 0.00001");
    let cases = [
        ("qwen3", Strategy::OneDevice),
        ("gemma-3", Strategy::OneDevice),
        ("qwen3", Strategy::Alternate),
    ];
    for (model, strategy) in cases {
        let what = format!("{model}, {strategy}");
        let mut alone = world(model, Strategy::OneDevice).engine;
        let mut w = world_of(model, strategy, (false, &slow), |_| ());
        let chunk = w.chunk_time();
        let start = w.clock.now();
        let seq = w.admit(some_tokens(120, 1), 0);
        w.run(|_| false);
        let by_itself = w.clock.now() - start;
        let seq = [seq, w.admit(some_tokens(120, 1), 0)][1];
        let (came, handle, clock) = (Arc::new(Mutex::new(None)), w.handle.clone(), w.clock.clone());
        let (coming, mut left) = (came.clone(), 10);
        w.hook(move |_| {
            left -= 1;
            if left == 0 {
                let admission =
                    Admission { tokens: some_tokens(3, 2), client: 1, ..Admission::default() };
                *coming.lock().unwrap() = Some((handle.admit(admission).unwrap(), clock.now()));
            }
        });
        let (start, handle) = (w.clock.now(), w.handle.clone());
        let short = || *came.lock().unwrap();
        w.run(|_| short().is_some_and(|(short, _)| !handle.is_pending(short)));
        let waited = w.clock.now() - short().unwrap().1;
        assert!(waited <= 2 * chunk, "{what}: {waited:?} of {chunk:?}");
        w.run(|_| false);
        let took = w.clock.now() - start;
        assert!(took <= by_itself + 4 * chunk, "{what}: {took:?}, by itself {by_itself:?}");
        w.check((seq, 0), &mut alone, &what);
    }
}

/// Plans whose batches have rows of one sequence only: by chunk length, and with devices of
/// different numerics that share rows in both phases.
fn unmixed(which: usize) -> World {
    match which {
        0 => world_of("qwen3", Strategy::OneDevice, (false, TWO_PROCESSORS), |plan| {
            let rules = plan.prefill.rules.clone();
            plan.prefill.lengths = vec![LengthRules { up_to: 3, rules }];
        }),
        _ => world_of("qwen3", Strategy::SplitRows(None), (true, TWO_PROCESSORS), |plan| {
            plan.decode.rules = plan.prefill.rules.clone();
        }),
    }
}

/// Runs of prompts as (length, position, rows).
type Runs = Arc<Mutex<BTreeSet<(usize, usize, usize)>>>;

/// Records which rows of prompts of some lengths run together; several sequences never mix.
fn runs_of_prompts(w: &World, lengths: &[usize]) -> Runs {
    let runs = Runs::default();
    let (noted, lengths) = (runs.clone(), lengths.to_vec());
    w.hook(move |list| {
        for task in &list.tasks {
            let Work::Run(run) = &task.work else { continue };
            let [seq] = &run.forward.seqs[..] else { panic!("{:?}", run.forward.seqs) };
            if lengths.contains(&seq.known_len) && seq.pos < seq.known_len - 1 {
                noted.lock().unwrap().insert((seq.known_len, seq.pos, run.rows));
            }
        }
    });
    runs
}

#[test]
fn all_have_turns_where_rows_of_several_are_not_mixed() {
    for which in [0, 1] {
        let (mut w, mut alone) = (unmixed(which), unmixed(which).engine);
        let lengths = [50, 31];
        let by_itself = runs_of_prompts(&unmixed(which), &lengths);
        for n in lengths {
            let mut w = unmixed(which);
            let noted = runs_of_prompts(&w, &lengths);
            w.admit(some_tokens(n, n), 0);
            w.run(|_| false);
            by_itself.lock().unwrap().extend(noted.lock().unwrap().iter());
        }
        let runs = runs_of_prompts(&w, &lengths);
        let decoding = [3, 4].map(|n| w.admit(some_tokens(n, n), 60));
        w.run(|owned| decoding.iter().all(|seq| owned[seq].seen.len() > 6));
        let prompts = lengths.map(|n| w.admit(some_tokens(n, n), 0));
        let from = w.served.lock().unwrap().len();
        w.run(|_| false);
        let served = w.served.lock().unwrap()[from..].to_vec();
        // While others have work, nobody waits for more than one turn of each. If phases are
        // separate, prompts end beside decoding.
        let most = [5, 3][which];
        for seq in decoding {
            let gaps = served.iter().enumerate().filter(|(_, s)| **s == seq).map(|(i, _)| i);
            let gaps: Vec<usize> = gaps.collect();
            let turns = gaps[0] <= most && gaps.windows(2).all(|g| g[1] - g[0] <= most);
            assert!(turns, "{which}: {gaps:?}");
        }
        let last = served.iter().rposition(|s| *s == prompts[1]).unwrap();
        assert!(last < served.len() / 2, "{which}: prompts end at {last} of {}", served.len());
        // The rows that run together do not depend on other sequences.
        assert_eq!(*runs.lock().unwrap(), *by_itself.lock().unwrap(), "{which}");
        for seq in decoding.into_iter().chain(prompts) {
            w.check((seq, 0), &mut alone, &format!("plan {which}"));
        }
    }
}

/// Each processor has its own memory, so that caches are copied between them.
fn apart(model: &str) -> World {
    let soc = TWO_PROCESSORS.replace("launch_us", "own_memory = true\nlaunch_us");
    world_of(model, Strategy::PrefillDecode, (false, &soc), |_| ())
}

/// Prompts end while caches of others are copied.
#[test]
fn caches_are_handed_over_while_others_are_computed() {
    for model in MODELS {
        let mut alone = world(model, Strategy::OneDevice).engine;
        let mut w = apart(model);
        let all: Vec<SeqId> =
            (0..12).map(|i| w.admit(some_tokens(3 + i * 7 % 40, i), 5 + i % 4)).collect();
        w.run(|_| false);
        for (i, seq) in all.into_iter().enumerate() {
            let prompt = 3 + i * 7 % 40;
            assert_eq!(w.owned[&seq].seen.len(), prompt + 5 + i % 4);
            w.check((seq, 0), &mut alone, &format!("{model}, {i}"));
        }
    }
}

/// A failed copy's target does not count as filled.
#[test]
fn a_cache_that_could_not_be_handed_over_is_computed_again() {
    for model in MODELS {
        let mut alone = world(model, Strategy::OneDevice).engine;
        let tokens = some_tokens(30, 3);
        let rows = logits_of(&mut alone, &tokens);
        let mut w = apart(model);
        let seq = w.engine.open();
        feed(&mut w.engine, seq, &tokens[..20]).unwrap();
        let mut left = 1;
        w.hook.set(move |doing| {
            let Doing::Submit(list) = doing else { return Ok(()) };
            let copies = list.tasks.iter().any(|t| matches!(t.work, Work::Copy(_)));
            left -= i32::from(copies);
            match copies && left == 0 {
                true => Err(DeviceError::Gone("it was told to refuse".into())),
                false => Ok(()),
            }
        });
        let error = feed(&mut w.engine, seq, &tokens[20..21]).unwrap_err();
        assert!(error.to_string().contains("told to refuse"), "{error}");
        w.engine.audit().unwrap();
        for i in 20..30 {
            assert!(
                feed(&mut w.engine, seq, &tokens[i..i + 1]).unwrap()[0] == rows[i],
                "{model}: {i}"
            );
        }
    }
}
