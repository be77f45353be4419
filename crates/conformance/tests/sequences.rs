//! Random but reproducible use of sequences that share an engine: admitted, fed, replaced,
//! cancelled, closed and preempted. Each sequence always gets bit-identical logits to those it gets
//! alone, and the cache's bookkeeping is right after each step.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

mod setup;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use setup::engines::{self, EngineOptions};
use setup::{cpu, in_f32, plan_of, root, some_tokens};
use troika::device::Device;
use troika::engine::{
    Admission, Engine, EngineError, EngineHandle, Event, KvError, Next, SeqId, SequenceInput,
    Sharing, WantedLogits,
};
use troika::plan::{LengthRules, PlanRequest, Ratio, Strategy};
use troika::weights::FloatType;
use troika::{Described, describe};
use troika_check::Random;

const MODELS: [&str; 5] = [
    "golden/qwen3",
    "golden/gemma-3",
    "variants/phi-3-variant1",
    "golden/test-recurrent",
    "golden-2026/qwen3.5",
];
/// The length beyond which the last model's keys use other rotations.
const LONGROPE: (&str, usize) = (MODELS[2], 32);
const CONTEXT: usize = 96;
const PAGE: usize = 8;
const VOCAB: usize = 200;

fn described(model: &str) -> Described {
    describe(&root("tests").join(model), FloatType::F32).unwrap()
}

fn engine(d: &Described, strategy: Strategy, chunk: usize, sharing: Sharing) -> Engine {
    engine_of(d, strategy, (chunk, false), sharing)
}

/// If the plan goes by chunk length, a batch is of one sequence.
fn engine_of(
    d: &Described,
    strategy: Strategy,
    (chunk, by_length): (usize, bool),
    sharing: Sharing,
) -> Engine {
    let one = strategy == Strategy::OneDevice;
    let devices: Vec<Arc<dyn Device>> =
        if one { vec![cpu("a", 1)] } else { vec![cpu("a", 1), cpu("b", 1)] };
    let request = PlanRequest { context: Some(CONTEXT), ..in_f32(strategy, chunk) };
    let mut plan = plan_of(d, &devices, &request);
    plan.page_len = PAGE;
    if by_length {
        let rules = plan.prefill.rules.clone();
        plan.prefill.lengths = vec![LengthRules { up_to: 4, rules }];
    }
    engines::engine(d, &devices, plan, EngineOptions { sharing, ..EngineOptions::default() })
        .unwrap()
}

fn best(logits: &[f32]) -> u32 {
    setup::best(&logits[..VOCAB.min(logits.len())])
}

fn bits(logits: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    logits.iter().for_each(|x| hasher.write_u32(x.to_bits()));
    hasher.finish()
}

/// The bits of the logits behind each of a prompt's tokens.
fn prompt(e: &mut Engine, seq: SeqId, tokens: &[u32]) -> Vec<u64> {
    let mut rows = Vec::new();
    let input = SequenceInput::prompt(seq, tokens, WantedLogits::All);
    e.run(&[input], &mut |_, _, row| rows.push(bits(row))).unwrap();
    rows
}

/// The logits of a sequence alone.
struct Alone {
    engine: Engine,
    /// The length beyond which all positions are computed differently.
    limit: usize,
}

impl Alone {
    fn rows(&mut self, tokens: &[u32], wanted: WantedLogits) -> Vec<u64> {
        let (seq, mut rows) = (self.engine.open(), Vec::new());
        let input = SequenceInput::prompt(seq, tokens, wanted);
        self.engine.run(&[input], &mut |_, _, row| rows.push(bits(row))).unwrap();
        self.engine.close(seq);
        rows
    }

    /// Compares logits that were handed out for a sequence consisting of `tokens`.
    fn check(&mut self, tokens: &[u32], seen: &[Seen], what: &str) {
        for (states, wanted) in [(false, WantedLogits::All), (true, WantedLogits::States)] {
            let seen = || seen.iter().filter(|s| s.states == states);
            let Some(longest) = seen().map(|s| s.len).max() else { continue };
            let tokens = &tokens[..longest];
            let short = self.rows(&tokens[..longest.min(self.limit)], wanted);
            let long = if longest > self.limit { self.rows(tokens, wanted) } else { Vec::new() };
            for s in seen() {
                let alone = if s.len > self.limit { &long } else { &short };
                let at = s.position;
                assert_eq!(s.bits, alone[at], "{what}: position {at} of {}", s.len);
            }
        }
    }
}

