//! The loop of an engine: plan forward batches, run them, hand out their results.

use std::ops::Range;
use std::time::Duration;

use troika_device::DeviceError;
use troika_graph::{DType, blocks};
use troika_plan::Phase;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::input::{Admission, Event, Next, OnEvent, SequenceInput, WantedLogits};
use crate::mailbox::{InFlight, Request};
use crate::schedule::{JobId, TaskGraph, Waited};
use crate::sequence::{Sequence, Stage};
use troika_program::kv::{KvError, SeqId};

/// How long a step waits at most for what a sequence does next.
const NAP: Duration = Duration::from_millis(50);

impl Engine {
    /// Does what was requested, then continues until there is an event to hand out (logits, the end
    /// of a sequence's input, or its failure) or a part of a prompt is computed. Other work stays in
    /// flight until the next call. Where all that is left waits for what sequences do next
    /// ([`Next::Later`]), it returns after a while. `false` when no sequence has anything to compute.
    ///
    /// # Errors
    /// A fault of the engine itself. Errors of a sequence are handed out as events.
    pub fn step(&mut self, on: OnEvent<'_>) -> Result<bool, EngineError> {
        loop {
            self.take_requests();
            self.leave_lost();
            let preemptions = self.seqs.preemptions;
            if self.losses.leaving.is_none() {
                self.start_batches();
            }
            if self.hand_out(on) {
                return Ok(true);
            }
            let handle = &self.handle;
            match self.runner.wait_unless(|| !handle.lock().requests.is_empty()) {
                // Requests for sequences that are not in flight need not wait for others.
                Waited::Interrupted => {}
                Waited::Ended((job, result)) => {
                    self.finish(job, result, on)?;
                    self.hand_out(on);
                    return Ok(true);
                }
                // Nothing is in flight. A batch that could not start now never can, unless a
                // sequence gave way to one that could not begin before, or may end.
                Waited::Idle => match self.seqs.first() {
                    Some(_) if self.losses.leaving.is_some() => {} // The next round leaves it.
                    Some(_) if self.seqs.preemptions > preemptions => {}
                    _ if self.seqs.all.values().any(|s| s.stage == Stage::Choosing) => {
                        self.handle.wait_for_request(NAP);
                        return Ok(true);
                    }
                    None => return Ok(false),
                    Some(seq) => self.seqs.fail(seq, KvError::Full(1).into()),
                },
            }
        }
    }

    /// Takes the requests made through handles.
    pub(crate) fn take_requests(&mut self) {
        loop {
            let Some((seq, request)) = self.handle.lock().take() else { return };
            match request {
                Request::Admit(admission) => self.seqs.admit(seq, &admission),
                Request::Fork(of) => {
                    self.seqs.publish(of);
                    let like = |s: &Sequence| Admission {
                        priority: s.priority,
                        client: s.client,
                        shares: s.shares,
                        ..Admission::default()
                    };
                    let admission = self.seqs.all.get(&of).map(like).unwrap_or_default();
                    self.seqs.admit(seq, &admission);
                }
                Request::Append(tokens, logits, phase) => {
                    self.seqs.feed(&SequenceInput { seq, tokens: &tokens, logits, phase });
                }
                Request::Replace(tokens, logits) => self.seqs.replace(seq, &tokens, logits),
                Request::GoOn(next) => {
                    let s = self.seqs.all.get(&seq);
                    if s.is_some_and(|s| s.stage == Stage::Choosing) {
                        self.go_on(seq, next);
                    }
                }
                Request::Cancel => {
                    if let Some(s) = self.seqs.all.get_mut(&seq) {
                        s.cancelled = s.stage != Stage::Idle;
                        self.seqs.settle(seq);
                    }
                }
                Request::Close => {
                    if let Some(s) = self.seqs.all.get_mut(&seq) {
                        s.closed = true;
                        self.seqs.settle(seq);
                    }
                }
            }
        }
    }

    /// Leaves a device that was lost, once nothing is in flight. If that is not possible, all
    /// sequences with something to compute fail, and later losses fail theirs.
    fn leave_lost(&mut self) {
        if self.slots.iter().any(|slot| slot.job.is_some()) {
            return;
        }
        let Some(loss) = self.losses.leaving.take() else { return };
        let Some(elsewhere) = &mut self.losses.elsewhere else { return };
        match elsewhere(&loss) {
            Ok(engine) => self.take_over(engine),
            Err(why) => {
                self.losses.elsewhere = None;
                for seq in self.seqs.queue.clone() {
                    let why = format!("{loss}; going on elsewhere failed: {why}");
                    self.seqs.fail(seq, EngineError::NotLeft(why));
                }
            }
        }
    }

