//! Which rows run next: first the sequences that decode, each with one token, then prompts by
//! priority and in turn, within the step's budget of rows and the cache's room.

use std::time::Duration;

use troika_plan::Phase;

use crate::batching::NewRows;
use crate::error::EngineError;
use crate::input::Event;
use crate::sequence::{Rank, Sequence, Stage};
use crate::sequences::{Rules, Sequences, numerics};
use crate::slot::BatchSlot;
use troika_program::kv::{KvError, SeqId};

/// The most bytes of logits kept at once when many rows want them.
const LOGITS_BYTES: usize = 64 << 20;
/// Prompts get at least this many rows in a step, however many sequences decode.
const LEAST_ROWS: usize = 16;
/// How long the part of a prompt takes while others wait for their turn.
const PART: Duration = Duration::from_millis(200);
/// A part has a multiple of so many rows: fewer are not worth a pass over the weights.
const PART_ROWS: usize = 32;
/// The golden ratio's fraction: its multiples are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What may still be planned in this step.
struct Budget {
    batches: usize,
    /// The phase of the slot, if it is for one.
    only: Option<Phase>,
    prompt_rows: usize,
    /// The rest of the rows that may be added in this turn.
    left: usize,
    /// The most rows of prompts while several wait.
    part: usize,
    /// The highest rank of a waiting sequence that has no room: those behind it may not begin.
    blocked: Option<Rank>,
}

impl Sequences {
    /// Plans the batches of a slot: of one phase, or of both where both run in the same slot.
    pub fn plan_batches(&mut self, slot: &mut BatchSlot, only: Option<Phase>) {
        slot.clear();
        let mut budget = self.budget(slot, only);
        if self.rules.rows_matter {
            return self.plan_in_turns(slot, &mut budget);
        }
        for alone in [true, false] {
            let left_out = !alone && only == Some(Phase::Prefill);
            if !left_out && !self.plan_pass(slot, alone, &mut budget) {
                return;
            }
        }
        self.plan_prompts(slot, &mut budget);
    }

    /// Makes parts as long as what rows of a prompt took. Few say little of how long many take.
    pub fn measure(&mut self, rows: usize, took: Duration) {
        if self.rules.cuts && rows >= PART_ROWS.min(self.rules.chunk) {
            let part = rows as f64 * PART.as_secs_f64() / took.as_secs_f64().max(1e-9);
            self.part = Some((part as usize / PART_ROWS * PART_ROWS).max(PART_ROWS));
        }
    }

    /// Whether what a slot computes stops when another prompt comes: a prompt that is alone and
    /// takes long. It loses the batch that is under way, but no earlier one: not where positions of
    /// several are forgotten.
    pub fn yields(&self, slot: &BatchSlot) -> bool {
        let [(seq, positions)] = slot.seqs.as_slice() else { return false };
        let short = self.part.is_some_and(|part| slot.prompt_rows() <= part.saturating_mul(2));
        let steady = self.all.get(seq).is_none_or(|s| s.steady_until > positions.start);
        self.rules.cuts
            && self.rules.sharing.sequences > 1
            && self.queue.len() == 1
            && slot.prompt_rows() > 0
            && !(short || steady || self.rules.forgets && slot.batches().len() > 1)
    }

    /// What a step may compute. While sequences decode, prompts get only a part of it.
    fn budget(&self, slot: &mut BatchSlot, only: Option<Phase>) -> Budget {
        let Rules { chunk, chunks_in_flight, .. } = self.rules;
        let decoding = self.queue.iter().map(|seq| self.decoding_rows(*seq)).sum();
        let steady =
            |seq: &SeqId| self.all.get(seq).is_some_and(|s| self.kv.len(*seq) < s.steady_until);
        // If the devices of prompts do not decode, no decoding sequence waits for them.
        let alone = decoding == 0 || (only.is_some() && self.rules.phases_are_apart);
        let batches = match alone && !self.queue.iter().any(steady) {
            false => 1,
            // Others wait for the end of this graph.
            true if self.queue.len() > 1 => slot.chunks.min(2 * chunks_in_flight),
            true => slot.chunks,
        };
        let rows = if alone { chunk } else { self.rules.sharing.rows_per_step.min(chunk) };
        let decoded = if only.is_none() { decoding } else { 0 };
        let prompt_rows = match batches {
            1 => rows.saturating_sub(decoded).max(LEAST_ROWS.min(chunk)),
            _ => usize::MAX,
        };
        // Beside answers, parts are short already, and shorter ones would delay the last prompt.
        let part = self.part.filter(|_| alone).unwrap_or(usize::MAX);
        Budget { batches, only, prompt_rows, left: 0, part, blocked: None }
    }