/// Logits after a position of a sequence that had a given number of tokens, or the state there.
struct Seen {
    states: bool,
    position: usize,
    len: usize,
    bits: u64,
}

/// A sequence as its owner sees it.
struct Open {
    tokens: Vec<u32>,
    fed_from: usize,
    pending: bool,
    cancelled: bool,
    /// Whether states are wanted in place of logits.
    states: bool,
    /// The next position with logits; `usize::MAX`: none are wanted.
    next_logits: usize,
    /// Number of tokens to decode.
    left: usize,
    /// How many of the tokens that it was fed last stay, if that is said afterwards.
    accepted: Option<usize>,
    seen: Vec<Seen>,
}

impl Open {
    fn feed(&mut self, tokens: &[u32], logits: WantedLogits) {
        self.fed_from = self.tokens.len();
        self.tokens.extend(tokens);
        self.pending = true;
        (self.cancelled, self.accepted) = (false, None);
        self.states = logits == WantedLogits::States;
        self.next_logits = match logits {
            WantedLogits::None => usize::MAX,
            WantedLogits::Last | WantedLogits::TopK(_) => self.tokens.len() - 1,
            WantedLogits::All | WantedLogits::States => self.fed_from,
        };
    }
}

struct World {
    engine: Engine,
    handle: EngineHandle,
    alone: Alone,
    open: HashMap<SeqId, Open>,
    /// Open sequences in order of admission.
    order: Vec<SeqId>,
    prefixes: Vec<Vec<u32>>,
    random: Random,
    what: String,
    cached: usize,
    cancelled: usize,
    handed_out: usize,
    checked: usize,
    /// Tokens with which sequences go on, but the engine was not told yet.
    later: Vec<(SeqId, u32)>,
}

/// The most tokens fed to a sequence.
const LONGEST: usize = CONTEXT - 1;

impl World {
    fn logits(&mut self) -> WantedLogits {
        *self.random.of(&[
            WantedLogits::Last,
            // The CPU hands out whole rows for these.
            WantedLogits::TopK(3),
            WantedLogits::All,
            WantedLogits::States,
            WantedLogits::None,
        ])
    }

    fn tokens(&mut self, most: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        if most > 40 && !self.random.once_in(3) {
            let at = self.random.below(self.prefixes.len());
            tokens.extend(&self.prefixes[at][..1 + self.random.below(34)]);
        }
        let more = if self.random.once_in(3) { 1 } else { 1 + self.random.below(25) };
        tokens.extend((0..more).map(|_| self.random.below(VOCAB) as u32));
        tokens.truncate(most);
        tokens
    }

    fn admit(&mut self) {
        let tokens = if self.random.once_in(4) { Vec::new() } else { self.tokens(LONGEST) };
        let logits = self.logits();
        let priority = self.random.below(3) as i32 - 1;
        let shares = !self.random.once_in(5);
        let client = self.random.below(3) as u64;
        let admission = Admission { tokens: tokens.clone(), logits, priority, client, shares };
        let seq = self.handle.admit(admission).unwrap();
        let mut open = Open {
            tokens: Vec::new(),
            fed_from: 0,
            pending: false,
            cancelled: false,
            states: false,
            next_logits: usize::MAX,
            left: self.random.below(20),
            accepted: None,
            seen: Vec::new(),
        };
        if !tokens.is_empty() {
            open.feed(&tokens, logits);
        }
        self.open.insert(seq, open);
        self.order.push(seq);
    }

    /// Compares what a sequence has received so far.
    fn check(&mut self, seq: SeqId) {
        let what = format!("{}, sequence {seq}", self.what);
        let open = self.open.get_mut(&seq).unwrap();
        let seen = std::mem::take(&mut open.seen);
        self.alone.check(&open.tokens, &seen, &what);
    }