    fn hand_out(&mut self, on: OnEvent<'_>) -> bool {
        let mut told = false;
        while let Some(event) = self.seqs.events.pop_front() {
            let (seq, begins) = (event.seq(), matches!(event, Event::Begun { .. }));
            if !self.seqs.all.contains_key(&seq) {
                // It was closed meanwhile.
                continue;
            }
            if let Event::Begun { cached, .. } = event {
                self.handle.lock().read(seq, cached, true);
            }
            on(event);
            if !begins {
                self.idle(seq);
                told = true;
            }
        }
        told
    }

    /// Marks a sequence as waiting, after its event was handed out. It can be fed only now, so that
    /// nobody takes an event of its former input for one of the next.
    pub(crate) fn idle(&self, seq: SeqId) {
        if let Some(s) = self.seqs.all.get(&seq) {
            self.handle.lock().idle(seq, s.tokens.len());
        }
    }

    /// The slots, each with the phase of its rows where phases are placed apart.
    pub(crate) fn places(&self) -> impl Iterator<Item = (usize, Option<Phase>)> + use<> {
        let apart = !self.seqs.rules.one_placement;
        let phases = [Phase::Decode, Phase::Prefill];
        (0..self.slots.len()).zip(phases).map(move |(i, phase)| (i, apart.then_some(phase)))
    }

    /// Plans and starts all batches that can run.
    fn start_batches(&mut self) {
        for (place, phase) in self.places() {
            if self.slots[place].job.is_some() {
                continue;
            }
            self.seqs.plan_batches(&mut self.slots[place], phase);
            if self.slots[place].seqs.is_empty() {
                continue;
            }
            if let Err(error) = self.start(place, phase == Some(Phase::Prefill)) {
                self.roll_back(place, error);
            }
        }
    }

    /// Hands planned batches to the scheduler.
    fn start(&mut self, place: usize, prefill: bool) -> Result<(), EngineError> {
        if let Err(error) = self.hand_over(place) {
            // It is unknown which positions were copied: all are computed again.
            for i in 0..self.slots[place].seqs.len() {
                self.seqs.cut_cache(self.slots[place].seqs[i].0, 0);
            }
            return Err(error);
        }
        let graph = self.slots[place].graph(&self.model)?;
        // While others decode, a prompt runs in the background, to leave them room in the queues.
        let others = self.seqs.queue.len() > self.slots[place].seqs.len();
        let job = self.runner.start(graph, prefill && others)?;
        self.slots[place].began = self.runner.now();
        self.slots[place].job = Some(job);
        let slot = &self.slots[place];
        let seqs = || slot.seqs.iter().map(|(seq, _)| *seq);
        let running = InFlight {
            job,
            canceller: self.runner.canceller(job),
            seqs: seqs().collect(),
            several: slot.batches().len() > 1,
            yields: self.seqs.yields(slot),
        };
        let mut inbox = self.handle.lock();
        inbox.in_flight.push(running);
        // One of them may have been cancelled just before.
        seqs().for_each(|seq| inbox.end_cancelled(seq));
        Ok(())
    }

    /// Copies caches to where planned batches use them.
    fn hand_over(&mut self, place: usize) -> Result<(), EngineError> {
        let mut copies = Vec::new();
        for at in 0..self.slots[place].batches().len() {
            let batch = &self.slots[place].batches()[at];
            let named = self.seqs.handover.before(batch.phase, &batch.forward, &self.model.program);
            if !named.is_empty() {
                copies.extend(self.slots[place].bind(&self.model, &named)?.0);
            }
        }
        if copies.is_empty() { Ok(()) } else { self.runner.run(&TaskGraph::new(copies).into()) }
    }

