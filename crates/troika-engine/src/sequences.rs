//! The sequences of an engine, with what is cached of them, and their changes of state.

use std::collections::{HashMap, VecDeque};
use std::mem::swap;
use std::ops::Range;

use troika_graph::StateKind;
use troika_model::spec::ModelSpec;
use troika_plan::{Phase, Plan};
use troika_program::{Handover, Program};

use crate::error::EngineError;
use crate::input::{Admission, Event, SequenceInput, WantedLogits};
use crate::sequence::{LongRope, Sequence, Stage};
use troika_program::kv::{KvCache, SeqId};

/// Tokens for which a sequence has memory from the start.
const TOKENS_AHEAD: usize = 4096;

/// How sequences share an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The most sequences computed at once; others wait.
    pub sequences: usize,
    /// Budget of the KV cache in bytes; `None`: enough for `sequences` sequences of full context
    /// (a model that is opened by `troika` takes no more of it than fits into memory).
    pub kv_bytes: Option<u64>,
    /// The most rows of a step while sequences decode: their rows plus the rows of prompts. More
    /// rows shorten the prompt's time, fewer rows delay decoding less.
    pub rows_per_step: usize,
}

impl Default for Sharing {
    /// One sequence.
    fn default() -> Sharing {
        Sharing { sequences: 1, kv_bytes: None, rows_per_step: 128 }
    }
}

/// What the placed model says about how sequences may share batches and pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether prefill and decode run the same code on the same devices.
    pub one_placement: bool,
    /// Whether no device computes for both phases.
    pub phases_are_apart: bool,
    /// Whether a token's numbers depend on its row in the batch, as where devices with different
    /// numerics share rows. A batch is then of one sequence.
    pub rows_matter: bool,
    /// Whether sequences may share cached pages: each state lies in one place, and numbers do not
    /// depend on how a prompt is cut.
    pub shares_pages: bool,
    /// Whether prompts are cut into parts when others wait: no device pads few rows to many.
    pub cuts: bool,
    /// Whether a sequence's early positions leave the cache.
    pub forgets: bool,
    /// Whether what is shared is published after each chunk of a prompt: the next one drops states
    /// of one row.
    pub shares_chunks: bool,
    pub chunk: usize,
    pub chunks_in_flight: usize,
    pub context: usize,
    pub page_len: usize,
    /// Numbers of a row of the output.
    pub output_cols: usize,
    /// Rows of the output that have room for a state.
    pub rows_of_state: usize,
    pub sharing: Sharing,
}

impl Rules {
    pub fn new(program: &Program, plan: &Plan, sharing: Sharing) -> Rules {
        let rows_matter = program.rows_matter();
        Rules {
            one_placement: program.one_placement(),
            phases_are_apart: program.phases_are_apart(),
            rows_matter,
            shares_pages: program.state_instances.iter().all(|i| i.len() == 1) && !rows_matter,
            cuts: program.padding == 0 && !rows_matter,
            forgets: program.lowered.page_groups.iter().any(|kind| kind.forgets()),
            shares_chunks: program.lowered.page_groups.contains(&StateKind::Fixed),
            chunk: plan.prefill.chunk,
            chunks_in_flight: plan.prefill.chunks_in_flight,
            context: plan.context,
            page_len: plan.page_len,
            output_cols: program.output_cols(),
            rows_of_state: program.rows_of_state(),
            sharing: Sharing { sequences: sharing.sequences.max(1), ..sharing },
        }
    }
}

pub(crate) struct Sequences {
    pub rules: Rules,
    pub all: HashMap<SeqId, Sequence>,
    pub kv: KvCache,
    pub handover: Handover,
    /// Sequences with tokens to compute, by rank.
    pub queue: Vec<SeqId>,
    /// Events not handed out yet.
    pub events: VecDeque<Event<'static>>,
    pub longrope: LongRope,
    /// How often a sequence lost its pages to another one.
    pub preemptions: u64,
    /// Where sequences take turns: the number of the last turn, and of the prompts' last turn.
    pub last_turn: u64,
    pub prompts_turn: u64,
    /// Tokens of prompts that were computed so far.
    pub read: u64,
    /// Rows of a prompt's part while others wait, once that is known.
    pub part: Option<usize>,
    /// Number of sequences admitted so far.
    orders: u64,
}