    fn feed(&mut self, seq: SeqId) {
        let (logits, left) = (self.logits(), self.random.below(20));
        let room = LONGEST - self.open[&seq].tokens.len();
        let tokens = self.tokens(room.max(1));
        if self.open[&seq].pending {
            let refused = self.handle.feed(&SequenceInput::prompt(seq, &[1], logits)).unwrap_err();
            assert!(matches!(refused, EngineError::Twice(s) if s == seq), "{refused}");
            let refused = self.handle.replace(seq, vec![1], logits).unwrap_err();
            assert!(matches!(refused, EngineError::Twice(s) if s == seq), "{refused}");
        } else if room > 0 && !self.random.once_in(3) {
            // Guessed tokens are checked by their logits; it is known then how many stay.
            let accepted = self.random.once_in(3).then(|| self.random.below(tokens.len() + 2));
            let logits = if accepted.is_some() { WantedLogits::All } else { logits };
            let input = match accepted {
                Some(_) => SequenceInput::decode(seq, &tokens, logits),
                None => SequenceInput::prompt(seq, &tokens, logits),
            };
            self.handle.feed(&input).unwrap();
            let open = self.open.get_mut(&seq).unwrap();
            open.feed(&tokens, logits);
            (open.left, open.accepted) = (left, accepted);
        } else {
            // Different tokens with a common beginning.
            let keep = self.random.below(self.open[&seq].tokens.len() + 1);
            self.check(seq);
            let mut all = self.open[&seq].tokens[..keep].to_vec();
            all.extend(self.tokens(LONGEST - keep.min(LONGEST - 1)));
            all.truncate(LONGEST);
            self.handle.replace(seq, all.clone(), logits).unwrap();
            let open = self.open.get_mut(&seq).unwrap();
            let same = open.tokens.iter().zip(&all).take_while(|(a, b)| a == b).count();
            open.tokens.truncate(same.min(all.len() - 1));
            let from = open.tokens.len();
            open.feed(&all[from..], logits);
            open.left = left;
        }
    }

