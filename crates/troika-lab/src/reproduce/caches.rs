//! Claims of the CPU-NPU MoE project about caches of experts, in modelled time: recorded and drawn
//! routing is replayed through the policies of the expert cache.

use std::collections::VecDeque;

use troika::plan::RoutingTrace;
use troika_device::{Eviction, Residents};

use super::experts::{built_in_routing, zipf_routing};
use super::lab::Lab;
use super::outcome::Outcome;
use crate::Result;

/// Milliseconds of modelled steps: an expert of Qwen3-30B-A3B in Q4_0 (2.7 MB) from a disk of 1.3
/// GB/s; attention of a token; an expert's weights from memory; and a row of it.
const READ: f64 = 2.0;
const ATTENTION: f64 = 0.4;
const EXPERT: f64 = 0.13;
const ROW: f64 = 0.1;
/// The share of the memory for experts that are read before they are chosen, and the tokens from which
/// on they are, as in the expert cache.
const EXPECTED_SHARE: usize = 8;
const PROMPT: usize = 32;
/// Tokens of a prompt, and of its chunks.
const PROMPT_TOKENS: usize = 128;
const CHUNK: usize = 32;

/// The experts that the rows of a layer chose at once.
pub struct Choice {
    pub layer: usize,
    /// Experts of all layers are numbered through; each with its rows.
    chosen: Vec<(u32, u32)>,
    /// What a predictor names then of later layers.
    pub named: Vec<u32>,
    pub tokens: usize,
    /// The first of them in the trace.
    pub at: usize,
}

/// How experts come and go.
#[derive(Clone, Copy, PartialEq)]
pub enum CachePolicy {
    /// By a rule, with those read before they are chosen that are popular, or not.
    Rule(Eviction, Prefetch),
    /// By what comes next (Belady): the best there is without reading before.
    Optimum,
}

/// What is read before it is chosen.
#[derive(Clone, Copy, PartialEq)]
pub enum Prefetch {
    None,
    /// In prompts, experts of the next layer that are popular.
    Threshold,
    /// While decoding, what a predictor names.
    Named,
}

#[derive(Clone, Copy, Default)]
pub struct Replayed {
    hits: usize,
    chosen: usize,
    stall_ms: f64,
    /// Of single tokens.
    pub decode_ms: f64,
}

impl Replayed {
    fn percent(&self) -> f64 {
        100.0 * self.hits as f64 / self.chosen.max(1) as f64
    }
}

pub fn cached(_: &mut Lab) -> Result<Outcome> {
    use CachePolicy::{Optimum, Rule};
    use Eviction::{Fifo, Frequency, Lru};
    let (mut words, mut pass) = (Vec::new(), true);
    for (name, trace) in [("recorded", built_in_routing()?), ("Zipf", zipf_routing())] {
        let layers: Vec<usize> = trace.layers.iter().map(|l| l.experts).collect();
        let choices = choices(&trace);
        for share in [25, 50, 75] {
            let room = layers.iter().sum::<usize>() * share / 100;
            let run = |policy| Replay::new(&layers, &choices, room, policy).run();
            let fifo = run(Rule(Fifo, Prefetch::None));
            let lru = run(Rule(Lru, Prefetch::None));
            let ours = run(Rule(Frequency, Prefetch::None));
            let optimum = run(Optimum);
            let lru_ahead = run(Rule(Lru, Prefetch::Threshold));
            let ours_ahead = run(Rule(Frequency, Prefetch::Threshold));
            pass &= lru.hits <= ours.hits && ours.hits <= optimum.hits && fifo.hits <= ours.hits;
            pass &= lru_ahead.stall_ms <= lru.stall_ms && ours_ahead.stall_ms <= lru.stall_ms;
            let way = (ours.percent() - lru.percent()) / (optimum.percent() - lru.percent());
            words.push(format!(
                "{name}, {share} % in memory: hits, %: FIFO {:.1}, LRU {:.1} (with threshold {:.1}), ours \
                 {:.1} ({:.1}), optimum {:.1}; {:.0} % of the way from LRU to optimum",
                fifo.percent(),
                lru.percent(),
                lru_ahead.percent(),
                ours.percent(),
                ours_ahead.percent(),
                optimum.percent(),
                100.0 * way,
            ));
            words.push(format!(
                "{name}, {share} %: stall, s: LRU {:.2} (with threshold {:.2}), ours {:.2} ({:.2})",
                lru.stall_ms / 1e3,
                lru_ahead.stall_ms / 1e3,
                ours.stall_ms / 1e3,
                ours_ahead.stall_ms / 1e3,
            ));
        }
    }
    let note = "Modelled time: an expert takes 2 ms to read. Recorded: the built-in model (64 experts) \
        on two texts; Zipf: 8 of 128 experts in 8 layers, drawn independently. Sequences of a prompt in \
        chunks of 32 and as many decoded tokens. Threshold: an even share of the tokens or more chose \
        an expert.";
    Ok(Outcome::words("hit rate between FIFO and optimum", words.join("\n"), pass).noted(note))
}