    /// Whether only rows that a sequence decodes are left to compute.
    fn decodes(&self, seq: SeqId) -> bool {
        self.decoding_rows(seq) > 0
    }

    /// How many rows a sequence decodes next; 0 while others come before them.
    fn decoding_rows(&self, seq: SeqId) -> usize {
        let Some(s) = self.all.get(&seq).filter(|s| s.phase == Phase::Decode) else { return 0 };
        let cached = self.computed(seq);
        if cached < s.fed_from { 0 } else { s.tokens.len().saturating_sub(cached) }
    }

    /// Adds rows of the sequences that failed together with others and are tried `alone`, or of those
    /// that wait for their next token. `false` when nothing more may be added.
    fn plan_pass(&mut self, slot: &mut BatchSlot, alone: bool, budget: &mut Budget) -> bool {
        budget.left = if alone { budget.prompt_rows } else { usize::MAX };
        for at in 0..self.queue.len() {
            let Some(&seq) = self.queue.get(at) else { break };
            let free = self.is_free(seq, alone) && (alone || self.decodes(seq));
            if !free || (alone && !slot.seqs.is_empty()) {
                continue;
            }
            let goes_on = self.plan_sequence(slot, seq, budget);
            if !goes_on || budget.left == 0 || (alone && self.is_planned(slot, seq)) {
                return false;
            }
        }
        true
    }

    /// Whether rows of a sequence may be planned, among those that are tried alone or the others.
    fn is_free(&self, seq: SeqId, alone: bool) -> bool {
        let free = |s: &Sequence| s.in_flight.is_none() && !(s.cancelled || s.closed);
        self.all.get(&seq).is_some_and(|s| free(s) && s.alone == alone)
    }

    /// Adds rows of prompts, and of sequences that are computed again.
    fn plan_prompts(&mut self, slot: &mut BatchSlot, budget: &mut Budget) {
        let ready = self.prompts_in_turn(budget);
        let part = if ready.len() > 1 { budget.part } else { usize::MAX };
        budget.batches = budget.batches.min((part / self.rules.chunk).max(1));
        budget.left = budget.prompt_rows.min(part);
        self.last_turn += 1;
        for seq in ready {
            let goes_on = self.plan_sequence(slot, seq, budget);
            self.note_turn(slot, seq);
            if !goes_on || budget.left == 0 {
                return;
            }
        }
    }

    /// Notes that a prompt had its turn, if it had.
    fn note_turn(&mut self, slot: &BatchSlot, seq: SeqId) {
        if self.is_planned(slot, seq)
            && let Some(s) = self.all.get_mut(&seq)
        {
            s.served = self.last_turn;
        }
    }

    /// Begins the prompts that have room, in order of admission. Returns those that have begun in the
    /// order in which they get rows: by priority, then the client that was served longest ago, then
    /// its oldest prompt or the one with the least left.
    fn prompts_in_turn(&mut self, budget: &mut Budget) -> Vec<SeqId> {
        let mut ready = Vec::new();
        for at in 0..self.queue.len() {
            let Some(&seq) = self.queue.get(at) else { break };
            let is_prompt = self.is_free(seq, false) && !self.decodes(seq);
            if is_prompt && self.may_run(seq, budget) {
                ready.push(seq);
            }
        }
        if ready.len() > 1 {
            // Half of the turns, also of those that go to one of several clients in turn.
            let oldest = self.last_turn.wrapping_mul(GOLDEN) >> 63 == 0;
            let key = |seq: &SeqId| {
                let s = self.all.get(seq)?;
                let of_client = self.all.values().filter(|o| o.client == s.client);
                let left = if oldest { 0 } else { s.tokens.len() - self.kv.len(*seq) };
                let (priority, order) = s.rank();
                Some((priority, of_client.map(|o| o.served).max(), left, order))
            };
            ready.sort_by_cached_key(key);
        }
        ready
    }