    fn close(&mut self, seq: SeqId) {
        self.check(seq);
        self.handle.close(seq).unwrap();
        self.open.remove(&seq);
        self.order.retain(|other| *other != seq);
        for refused in [
            self.handle.close(seq),
            self.handle.cancel(seq),
            self.handle.feed(&SequenceInput::prompt(seq, &[1], WantedLogits::Last)),
        ] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, EngineError::Kv(KvError::Closed(s)) if s == seq));
        }
    }

    fn act(&mut self, most: usize) {
        let seq = (!self.order.is_empty()).then(|| *self.random.of(&self.order));
        match (self.random.below(12), seq) {
            (0..=3, _) if self.order.len() < most => self.admit(),
            (4..=7, Some(seq)) => self.feed(seq),
            (8..=9, Some(seq)) => {
                self.handle.cancel(seq).unwrap();
                let open = self.open.get_mut(&seq).unwrap();
                open.cancelled = open.pending;
            }
            (10, Some(seq)) if self.random.once_in(2) => self.close(seq),
            _ => {}
        }
    }

    fn step(&mut self) -> bool {
        if !self.random.once_in(8) {
            self.later
                .drain(..)
                .for_each(|(seq, token)| self.handle.go_on(seq, Next::Append(token)));
        }
        let World {
            open, what, cached, cancelled, handed_out, checked, random, handle, later, ..
        } = self;
        let alone = &mut self.alone;
        let (mut cut, mut closed) = (Vec::new(), Vec::new());
        let went_on = self.engine.step(&mut |event| {
            let seq = event.seq();
            let Some(o) = open.get_mut(&seq) else { panic!("{what}: {event:?} of a closed one") };
            assert!(o.pending, "{what}: {seq} has nothing to compute, {event:?}");
            match event {
                Event::Begun { cached: n, .. } => {
                    assert!(n < o.tokens.len(), "{what}");
                    *cached += n;
                }
                Event::Logits { position, logits, last, .. } => {
                    assert_eq!(position, o.next_logits, "{what}: {seq} has {}", o.tokens.len());
                    assert_eq!(last, position + 1 == o.tokens.len(), "{what}");
                    o.next_logits += 1;
                    let (states, len, bits) = (o.states, o.tokens.len(), bits(logits));
                    o.seen.push(Seen { states, position, len, bits });
                    *handed_out += 1;
                    let kept =
                        o.accepted.filter(|_| last).map(|n| o.tokens.len().min(o.fed_from + n));
                    let len = kept.unwrap_or(o.tokens.len());
                    let goes_on = last && o.left > 0 && len < LONGEST;
                    // The receiver of an event may make requests.
                    if last && random.once_in(60) {
                        handle.close(seq).unwrap();
                        closed.push(seq);
                    } else if goes_on && random.once_in(30) {
                        handle.cancel(seq).unwrap();
                        o.cancelled = true;
                    }
                    if let Some(kept) = kept {
                        alone.check(&o.tokens, &std::mem::take(&mut o.seen), what);
                        o.tokens.truncate(kept);
                    }
                    let then = goes_on.then(|| best(logits));
                    if let Some(then) = then {
                        o.left -= 1;
                        o.fed_from = o.tokens.len();
                        o.tokens.push(then);
                        (o.states, o.next_logits) = (false, o.fed_from);
                        // The receiver of logits may change them.
                        logits.fill(f32::NAN);
                    }
                    o.pending = !last || goes_on;
                    if last && let Some(accepted) = o.accepted.take() {
                        *checked += 1;
                        return Next::Keep { accepted, then };
                    }
                    if let Some(then) = then
                        && random.once_in(10)
                    {
                        later.push((seq, then));
                        return Next::Later;
                    }
                    return then.map_or(Next::Wait, Next::Append);
                }
                Event::TopK { .. } => panic!("{what}: {seq} has them on the host"),
                Event::Fed { .. } => {
                    assert_eq!(o.next_logits, usize::MAX, "{what}: {seq} wants logits");
                    o.pending = false;
                }
                Event::Cancelled { .. } => {
                    assert!(o.cancelled, "{what}: {seq} was not cancelled");
                    *cancelled += 1;
                    o.pending = false;
                    cut.push(seq);
                }
                Event::Failed { error, .. } => panic!("{what}: {seq} fails: {error}"),
            }
            Next::Wait
        });
        for seq in cut {
            self.later.retain(|(later, _)| *later != seq);
            let o = self.open.get_mut(&seq).unwrap();
            let len = self.handle.len(seq).unwrap();
            assert!((o.fed_from..=o.tokens.len()).contains(&len), "{}: {len}", self.what);
            self.alone.check(&o.tokens, &std::mem::take(&mut o.seen), &self.what);
            o.tokens.truncate(len);
        }
        for seq in closed {
            self.check(seq);
            self.open.remove(&seq);
            self.order.retain(|other| *other != seq);
        }
        for (seq, o) in &self.open {
            let known = o.tokens.len() - self.later.iter().filter(|(s, _)| s == seq).count();
            assert_eq!(self.handle.is_pending(*seq), o.pending, "{}: {seq}", self.what);
            assert_eq!(self.handle.len(*seq), Some(known), "{}: {seq}", self.what);
        }
        self.engine.audit().unwrap_or_else(|e| panic!("{}: {e}", self.what));
        went_on.unwrap_or_else(|e| panic!("{}: {e}", self.what))
    }

    /// Runs until all sequences are done.
    fn settle(&mut self) {
        for steps in 0.. {
            assert!(steps < 100_000, "{}: it never ends", self.what);
            if !self.step() {
                break;
            }
        }
        for (seq, o) in &self.open {
            assert!(!o.pending, "{}: {seq} was forgotten", self.what);
        }
    }

    fn end(&mut self) {
        self.settle();
        for seq in self.order.clone() {
            self.close(seq);
        }
        assert!(!self.step());
        assert_eq!(self.handle.open_sequences(), 0);
        let memory = self.engine.memory();
        assert_eq!(memory.kv_used, memory.kv_kept, "{}: a page is lost", self.what);
    }
}