    /// Handles the end of a graph.
    fn finish(
        &mut self,
        job: JobId,
        result: Result<(), EngineError>,
        on: OnEvent<'_>,
    ) -> Result<(), EngineError> {
        let Some(place) = self.slots.iter().position(|s| s.job == Some(job)) else {
            return Ok(());
        };
        self.slots[place].job = None;
        // A later cancellation finds nothing in flight.
        let running = self.handle.lock().in_flight.extract_if(.., |f| f.job == job).next();
        running.iter().for_each(|running| running.canceller.reset());
        let yields = running.is_some_and(|running| running.yields);
        // Learn of cancellations first, so that the end they caused is not taken for a failure.
        self.take_requests();
        let unwanted = |(seq, _): &(SeqId, Range<usize>)| {
            self.seqs.all.get(seq).is_none_or(|s| s.cancelled || s.closed)
        };
        match result {
            Ok(()) => {
                let (slot, now) = (&self.slots[place], self.runner.now());
                self.seqs.measure(slot.prompt_rows(), now.saturating_sub(slot.began));
                self.deliver(place, &[], on)
            }
            Err(EngineError::Device(DeviceError::Cancelled))
                if yields || self.slots[place].seqs.iter().any(unwanted) =>
            {
                let left_out = self.runner.left_out(job).to_vec();
                self.keep_done(place, &left_out);
                self.deliver(place, &left_out, on)
            }
            Err(error) => {
                self.roll_back(place, error);
                Ok(())
            }
        }
    }

    /// Batches were stopped because of cancelled sequences, or for another prompt. The others keep
    /// what was computed and continue. Nothing stops their next batch, so that each stop still brings
    /// progress. A sequence that starts over, because its windows dropped what it needs, runs all its
    /// batches so.
    fn keep_done(&mut self, place: usize, left_out: &[u32]) {
        for i in 0..self.slots[place].seqs.len() {
            let (seq, positions) = self.slots[place].seqs[i].clone();
            let done = self.slots[place].done(seq, left_out).unwrap_or(positions.start);
            if done == positions.end {
                continue;
            }
            self.seqs.cut_cache(seq, done);
            let starts_over = self.seqs.kv.len(seq) < done;
            if let Some(s) = self.seqs.all.get_mut(&seq) {
                s.steady_until = if starts_over { usize::MAX } else { done + 1 };
            }
        }
    }

    /// Hands out the logits of finished batches, and notes which sequences are done.
    fn deliver(
        &mut self,
        place: usize,
        left_out: &[u32],
        on: OnEvent<'_>,
    ) -> Result<(), EngineError> {
        for i in 0..self.slots[place].seqs.len() {
            let (seq, positions) = self.slots[place].seqs[i].clone();
            if let Some(s) = self.seqs.all.get_mut(&seq) {
                (s.in_flight, s.alone) = (None, false);
                if s.phase == Phase::Prefill {
                    let done = self.seqs.kv.len(seq);
                    self.seqs.read += done.saturating_sub(positions.start) as u64;
                    self.handle.lock().read(seq, done, false);
                }
            }
            if self.seqs.rules.shares_chunks {
                self.seqs.publish(seq);
            }
            self.seqs.settle(seq);
        }
        if self.silent.is_none() {
            self.hand_out_rows(place, left_out, on)?;
        }
        for i in 0..self.slots[place].seqs.len() {
            let (seq, _) = self.slots[place].seqs[i];
            self.hand_out_fed(seq, on);
        }
        Ok(())
    }

    /// Hands out the rows of finished batches: logits, or states in their place.
    fn hand_out_rows(
        &mut self,
        place: usize,
        left_out: &[u32],
        on: OnEvent<'_>,
    ) -> Result<(), EngineError> {
        let buffer = self.slots[place].logits.clone();
        let mut guard = buffer.write()?;
        let mut rest = guard.as_mut_slice::<f32>();
        let program = &self.model.program;
        let cols = program.output_cols();
        let of_state = [cols * program.rows_of_state(), program.state_cols()];
        let dtypes = [Phase::Prefill, Phase::Decode].map(|phase| program.state_dtype(phase));
        for batch in 0..self.slots[place].batches().len() {
            for at in 0.. {
                let planned = &self.slots[place].batches()[batch];
                let logits = planned.wanted.get(at);
                let run = logits.or_else(|| planned.states.get(at - planned.wanted.len()));
                let top_k = planned.top_k.filter(|_| logits.is_some());
                let ([room, len], dtype) = match logits {
                    Some(_) => ([cols; 2], DType::F32),
                    None => (of_state, dtypes[planned.phase as usize]),
                };
                let Some((seq, range)) = run.cloned() else { break };
                for row in range {
                    let position = self.slots[place].batches()[batch].positions[row] as usize;
                    let Some(own) = rest.split_off_mut(..room) else { continue };
                    if left_out.contains(&(batch as u32)) {
                        continue;
                    }
                    widen(dtype, &mut own[..len]);
                    self.hand_out_logits(seq, position, &mut own[..len], top_k, on);
                }
            }
        }
        Ok(())
    }

