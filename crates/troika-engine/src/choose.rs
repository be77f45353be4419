//! Which rows run next: the sequences that decode, each with its token, then prompts, in the order
//! of their priority and admission, as far as a step's budget of rows and the cache allow.

use troika_plan::Phase;

use crate::batching::NewRows;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::input::Event;
use crate::kv::{KvError, SeqId};
use crate::sequence::{Sequence, Stage};
use crate::step::numerics;

/// Chunks of a prompt that are handed to the scheduler at once, where several are in flight.
const CHUNKS_AT_ONCE: usize = 64;
/// Logits kept at once while many rows are wanted.
const LOGITS_BYTES: usize = 64 << 20;
/// NewRows of prompts that a step takes in any case, however many sequences decode.
const LEAST_ROWS: usize = 16;

/// What may still be planned for a place.
struct Budget {
    /// Batches at most.
    batches: usize,
    /// NewRows at most of a batch.
    chunk: usize,
    /// NewRows of prompts.
    prompt_rows: usize,
    /// Whether sequences that wait may begin: not behind one for which there is no place.
    begins: bool,
}

/// Which sequences a pass plans.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Those that failed together with others.
    Alone,
    /// Those that wait for their next token.
    Decoding,
    Others,
}

impl Engine {
    /// Plans the batches of a place: of one phase, or of both where both run in the same place.
    pub(crate) fn plan_batches(&mut self, place: usize, only: Option<Phase>) {
        self.slots[place].clear();
        let mut budget = self.budget(place, only);
        if self.rows_matter {
            return self.plan_in_turns(place, only, &mut budget);
        }
        for pass in [Pass::Alone, Pass::Decoding, Pass::Others] {
            if pass == Pass::Decoding && only == Some(Phase::Prefill) {
                continue;
            }
            if !self.plan_pass(place, only, pass, &mut budget) {
                return;
            }
        }
    }

    /// What a step may compute. While others decode, prompts have a part of it.
    fn budget(&self, place: usize, only: Option<Phase>) -> Budget {
        let plan = &self.model.plan;
        let chunk = plan.prefill.chunk;
        let decoding = self.queue.iter().filter(|seq| self.decodes(**seq)).count();
        let steady = |seq: &SeqId| {
            self.sequences.get(seq).is_some_and(|s| self.kv.len(*seq) < s.steady_until)
        };
        let several = self.slots[place].overlaps
            && plan.prefill.chunks_in_flight > 1
            && !self.queue.iter().any(steady);
        // Where nothing is decoded by the devices of prompts, nobody waits for these.
        let alone = decoding == 0 || (only.is_some() && self.phases_are_apart);
        // A chunk lets go of pages behind its windows that earlier chunks in flight still read. In
        // one graph that is seen; what runs beside it must not get them.
        let keeps =
            self.one_placement || self.model.lowered.page_groups.iter().all(Option::is_none);
        let batches = match several && alone && keeps {
            false => 1,
            // Others wait for the end of what is begun, and so does what is to be learnt of it.
            true if self.queue.len() > 1 || self.goes_by_load() => {
                2 * plan.prefill.chunks_in_flight
            }
            true => CHUNKS_AT_ONCE,
        };
        let rows = if alone { chunk } else { self.sharing.rows_per_step.min(chunk) };
        let decoded = if only.is_none() { decoding } else { 0 };
        let prompt_rows = match batches {
            1 => rows.saturating_sub(decoded).max(LEAST_ROWS.min(chunk)),
            _ => usize::MAX,
        };
        Budget { batches, chunk, prompt_rows, begins: true }
    }

    /// Whether a sequence waits for its next token.
    fn decodes(&self, seq: SeqId) -> bool {
        let Some(s) = self.sequences.get(&seq) else { return false };
        let cached = s.in_flight.as_ref().map_or_else(|| self.kv.len(seq), |rows| rows.start);
        let last = cached > 0 && cached + 1 == s.tokens.len();
        // The rest of a prompt is prefill, however short it is.
        last && (self.one_placement || s.phase(cached, false).0 == Phase::Decode)
    }

    /// Adds the rows of some sequences. `false` when nothing more may be added.
    fn plan_pass(
        &mut self,
        place: usize,
        only: Option<Phase>,
        pass: Pass,
        budget: &mut Budget,
    ) -> bool {
        let mut left = if pass == Pass::Decoding { usize::MAX } else { budget.prompt_rows };
        for at in 0..self.queue.len() {
            let Some(&seq) = self.queue.get(at) else { break };
            let Some(s) = self.sequences.get(&seq) else { continue };
            if s.in_flight.is_some() || s.cancelled || s.closed {
                continue;
            }
            let of_pass = match pass {
                Pass::Alone => s.alone,
                Pass::Decoding => !s.alone && self.decodes(seq),
                Pass::Others => !s.alone && !self.decodes(seq),
            };
            let alone = s.alone;
            let others = !self.slots[place].seqs.is_empty();
            if !of_pass || (others && alone) {
                continue;
            }
            if !self.plan_sequence(place, seq, only, (&mut left, budget)) {
                return false;
            }
            if left == 0 || (alone && self.is_planned(place, seq)) {
                return false;
            }
        }
        true
    }