impl Sequences {
    pub fn new(rules: Rules, kv: KvCache, spec: &ModelSpec) -> Sequences {
        Sequences {
            rules,
            all: HashMap::new(),
            kv,
            handover: Handover::default(),
            queue: Vec::new(),
            events: VecDeque::new(),
            longrope: LongRope::new(spec),
            preemptions: 0,
            last_turn: 0,
            prompts_turn: 0,
            read: 0,
            part: None,
            orders: 0,
        }
    }

    pub fn admit(&mut self, seq: SeqId, admission: &Admission) {
        self.orders += 1;
        let mut new = Sequence::new(admission, self.orders);
        let room = self.rules.context.min(admission.tokens.len() + TOKENS_AHEAD);
        new.tokens.reserve(room);
        self.kv.open(seq);
        self.all.insert(seq, new);
        if !admission.tokens.is_empty() {
            self.feed(&SequenceInput::prompt(seq, &admission.tokens, admission.logits));
        }
    }

    pub fn feed(&mut self, input: &SequenceInput<'_>) {
        if let Some(s) = self.all.get_mut(&input.seq) {
            s.feed(input.tokens, input.logits, input.phase, !self.rules.one_placement);
            self.enqueue(input.seq);
        }
    }

    /// Inserts a sequence into the queue by its rank.
    fn enqueue(&mut self, seq: SeqId) {
        let Some(rank) = self.all.get(&seq).map(Sequence::rank) else { return };
        let before = |other: &SeqId| self.all.get(other).is_some_and(|o| o.rank() < rank);
        let at = self.queue.partition_point(before);
        self.queue.insert(at, seq);
    }

    pub fn replace(&mut self, seq: SeqId, tokens: &[u32], logits: WantedLogits) {
        let Some(s) = self.all.get(&seq) else { return };
        let same = s.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let same = same.min(tokens.len() - 1);
        if s.shares
            && self.rules.shares_pages
            && s.decoded.first().is_none_or(|run| run.start >= same)
        {
            let most = tokens.len().min(logits.from(same, tokens.len()).saturating_add(1));
            let numerics = self.longrope.regime(tokens.len()) as u64 * 2;
            if self.kv.prefix_len(&tokens[..most], numerics) > same {
                // It is to begin with kept pages. Its own pages are published too, since cutting it
                // back would drop the page that differs.
                self.publish(seq);
                self.cut_cache(seq, 0);
            }
        }
        self.truncate(seq, same);
        let from = self.all.get(&seq).map_or(0, |s| s.tokens.len());
        self.feed(&SequenceInput::prompt(seq, &tokens[from..], logits));
        if let Some(s) = self.all.get_mut(&seq) {
            s.begun = false;
        }
    }

    /// Shortens an idle sequence.
    pub fn truncate(&mut self, seq: SeqId, len: usize) {
        if let Some(s) = self.all.get_mut(&seq) {
            s.truncate(len);
            self.cut_cache(seq, len);
        }
    }

    /// Keeps only the first so many of the tokens that a sequence was fed last. Returns how many it
    /// has then.
    pub fn keep(&mut self, seq: SeqId, accepted: usize) -> usize {
        let Some(s) = self.all.get(&seq) else { return 0 };
        let (has, keeps) = (s.tokens.len(), s.fed_from.saturating_add(accepted));
        if keeps < has {
            self.truncate(seq, keeps);
        }
        keeps.min(has)
    }

    /// Shortens a sequence in the cache to at most `len` positions.
    pub fn cut_cache(&mut self, seq: SeqId, len: usize) {
        let kept = self.kv.truncate(seq, len);
        self.handover.truncate(seq.number(), kept);
    }