    fn is_planned(&self, slot: &BatchSlot, seq: SeqId) -> bool {
        slot.seqs.iter().any(|(planned, _)| *planned == seq)
    }

    /// Plans batches of one sequence each, where rows of several must not be mixed. Decoding
    /// sequences and the prompts take turns; the one that has waited longest is next. All prompts
    /// share one turn.
    fn plan_in_turns(&mut self, slot: &mut BatchSlot, budget: &mut Budget) {
        let decoding = |seq: &&SeqId| budget.only != Some(Phase::Prefill) && self.decodes(**seq);
        let turn = |seq: &SeqId| self.all.get(seq).map_or(0, |s| s.turn);
        let decoding = self.queue.iter().filter(decoding);
        let mut waiting: Vec<(u64, Option<SeqId>)> =
            decoding.map(|seq| (turn(seq), Some(*seq))).collect();
        waiting.push((self.prompts_turn, None));
        waiting.sort_by_key(|(turn, _)| *turn);
        self.last_turn += 1;
        for (_, seq) in waiting {
            let seqs = seq.map_or_else(|| self.prompts_in_turn(budget), |seq| vec![seq]);
            for seq in seqs {
                let Some(s) = self.all.get(&seq) else { continue };
                if s.in_flight.is_some() || s.cancelled || s.closed {
                    continue;
                }
                let prompt = !self.decodes(seq);
                // The budget does not limit rows here: chunks must be cut by position alone.
                budget.left = usize::MAX;
                // If it has no room, it gives way and the next one gets the turn.
                let _ = self.plan_sequence(slot, seq, budget);
                if self.is_planned(slot, seq) {
                    if prompt {
                        self.note_turn(slot, seq);
                        self.prompts_turn = self.last_turn;
                    } else if let Some(s) = self.all.get_mut(&seq) {
                        s.turn = self.last_turn;
                    }
                    return;
                }
            }
        }
    }

    /// Whether a sequence has begun, or begins now.
    fn may_run(&mut self, seq: SeqId, budget: &mut Budget) -> bool {
        self.follow_length(seq);
        // It begins only in the slot that computes its next phase. In another slot it would hold a
        // place that a sequence ready to run could use.
        let elsewhere = self.rules.rows_matter
            && self.all.get(&seq).is_some_and(|s| {
                let next = s.phase(self.kv.len(seq), self.rules.one_placement).0;
                s.in_flight.is_none() && budget.only.is_some_and(|only| only != next)
            });
        let Some(s) = self.all.get(&seq).filter(|_| !elsewhere) else { return false };
        let (rank, runs) = (s.rank(), s.stage == Stage::Running);
        if !runs
            && (budget.blocked.is_some_and(|b| b < rank)
                || self.leaves_place(rank)
                || self.follows(seq))
        {
            return false;
        }
        if !self.begin(seq) {
            // Sequences behind it must not overtake it, but running ones continue.
            budget.blocked = Some(rank);
            // While one waits, half of the memory is for what runs.
            self.kv.keep_at_most(self.kv.budget() / 2);
            return false;
        }
        true
    }

    /// Whether a sequence waits because another one reads a prompt that begins like its own: it
    /// begins with these pages once they are computed.
    fn follows(&mut self, seq: SeqId) -> bool {
        let shares = |s: &&Sequence| s.shares && self.rules.shares_pages && !self.decodes(seq);
        let Some(s) = self.all.get(&seq).filter(shares) else { return false };
        // Whether all is alike up to the end of the page behind so many tokens.
        let alike = |other: &Sequence, tokens: usize| {
            let end = (tokens / self.rules.page_len + 1) * self.rules.page_len;
            end < s.tokens.len() && other.tokens.get(..end) == s.tokens.get(..end)
        };
        let has = self.kv.len(seq);
        let reads = |(_, o): &(&SeqId, &Sequence)| {
            let reads = o.stage == Stage::Running && o.phase == Phase::Prefill && o.shares;
            reads && o.priority >= s.priority && o.regime == s.regime && alike(o, has)
        };
        let read: Vec<(&SeqId, &Sequence)> = self.all.iter().filter(reads).collect();
        if read.iter().any(|(id, o)| alike(o, has.max(self.computed(**id)))) {
            return true;
        }
        let read: Vec<SeqId> = read.into_iter().map(|(id, _)| *id).collect();
        read.iter().for_each(|id| self.publish(*id));
        false
    }