    fn is_planned(&self, place: usize, seq: SeqId) -> bool {
        self.slots[place].seqs.iter().any(|(planned, _)| *planned == seq)
    }

    /// Plans batches of one sequence, where rows of several are not mixed: of those that decode and
    /// the prompts, whoever has waited longest since its last turn. Prompts have turns together, in
    /// which the first of them is computed.
    fn plan_in_turns(&mut self, place: usize, only: Option<Phase>, budget: &mut Budget) {
        let decoding = |seq: &&SeqId| only != Some(Phase::Prefill) && self.decodes(**seq);
        let turn = |seq: &SeqId| self.sequences.get(seq).map_or(0, |s| s.turn);
        let decoding = self.queue.iter().filter(decoding);
        let mut waiting: Vec<(u64, Option<SeqId>)> =
            decoding.map(|seq| (turn(seq), Some(*seq))).collect();
        waiting.push((self.prompts_turn, None));
        waiting.sort_by_key(|(turn, _)| *turn);
        self.last_turn += 1;
        for (_, seq) in waiting {
            let seqs = match seq {
                Some(seq) => vec![seq],
                None => self.queue.iter().filter(|s| !self.decodes(**s)).copied().collect(),
            };
            for seq in seqs {
                let Some(s) = self.sequences.get(&seq) else { continue };
                if s.in_flight.is_some() || s.cancelled || s.closed {
                    continue;
                }
                let prompt = !self.decodes(seq);
                // Chunks are cut by positions alone, however many decode.
                let mut left = usize::MAX;
                // Who has no room gives way to the others, and the next has the turn.
                let _ = self.plan_sequence(place, seq, only, (&mut left, budget));
                if self.is_planned(place, seq) {
                    if let Some(s) = self.sequences.get_mut(&seq) {
                        s.turn = self.last_turn;
                    }
                    if prompt {
                        self.prompts_turn = self.last_turn;
                    }
                    return;
                }
            }
        }
    }

    /// Adds rows of a sequence, at most `left`, if it has begun or may begin. `false` when there
    /// are no pages for it: then nothing more is planned.
    fn plan_sequence(
        &mut self,
        place: usize,
        seq: SeqId,
        only: Option<Phase>,
        (left, budget): (&mut usize, &mut Budget),
    ) -> bool {
        // In turns it begins where it is computed: elsewhere it would have the place of one that can
        // go on.
        let elsewhere = self.rows_matter
            && self.sequences.get(&seq).is_some_and(|s| {
                let next = s.phase(self.kv.len(seq), self.one_placement).0;
                s.in_flight.is_none() && only.is_some_and(|only| only != next)
            });
        if elsewhere {
            return true;
        }
        let runs = self.sequences.get(&seq).is_some_and(|s| s.stage == Stage::Running);
        if !(runs || budget.begins) || !self.begin(seq) {
            // Those that wait behind it do not overtake it, but those that run go on: it waits for
            // them.
            budget.begins = false;
            return true;
        }
        while *left > 0 {
            match self.plan_rows(place, seq, only, (*left, budget)) {
                Ok(0) => break,
                Ok(rows) => *left = left.saturating_sub(rows),
                Err(EngineError::Kv(KvError::Full(_))) => {
                    if !self.make_room(seq) {
                        self.give_way(seq, place);
                        return false;
                    }
                }
                Err(error) => {
                    self.fail(seq, error);
                    break;
                }
            }
        }
        true
    }

    /// Lets a sequence that waits begin, if there is a place for it.
    fn begin(&mut self, seq: SeqId) -> bool {
        let Some(s) = self.sequences.get_mut(&seq) else { return false };
        let regime = self.longrope.regime(s.tokens.len());
        if s.regime != regime && self.kv.len(seq) > 0 {
            self.kv.release(seq);
            self.handover.truncate(seq, 0);
        }
        s.regime = regime;
        if s.stage == Stage::Running {
            return true;
        }
        let (tokens, shares) = (s.tokens.len(), s.shares && self.shares_pages);
        let running = self.sequences.values().filter(|s| s.stage == Stage::Running).count();
        if running >= self.sharing.sequences {
            return false;
        }
        // It begins when there is room for all of it; if nobody else runs, there never is more.
        if running > 0 && self.kv.len(seq) == 0 && !self.kv.has_room(tokens + 1) {
            self.free_idle(seq, tokens + 1);
            if !self.kv.has_room(tokens + 1) {
                return false;
            }
        }
        let Some(s) = self.sequences.get(&seq) else { return false };
        if shares {
            // What comes before the first logits that are wanted need not be computed.
            let most = tokens.min(s.logits_from.saturating_add(1));
            // What others leave was computed as prompts are, and not as what this one has decoded.
            let most = s.decoded.first().map_or(most, |run| most.min(run.start + 1));
            self.kv.adopt(seq, &s.tokens[..most], numerics(s, 0..0));
        }
        let Some(s) = self.sequences.get_mut(&seq) else { return false };
        s.stage = Stage::Running;
        if !std::mem::replace(&mut s.begun, true) {
            self.events.push_back(Event::Begun { seq, cached: self.kv.len(seq) });
        }
        true
    }