/// What sequences choose: their prompts in chunks, then token by token.
pub fn choices(trace: &RoutingTrace) -> Vec<Choice> {
    let mut all = Vec::new();
    for range in trace.ranges() {
        let mut at = range.start;
        while at < range.end {
            let is_prompt = at - range.start < PROMPT_TOKENS;
            let tokens = if is_prompt { CHUNK } else { 1 }.min(range.end - at);
            let mut first = 0;
            for (layer, of) in trace.layers.iter().enumerate() {
                let counts = of.counts(at..at + tokens).counts.into_iter().enumerate();
                let chosen = counts.filter(|(_, rows)| *rows > 0.0);
                let chosen = chosen.map(|(e, rows)| ((first + e) as u32, rows as u32)).collect();
                all.push(Choice { layer, chosen, named: Vec::new(), tokens, at });
                first += of.experts;
            }
            at += tokens;
        }
    }
    all
}

/// A cache in modelled time. Reads follow one another; experts that are there are computed meanwhile.
pub struct Replay<'a> {
    /// The first expert of each layer, and the end.
    firsts: Vec<u32>,
    choices: &'a [Choice],
    room: usize,
    policy: CachePolicy,
    residents: Residents,
    /// By expert: when its last read ends.
    there_at: Vec<f64>,
    held: usize,
    popularity: Vec<f64>,
    /// By layer: the tokens so far.
    tokens: Vec<f64>,
    /// By expert: the choices that contain it and are not over.
    uses: Vec<VecDeque<usize>>,
    now: f64,
    /// Milliseconds to read an expert.
    read_ms: f64,
    disk_free: f64,
    /// Experts that were read before they were chosen.
    expected: Vec<u32>,
}