/// Statistics over all cases, to ensure that everything happened.
#[derive(Default)]
struct Totals {
    cached: usize,
    cancelled: usize,
    handed_out: usize,
    checked: usize,
    preemptions: u64,
}

fn strategies() -> [Strategy; 4] {
    let half = Ratio::HALF;
    [
        Strategy::OneDevice,
        Strategy::Alternate,
        Strategy::PrefillDecode,
        Strategy::SplitColumns(half),
    ]
}

fn run(seed: u64, (model, strategy): (&str, Strategy), (most, steps): (usize, usize)) -> Totals {
    let d = described(model);
    let mut random = Random(seed);
    let chunk = *random.of(&[5, 16, 64]);
    let sharing = Sharing {
        sequences: *random.of(&[1, 2, 4, 16]),
        kv_bytes: None,
        rows_per_step: *random.of(&[1, 8, 24, 128]),
    };
    // A cache for slightly more than one sequence.
    let limit = if model == LONGROPE.0 { LONGROPE.1 } else { usize::MAX };
    let one = engine(&d, Strategy::OneDevice, chunk, Sharing::default());
    let of_one = one.memory().kv_cache;
    let alone = Alone { engine: one, limit };
    let kv_bytes = random.of(&[None, Some(10), Some(15), Some(25)]).map(|n: u64| of_one * n / 10);
    let sharing = Sharing { kv_bytes, ..sharing };
    let what = format!("seed {seed}, {model}, {strategy}, chunk {chunk}, {sharing:?}");
    let by_length = random.once_in(3);
    let what = format!("{what}, by length: {by_length}");
    let engine = engine_of(&d, strategy, (chunk, by_length), sharing);
    let handle = engine.handle().clone();
    let prefix = |_| (0..40).map(|_| random.below(VOCAB) as u32).collect();
    let prefixes = (0..3).map(prefix).collect();
    let mut world = World {
        engine,
        handle,
        alone,
        open: HashMap::new(),
        order: Vec::new(),
        prefixes,
        random,
        what,
        cached: 0,
        cancelled: 0,
        handed_out: 0,
        checked: 0,
        later: Vec::new(),
    };
    for _ in 0..steps {
        for _ in 0..world.random.below(3) {
            world.act(most);
        }
        world.step();
    }
    world.end();
    Totals {
        cached: world.cached,
        cancelled: world.cancelled,
        handed_out: world.handed_out,
        checked: world.checked,
        preemptions: world.engine.preemptions(),
    }
}

fn all(seeds: std::ops::Range<u64>, size: (usize, usize)) {
    let mut totals = Totals::default();
    for seed in seeds {
        for model in MODELS {
            for strategy in strategies() {
                let t = run(seed, (model, strategy), size);
                totals.cached += t.cached;
                totals.cancelled += t.cancelled;
                totals.handed_out += t.handed_out;
                totals.checked += t.checked;
                totals.preemptions += t.preemptions;
            }
        }
    }
    let Totals { cached, cancelled, handed_out, checked, preemptions } = totals;
    println!("{cached} cached, {cancelled} cancelled, {handed_out} rows, {preemptions} preempted");
    assert!(cached > 300 && cancelled > 50 && handed_out > 1000 && preemptions > 50);
    assert!(checked > 50, "{checked} checks");
}

#[test]
fn sequences_compute_together_what_each_computes_alone() {
    all(0..12, (8, 60));
}

/// Run by `cargo xtask soak`, as are all long tests here.
#[test]
#[ignore = "takes minutes"]
fn a_hundred_sequences_for_ten_thousand_steps() {
    let cases = MODELS.len() * strategies().len();
    all(100..101, (100, 10_000 / cases + 1));
}

#[test]
#[ignore = "takes minutes"]
fn few_sequences_in_many_ways() {
    all(10..50, (8, 60));
}