    /// Adds rows of a sequence to the batches of a place. Returns how many; 0 when none are left,
    /// or there is no room for them.
    fn plan_rows(
        &mut self,
        place: usize,
        seq: SeqId,
        only: Option<Phase>,
        (left, budget): (usize, &Budget),
    ) -> Result<usize, EngineError> {
        let Some(s) = self.sequences.get_mut(&seq) else { return Ok(0) };
        let from = self.kv.len(seq);
        if from >= s.tokens.len() {
            return Ok(0);
        }
        let (phase, to) = s.phase(from, self.one_placement);
        if only.is_some_and(|only| only != phase) {
            return Ok(0);
        }
        let slot = &mut self.slots[place];
        let used = slot.last_batch().map_or(budget.chunk, |b| b.rows());
        let wanted: usize = slot.batches().iter().map(|b| b.wanted_rows()).sum();
        // Where rows matter, a batch ends where its chunk does.
        if used >= budget.chunk || self.rows_matter {
            let most = (LOGITS_BYTES / (self.model.vocab * 4)).max(1);
            let many = wanted > 0 && wanted + budget.chunk.min(s.tokens.len() - from) > most;
            if slot.batches().len() >= budget.batches || (many && s.logits_from < to) {
                return Ok(0);
            }
            slot.add_batch();
        }
        let Some(batch) = slot.last_batch() else { return Ok(0) };
        let mut count = (to - from).min(budget.chunk - batch.rows()).min(left);
        if self.rows_matter {
            // Which device computes a row follows from its position alone.
            count = count.min(budget.chunk - from % budget.chunk);
        }
        let positions = from..from + count;
        let rows = NewRows {
            seq,
            tokens: &s.tokens[positions.clone()],
            positions: positions.clone(),
            known_len: s.tokens.len(),
            logits_from: s.logits_from,
            phase,
        };
        batch.push(&rows, &mut self.kv)?;
        slot.note(seq, positions.clone());
        let start = s.in_flight.as_ref().map_or(from, |rows| rows.start);
        s.in_flight = Some(start..positions.end);
        Ok(count)
    }

    /// Frees pages for a sequence: those of sequences that wait for tokens, then those of the
    /// youngest that runs, is not in flight and comes behind it; it is computed again later.
    fn make_room(&mut self, seq: SeqId) -> bool {
        if let Some(idle) = self.idle_with_pages(seq) {
            self.preempt(idle);
            return true;
        }
        let Some(rank) = self.sequences.get(&seq).map(Sequence::rank) else { return false };
        let behind = |(other, s): &(&SeqId, &Sequence)| {
            s.rank() > rank && s.in_flight.is_none() && self.kv.len(**other) > 0
        };
        let youngest = self.sequences.iter().filter(behind).max_by_key(|(_, s)| s.rank());
        let Some(youngest) = youngest.map(|(other, _)| *other) else { return false };
        self.preempt(youngest);
        true
    }

    /// A sequence for which there are no pages lets others go on, if there are any.
    fn give_way(&mut self, seq: SeqId, place: usize) {
        let planned = self.slots[place].seqs.iter().any(|(s, _)| *s == seq);
        let others = self.sequences.iter().any(|(other, s)| {
            let waits_with_pages = s.stage == Stage::Waiting && self.kv.len(*other) > 0;
            *other != seq && (s.stage == Stage::Running || waits_with_pages)
        });
        if !planned && others {
            self.preempt(seq);
        }
    }

    /// Frees pages of sequences that wait for tokens until so many tokens have room.
    fn free_idle(&mut self, seq: SeqId, tokens: usize) {
        while !self.kv.has_room(tokens) {
            let Some(idle) = self.idle_with_pages(seq) else { break };
            self.preempt(idle);
        }
    }

    /// The sequence with pages that has waited for tokens since before all others did.
    fn idle_with_pages(&self, but: SeqId) -> Option<SeqId> {
        let idle = |(other, s): &(&SeqId, &Sequence)| {
            **other != but
                && s.stage == Stage::Idle
                && s.in_flight.is_none()
                && self.kv.len(**other) > 0
        };
        let all = self.sequences.iter().filter(idle);
        all.min_by_key(|(_, s)| s.order).map(|(other, _)| *other)
    }

    /// Takes a sequence's pages; when it goes on it is computed again.
    fn preempt(&mut self, seq: SeqId) {
        self.publish(seq);
        self.kv.release(seq);
        self.handover.truncate(seq, 0);
        if let Some(s) = self.sequences.get_mut(&seq)
            && s.stage == Stage::Running
        {
            s.stage = Stage::Waiting;
        }
        self.preemptions += 1;
    }
}