    /// Hands out a row of logits, or only its largest ones, which then lie at its beginning.
    fn hand_out_logits(
        &mut self,
        seq: SeqId,
        position: usize,
        logits: &mut [f32],
        top_k: Option<usize>,
        on: OnEvent<'_>,
    ) {
        let Some(s) = self.seqs.all.get_mut(&seq) else { return };
        if position < s.logits_from {
            // It was cancelled meanwhile.
            return;
        }
        s.logits_from = position + 1;
        let last = position + 1 == s.tokens.len();
        if last {
            self.seqs.through(seq);
        }
        let next = match top_k {
            None => on(Event::Logits { seq, position, logits, last }),
            Some(count) => {
                let (numbers, tokens) = logits.split_at(count);
                let pairs = tokens.iter().map(|token| token.to_bits()).zip(numbers.iter().copied());
                self.top_k.clear();
                self.top_k.extend(pairs.take_while(|(_, logit)| *logit > f32::NEG_INFINITY));
                on(Event::TopK { seq, position, top_k: &self.top_k })
            }
        };
        if last {
            self.go_on(seq, next);
        }
    }

    /// Reports that a sequence without wanted logits is done.
    fn hand_out_fed(&mut self, seq: SeqId, on: OnEvent<'_>) {
        let Some(s) = self.seqs.all.get(&seq) else { return };
        let told = matches!(s.stage, Stage::Idle | Stage::Choosing) || s.in_flight.is_some();
        if told || self.seqs.kv.len(seq) < s.tokens.len() {
            return;
        }
        self.seqs.through(seq);
        let next = on(Event::Fed { seq });
        self.go_on(seq, next);
    }

    /// Does what the receiver chose for a sequence that has nothing left to compute.
    fn go_on(&mut self, seq: SeqId, next: Next) {
        if let Some(s) = self.seqs.all.get_mut(&seq) {
            s.stage = if next == Next::Later { Stage::Choosing } else { Stage::Idle };
        }
        let (accepted, then) = match next {
            Next::Later => return,
            Next::Wait => (usize::MAX, None),
            Next::Append(token) => (usize::MAX, Some(token)),
            Next::Keep { accepted, then } => (accepted, then),
        };
        let len = self.seqs.keep(seq, accepted);
        let Some(token) = then else { return self.idle(seq) };
        match self.handle.append_token(seq, len, token) {
            Ok(()) => {
                let top_k = self.seqs.all.get(&seq).and_then(|s| s.wanted.top_k());
                let wanted = top_k.map_or(WantedLogits::Last, WantedLogits::TopK);
                self.seqs.feed(&SequenceInput::decode(seq, &[token], wanted));
            }
            // The sequence was closed: nothing is reported.
            Err(EngineError::Kv(KvError::Closed(_))) => {}
            Err(error) => self.seqs.events.push_back(Event::Failed { seq, error }),
        }
    }

    /// Batches failed or could not start: their sequences become what they were before. One that
    /// ran with others is tried again alone, so that only those at fault fail.
    fn roll_back(&mut self, place: usize, error: EngineError) {
        let seqs = std::mem::take(&mut self.slots[place].seqs);
        let leaves = self.losses.note(&error);
        for (seq, positions) in &seqs {
            if let Some(s) = self.seqs.all.get_mut(seq) {
                s.in_flight = None;
                s.alone = seqs.len() > 1 && !leaves;
                self.seqs.cut_cache(*seq, positions.start);
                self.seqs.settle(*seq);
            }
        }
        if let [(seq, _)] = seqs[..]
            && !leaves
            && self.seqs.queue.contains(&seq)
        {
            self.seqs.fail(seq, error);
        }
        self.slots[place].seqs = seqs;
        self.slots[place].clear();
    }
}

/// Makes floats of numbers of 16 bits that lie at the beginning of their row.
fn widen(dtype: DType, row: &mut [f32]) {
    if dtype != DType::F32 {
        let stored = row.to_vec();
        let stored: &[u8] = bytemuck::cast_slice(&stored);
        blocks::dequantize(dtype, &stored[..dtype.row_size(row.len())], row);
    }
}