/// With longrope, a sequence that outgrows the original context starts over, here with what it
/// decoded first: another slot than the prompt's.
#[test]
fn a_prompt_that_outgrows_its_rotations_starts_over_with_what_was_decoded() {
    let d = described(LONGROPE.0);
    let mut e = engine_of(&d, Strategy::PrefillDecode, (16, true), Sharing::default());
    let tokens = some_tokens(60, 0);
    let seq = e.open();
    e.run(&[SequenceInput::decode(seq, &tokens[..8], WantedLogits::Last)], &mut |_, _, _| {})
        .unwrap();
    let mut rows = 0;
    let input = SequenceInput::prompt(seq, &tokens[8..], WantedLogits::All);
    e.run(&[input], &mut |_, _, _| rows += 1).unwrap();
    assert_eq!(rows, 52);
}

/// Prompts without room used to take the places of decoding sequences, give way to them, and take
/// them again, for ever.
#[test]
fn prompts_without_room_leave_the_places_to_those_that_decode() {
    run(13, (MODELS[0], Strategy::Alternate), (8, 60));
}

/// Prompts are cut into parts: one of another client, or a short one of the same, has its turn after
/// a few. However many short ones come, the long one goes on.
#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let d = described(MODELS[0]);
    for (client, others) in [(1, 40), (2, 40), (1, 1), (2, 1)] {
        let sharing = Sharing { sequences: 3, ..Sharing::default() };
        let mut e = engine(&d, Strategy::OneDevice, 8, sharing);
        let handle = e.handle().clone();
        let admit = |client, n: usize| {
            let tokens = (0..n as u32).map(|i| (i * 37 + 11 * client as u32) % VOCAB as u32);
            let (tokens, client) = (tokens.collect(), client);
            handle.admit(Admission { tokens, client, ..Admission::default() }).unwrap()
        };
        let long = admit(1, 88);
        e.step(&mut |_| Next::Wait).unwrap();
        let progress = handle.reads(long).unwrap();
        assert_eq!((progress.total, progress.cached, progress.done), (88, 0, 8));
        assert_eq!(handle.prompts(), [progress]);
        let (mut shorts, mut steps) = (0, 0);
        while handle.is_pending(long) {
            let short = (shorts < others).then(|| admit(client, 8));
            shorts += 1;
            for parts in 0.. {
                assert!(parts < 4, "a short prompt of client {client} waits");
                steps += 1;
                e.step(&mut |_| Next::Wait).unwrap();
                if short.is_none_or(|short| !handle.is_pending(short)) {
                    break;
                }
            }
        }
        assert!(steps <= 40, "the long prompt waits for {shorts} short ones");
    }
}

/// The tokens that two sequences with the same prompt decode one by one, or by checks of five rows
/// of which two are kept: what `known` says is guessed for the first of four tokens, the others are
/// guessed wrong.
fn decoded(e: &mut Engine, prompt: &[u32], known: Option<&[u32]>) -> [Vec<u32>; 2] {
    const DECODED: usize = 25;
    let handle = e.handle().clone();
    let admission = Admission { tokens: prompt.to_vec(), shares: true, ..Admission::default() };
    let seqs = [0, 1].map(|_| handle.admit(admission.clone()).unwrap());
    // A third one is cancelled amid a check.
    let third = handle.admit(admission).unwrap();
    let mut got = [Vec::new(), Vec::new()];
    // Up to where the tokens of each are right.
    let mut believed = [known.map_or(usize::MAX, |_| prompt.len()); 2];
    for round in 0.. {
        let mut waiting = Vec::new();
        let mut take = |event: Event<'_>| {
            let at = seqs.iter().position(|seq| *seq == event.seq());
            let (Some(at), Event::Logits { position, logits, last, .. }) = (at, event) else {
                return Next::Wait;
            };
            let got = &mut got[at];
            // Rows behind a wrong guess say nothing.
            if position < believed[at] && got.len() < DECODED {
                got.push(best(logits));
            }
            match known {
                _ if !last => Next::Wait,
                None if got.len() < DECODED => Next::Append(got[got.len() - 1]),
                None => Next::Wait,
                Some(_) => {
                    waiting.push(at);
                    Next::Keep {
                        accepted: if position < prompt.len() { 99 } else { 2 },
                        then: None,
                    }
                }
            }
        };
        if !e.step(&mut take).unwrap() {
            break;
        }
        for at in waiting {
            let (got, known) = (&got[at], known.unwrap());
            if got.len() + 2 > DECODED {
                continue;
            }
            let wrong = (known[got.len() + 1] + 1) % VOCAB as u32;
            let check = [got[got.len() - 1], known[got.len()], wrong, wrong, wrong];
            let kept = prompt.len() + got.len() - 1;
            assert_eq!(handle.len(seqs[at]), Some(kept), "only what was accepted stays");
            handle.feed(&SequenceInput::decode(seqs[at], &check, WantedLogits::All)).unwrap();
            believed[at] = kept + 2;
            if round == 3 && !handle.is_pending(third) {
                handle.feed(&SequenceInput::decode(third, &check, WantedLogits::All)).unwrap();
                handle.cancel(third).unwrap();
            }
        }
    }
    e.audit().unwrap();
    [seqs[0], seqs[1], third].iter().for_each(|seq| e.close(*seq));
    e.audit().unwrap();
    got
}