    /// Adds the rows of a sequence that are left in this turn, if it has begun or may begin. `false`
    /// when there are no pages for it: nothing more is planned then.
    fn plan_sequence(&mut self, slot: &mut BatchSlot, seq: SeqId, budget: &mut Budget) -> bool {
        if !self.may_run(seq, budget) {
            return true;
        }
        while budget.left > 0 {
            match self.plan_rows(slot, seq, budget) {
                Ok(0) => break,
                Ok(rows) => budget.left = budget.left.saturating_sub(rows),
                Err(EngineError::Kv(KvError::Full(_))) => {
                    if !self.make_room(seq) {
                        self.give_way(seq, slot);
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

    /// Drops what is cached of a sequence whose length asks for other rotations: it starts over,
    /// maybe with another phase.
    fn follow_length(&mut self, seq: SeqId) {
        let Some(s) = self.all.get_mut(&seq) else { return };
        let regime = self.longrope.regime(s.tokens.len());
        if s.regime != regime && self.kv.len(seq) > 0 {
            self.kv.release(seq);
            self.handover.truncate(seq.number(), 0);
        }
        s.regime = regime;
    }

    /// Whether the free places are for sequences of higher rank that wait with pages. Those behind
    /// cannot take these pages: one that needs them would begin and give way for ever.
    fn leaves_place(&self, rank: Rank) -> bool {
        let before = |(other, s): &(&SeqId, &Sequence)| {
            s.has_place()
                || (s.stage == Stage::Waiting && s.rank() < rank && self.kv.len(**other) > 0)
        };
        let running = self.all.values().filter(|s| s.has_place()).count();
        running < self.rules.sharing.sequences
            && self.all.iter().filter(before).count() >= self.rules.sharing.sequences
    }

    /// Starts a waiting sequence if fewer than the allowed number run and there is room.
    fn begin(&mut self, seq: SeqId) -> bool {
        let Some(s) = self.all.get_mut(&seq) else { return false };
        if s.stage == Stage::Running {
            return true;
        }
        let (tokens, shares) = (s.tokens.len(), s.shares && self.rules.shares_pages);
        let running = self.all.values().filter(|s| s.has_place()).count();
        if running >= self.rules.sharing.sequences {
            return false;
        }
        // It begins when all its tokens have room. Alone, it never gets more room than now.
        if running > 0 && self.kv.len(seq) == 0 {
            // Those that run will take what they have not computed yet.
            let left =
                |(id, s): (&SeqId, &Sequence)| s.tokens.len().saturating_sub(self.kv.len(*id));
            let taken = self.all.iter().filter(|(_, s)| s.has_place()).map(left).sum::<usize>();
            if !self.free_idle(seq, tokens + 1 + taken) {
                return false;
            }
        }
        let Some(s) = self.all.get(&seq) else { return false };
        if shares {
            // Tokens before the first wanted logits need not be computed.
            let most = tokens.min(s.logits_from.saturating_add(1));
            // Kept prefixes were computed as prompts; what this one decoded was not.
            let most = s.decoded.first().map_or(most, |run| most.min(run.start + 1));
            self.kv.adopt(seq, &s.tokens[..most], numerics(s, 0..0));
        }
        let Some(s) = self.all.get_mut(&seq) else { return false };
        s.stage = Stage::Running;
        if !std::mem::replace(&mut s.begun, true) {
            self.events.push_back(Event::Begun { seq, cached: self.kv.len(seq) });
        }
        true
    }

    /// Adds rows of a sequence to the batches of a slot. Returns their number; 0 when none are left
    /// or there is no room.
    fn plan_rows(
        &mut self,
        slot: &mut BatchSlot,
        seq: SeqId,
        budget: &Budget,
    ) -> Result<usize, EngineError> {
        let Some(s) = self.all.get_mut(&seq) else { return Ok(0) };
        let from = self.kv.len(seq);
        if from >= s.tokens.len() {
            return Ok(0);
        }
        let (phase, to) = s.phase(from, self.rules.one_placement);
        if budget.only.is_some_and(|only| only != phase) {
            return Ok(0);
        }
        let chunk = self.rules.chunk;
        let used = slot.last_batch().map_or(chunk, |b| b.rows());
        let wanted: usize =
            slot.batches().iter().map(|b| b.wanted_rows(self.rules.rows_of_state)).sum();
        // Where numbers depend on the row, a batch ends where its chunk ends. One that is still empty,
        // because there was no room for rows, takes these.
        if used >= chunk || (self.rules.rows_matter && used > 0) {
            let most = (LOGITS_BYTES / (self.rules.output_cols * 4)).max(1);
            let many = wanted > 0 && wanted + chunk.min(s.tokens.len() - from) > most;
            if slot.batches().len() >= budget.batches || (many && s.logits_from < to) {
                return Ok(0);
            }
            slot.add_batch();
        }
        let Some(batch) = slot.last_batch() else { return Ok(0) };
        let mut count = (to - from).min(chunk - batch.rows()).min(budget.left);
        if self.rules.rows_matter {
            // The device that computes a row then follows from the row's position alone.
            count = match phase {
                Phase::Decode => 1,
                Phase::Prefill => count.min(chunk - from % chunk),
            };
        }
        let positions = from..from + count;
        let rows = NewRows {
            seq,
            tokens: &s.tokens[positions.clone()],
            positions: positions.clone(),
            known_len: s.tokens.len(),
            logits_from: s.logits_from,
            wanted: s.wanted,
            phase,
        };
        batch.push(&rows, &mut self.kv)?;
        slot.note(seq, positions.clone());
        let start = s.in_flight.as_ref().map_or(from, |rows| rows.start);
        s.in_flight = Some(start..positions.end);
        Ok(count)
    }

    /// Frees pages for a sequence: first the pages of idle sequences, then the pages of the
    /// youngest running sequence that ranks behind it and is not in flight. That sequence is
    /// computed again later.
    fn make_room(&mut self, seq: SeqId) -> bool {
        let Some(rank) = self.all.get(&seq).map(Sequence::rank) else { return false };
        let behind = |(other, s): &(&SeqId, &Sequence)| {
            s.rank() > rank && s.in_flight.is_none() && self.kv.len(**other) > 0
        };
        let youngest = || self.all.iter().filter(behind).max_by_key(|(_, s)| s.rank());
        let freed = self.idle_with_pages(seq).or_else(|| youngest().map(|(other, _)| *other));
        freed.into_iter().for_each(|freed| self.preempt(freed));
        freed.is_some()
    }

    /// Stops a running sequence that got no pages, so that others can continue, if there are any.
    fn give_way(&mut self, seq: SeqId, slot: &BatchSlot) {
        let others = self.all.iter().any(|(other, s)| {
            let waits_with_pages = s.stage == Stage::Waiting && self.kv.len(*other) > 0;
            *other != seq && (s.has_place() || waits_with_pages)
        });
        if others && !self.is_planned(slot, seq) {
            self.preempt(seq);
        }
    }

    /// Frees pages of idle sequences until this many tokens have room. Returns whether they have.
    fn free_idle(&mut self, seq: SeqId, tokens: usize) -> bool {
        while !self.kv.has_room(tokens) {
            let Some(idle) = self.idle_with_pages(seq) else { return false };
            self.preempt(idle);
        }
        true
    }

    /// The sequence with pages that has been idle longest.
    fn idle_with_pages(&self, but: SeqId) -> Option<SeqId> {
        let idle = |(other, s): &(&SeqId, &Sequence)| {
            **other != but
                && s.stage == Stage::Idle
                && s.in_flight.is_none()
                && self.kv.len(**other) > 0
        };
        let all = self.all.iter().filter(idle);
        all.min_by_key(|(_, s)| s.order).map(|(other, _)| *other)
    }
}