    /// Cancels or closes a sequence that asked for it, if nothing of it is in flight.
    pub fn settle(&mut self, seq: SeqId) {
        let Some(s) = self.all.get_mut(&seq) else { return };
        if s.in_flight.is_some() || !(s.cancelled || s.closed) {
            return;
        }
        self.queue.retain(|other| *other != seq);
        // What was handed out stays, as does what it had before it was last fed, even if others
        // have its pages.
        let done = match s.stage {
            Stage::Choosing => s.tokens.len(),
            _ => self.kv.len(seq).max(s.fed_from).min(s.tokens.len()),
        };
        if s.cancelled && !s.closed {
            s.cancelled = false;
            s.truncate(done);
            self.publish(seq);
            self.events.push_back(Event::Cancelled { seq });
            return;
        }
        self.publish(seq);
        self.kv.close(seq);
        self.handover.truncate(seq.number(), 0);
        self.all.remove(&seq);
    }

    /// How many tokens of a sequence are computed: of what is in flight, none is.
    pub fn computed(&self, seq: SeqId) -> usize {
        let in_flight = self.all.get(&seq).and_then(|s| s.in_flight.as_ref());
        in_flight.map_or_else(|| self.kv.len(seq), |rows| rows.start)
    }

    /// Publishes the pages of a sequence for others with the same beginning.
    pub fn publish(&mut self, seq: SeqId) {
        let Some(s) = self.all.get(&seq) else { return };
        if !s.shares || !self.rules.shares_pages {
            return;
        }
        let done = self.computed(seq).min(s.tokens.len());
        let page_len = self.rules.page_len;
        let numerics = |page: usize| numerics(s, page * page_len..(page + 1) * page_len);
        self.kv.publish(seq, &s.tokens[..done], done, &numerics);
    }

    /// A sequence cannot continue: it becomes what it was before it was last fed.
    pub fn fail(&mut self, seq: SeqId, error: EngineError) {
        self.queue.retain(|other| *other != seq);
        let Some(s) = self.all.get_mut(&seq) else { return };
        let len = s.fed_from;
        s.cancelled = false;
        s.in_flight = None;
        s.truncate(len);
        self.cut_cache(seq, len);
        self.events.push_back(Event::Failed { seq, error });
    }

    /// The sequence that is to be computed first.
    pub fn first(&self) -> Option<SeqId> {
        self.queue.first().copied()
    }

    /// All tokens of a sequence are computed. It counts as waiting only once the receiver of the
    /// event has said what it does next.
    pub fn through(&mut self, seq: SeqId) {
        let Some(s) = self.all.get_mut(&seq) else { return };
        let prompt = s.phase == Phase::Prefill;
        s.stage = Stage::Idle;
        s.logits_from = usize::MAX;
        self.queue.retain(|other| *other != seq);
        if prompt {
            self.publish(seq);
        }
    }

    /// Goes on with the caches of other devices, which have nothing of any sequence yet.
    pub fn take_over(&mut self, other: &mut Sequences) {
        self.rules = other.rules;
        swap(&mut self.kv, &mut other.kv);
        self.handover = Handover::default();
        for (seq, s) in &mut self.all {
            self.kv.open(*seq);
            if s.stage == Stage::Running {
                s.stage = Stage::Waiting;
            }
        }
    }

    /// Takes a sequence's pages. They are computed again when it continues.
    pub fn preempt(&mut self, seq: SeqId) {
        self.publish(seq);
        self.kv.release(seq);
        self.handover.truncate(seq.number(), 0);
        if let Some(s) = self.all.get_mut(&seq)
            && s.stage == Stage::Running
        {
            s.stage = Stage::Waiting;
        }
        self.preemptions += 1;
    }
}

/// Identifies what a sequence's cached positions depend on besides its tokens.
pub(crate) fn numerics(s: &Sequence, positions: Range<usize>) -> u64 {
    let decoded = s.decoded.iter().any(|d| d.start < positions.end && positions.start < d.end);
    s.regime as u64 * 2 + u64::from(decoded)
}