#[test]
fn tokens_of_checks_are_those_decoded_one_by_one() {
    for model in MODELS {
        for strategy in strategies() {
            for by_length in [false, true] {
                let d = described(model);
                let sharing = Sharing { sequences: 3, ..Sharing::default() };
                let mut e = engine_of(&d, strategy.clone(), (16, by_length), sharing);
                let prompt = some_tokens(41, 0);
                let [want, other] = decoded(&mut e, &prompt, None);
                assert_eq!(want, other);
                let by_checks = decoded(&mut e, &prompt, Some(&want));
                let what = format!("{model}, {strategy}, by length: {by_length}");
                assert_eq!(by_checks, [&want[..], &want], "{what}");
            }
        }
    }
}

/// A plan by length cuts chunks at absolute positions. A sequence that continues within a chunk
/// first has a short batch; the pages its windows free behind that must not be used in it.
#[test]
fn sequences_go_on_in_the_middle_of_a_chunk() {
    let d = described(MODELS[1]);
    let tokens = some_tokens(47, 0);
    let mut one = engine(&d, Strategy::OneDevice, 16, Sharing::default());
    let seq = one.open();
    let want = prompt(&mut one, seq, &tokens);
    for (first, cut) in [(32, 20), (32, 24), (20, 20), (24, 24), (31, 31), (16, 16)] {
        let mut e = engine_of(&d, Strategy::OneDevice, (16, true), Sharing::default());
        let seq = e.open();
        prompt(&mut e, seq, &tokens[..first]);
        e.truncate(seq, cut).unwrap();
        assert!(prompt(&mut e, seq, &tokens[cut..]) == want[cut..], "from {first} cut to {cut}");
    }
}

/// Five rows are checked, and two of them kept: what follows is as if there had been two.
#[test]
fn two_of_five_checked_rows_are_kept() {
    for model in MODELS {
        let d = described(model);
        let tokens = some_tokens(31, 0);
        for strategy in strategies() {
            // Within a page, over its end, from its end on.
            for len in [17, 21, 24] {
                let mut alone = engine(&d, strategy.clone(), 16, Sharing::default());
                let seq = alone.open();
                let want = prompt(&mut alone, seq, &tokens);
                let mut e = engine(&d, strategy.clone(), 16, Sharing::default());
                let seq = e.open();
                prompt(&mut e, seq, &tokens[..len]);
                let wrong: Vec<u32> = tokens[len + 2..][..3].iter().map(|t| t ^ 1).collect();
                let checked = [&tokens[len..][..2], &wrong].concat();
                let rows = prompt(&mut e, seq, &checked);
                assert!(rows[..2] == want[len..][..2], "{model}, {strategy}: the check");
                e.truncate(seq, len + 2).unwrap();
                let rows = prompt(&mut e, seq, &tokens[len + 2..]);
                assert!(rows == want[len + 2..], "{model}, {strategy}: behind {len}");
            }
        }
    }
}