impl<'a> Replay<'a> {
    pub fn new(
        layers: &[usize],
        choices: &'a [Choice],
        room: usize,
        policy: CachePolicy,
    ) -> Replay<'a> {
        let ends = layers.iter().scan(0, |end, experts| {
            *end += *experts as u32;
            Some(*end)
        });
        let firsts: Vec<u32> = std::iter::once(0).chain(ends).collect();
        let all: usize = layers.iter().sum();
        let mut uses = vec![VecDeque::new(); all];
        for (at, choice) in choices.iter().enumerate() {
            choice.chosen.iter().for_each(|(e, _)| uses[*e as usize].push_back(at));
        }
        let eviction = match policy {
            CachePolicy::Rule(eviction, _) => eviction,
            CachePolicy::Optimum => Eviction::Lru,
        };
        Replay {
            firsts,
            choices,
            room,
            policy,
            residents: Residents::new(eviction, all),
            there_at: vec![0.0; all],
            held: 0,
            popularity: vec![0.0; all],
            tokens: vec![0.0; layers.len()],
            uses,
            now: 0.0,
            read_ms: READ,
            disk_free: 0.0,
            expected: Vec::new(),
        }
    }

    /// From a disk that takes so long to read an expert.
    pub fn reading(self, read_ms: f64) -> Replay<'a> {
        Replay { read_ms, ..self }
    }

    pub fn run(mut self) -> Replayed {
        let mut result = Replayed::default();
        for choice in self.choices {
            self.choose(choice, &mut result);
        }
        result
    }

    fn choose(&mut self, choice: &Choice, result: &mut Replayed) {
        let began = self.now;
        self.now += ATTENTION * choice.tokens as f64;
        self.tokens[choice.layer] += choice.tokens as f64;
        for (e, rows) in &choice.chosen {
            let at = *e as usize;
            self.popularity[at] += f64::from(*rows);
            self.uses[at].pop_front();
            self.residents.used(*e, *rows as usize, self.tokens[choice.layer]);
        }
        self.expected.retain(|e| choice.chosen.iter().all(|(chosen, _)| chosen != e));
        let is_there = |replay: &Replay<'_>, e: &u32| {
            replay.residents.is_resident(*e) && replay.there_at[*e as usize] <= replay.now
        };
        result.chosen += choice.chosen.len();
        result.hits += choice.chosen.iter().filter(|(e, _)| is_there(self, e)).count();
        let mut left: Vec<(u32, u32)> = choice.chosen.clone();
        left.sort_by_key(|(e, _)| (!is_there(self, e), *e));
        self.read_missing(&left);
        self.read_ahead(choice);
        while let Some((e, rows)) = left.first().copied() {
            // What is computed may leave for what is left.
            if !self.residents.is_resident(e) {
                self.read_missing(&left);
            }
            let stall = (self.there_at[e as usize] - self.now).max(0.0);
            result.stall_ms += stall;
            self.now += stall + EXPERT + ROW * f64::from(rows);
            left.remove(0);
        }
        if choice.tokens == 1 {
            result.decode_ms += self.now - began;
        }
    }

    /// Begins to read chosen experts, as far as there is room.
    fn read_missing(&mut self, left: &[(u32, u32)]) {
        for (e, _) in left {
            if !self.residents.is_resident(*e) && !self.read(*e, left) {
                return;
            }
        }
    }

    /// Begins to read what may be chosen next.
    fn read_ahead(&mut self, choice: &Choice) {
        let CachePolicy::Rule(_, prefetch) = self.policy else { return };
        let experts = match prefetch {
            Prefetch::Threshold if choice.tokens >= PROMPT => self.popular(choice),
            Prefetch::Named => choice.named.clone(),
            _ => return,
        };
        for e in experts {
            let most = self.room / EXPECTED_SHARE;
            if self.expected.len() >= most {
                return;
            }
            if !self.residents.is_resident(e) && self.read(e, &choice.chosen) {
                self.expected.push(e);
            }
        }
    }

    /// Popular experts of the next layer.
    fn popular(&self, choice: &Choice) -> Vec<u32> {
        let next = (choice.layer + 1) % (self.firsts.len() - 1);
        let experts = self.firsts[next]..self.firsts[next + 1];
        let of = |e: &u32| self.popularity[*e as usize];
        let even = experts.clone().map(|e| of(&e)).sum::<f64>() / experts.len() as f64;
        let mut popular: Vec<u32> = experts.filter(|e| of(e) > 0.0 && of(e) >= even).collect();
        popular.sort_by(|a, b| of(b).total_cmp(&of(a)));
        popular
    }

    /// Begins to read an expert, in place of another that is not `kept`.
    fn read(&mut self, expert: u32, kept: &[(u32, u32)]) -> bool {
        if self.held == self.room {
            let may =
                |e: u32| kept.iter().all(|(kept, _)| *kept != e) && !self.expected.contains(&e);
            let leaves = match self.policy {
                CachePolicy::Rule(..) => self.residents.next_to_leave(may),
                CachePolicy::Optimum => self.used_last(may),
            };
            let Some(leaves) = leaves else { return false };
            self.residents.left(leaves);
            self.held -= 1;
        }
        self.residents.entered(expert);
        self.held += 1;
        self.disk_free = self.disk_free.max(self.now) + self.read_ms;
        self.there_at[expert as usize] = self.disk_free;
        true
    }

    /// The expert in memory that is not used for the longest time from now.
    fn used_last(&self, may: impl Fn(u32) -> bool) -> Option<u32> {
        let held =
            (0..self.uses.len() as u32).filter(|e| self.residents.is_resident(*e) && may(*e));
        held.max_by_key(|e| self.uses[*e as usize].front().copied().unwrap_or(usize::MAX))
    }
}
