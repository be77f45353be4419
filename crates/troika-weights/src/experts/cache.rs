//! The experts in memory: under a byte budget, read while others are computed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use troika_device::{
    Clock, DeviceError, EXPECTED_SHARE, EXPERT_PARTS, Eviction, ExpertBytes, ExpertForecast,
    ExpertPart, ExpertStats, ExpertsOnDisk, LayerChoices, PROMPT_TOKENS, RealClock, Residents,
    WeightBytes, lock, size, size_needed,
};

use super::io::{Done, Target};
use super::read::Reader;
use super::room::Rooms;
use crate::arena::Room;
use crate::cache::hash;

/// Direct reads begin and end at multiples of this.
const PAGE: usize = 4096;
/// How long to wait when another device computes with all experts in memory.
const ALL_HELD: Duration = Duration::from_micros(100);

/// Where a part is in the file, and in the memory of its expert.
#[derive(Clone, Debug)]
struct PartAt {
    part: ExpertPart,
    /// In the memory of its expert.
    at: usize,
    /// In the file, with the hash of its bytes, once the file is complete.
    stored: OnceLock<(u64, String)>,
}

impl PartAt {
    /// Bytes of a direct read.
    fn room(&self) -> usize {
        self.part.bytes.next_multiple_of(PAGE)
    }
}

#[derive(Debug)]
struct StoredExpert {
    parts: [PartAt; EXPERT_PARTS],
    bytes: usize,
    /// Set when its bytes were found to match their hashes.
    checked: OnceLock<()>,
}

/// Where an expert's bytes are.
enum Whereabouts {
    /// On disk only.
    Away,
    /// On the way: memory that the reads fill, and how many are pending.
    Coming { room: Room, pending: usize, fault: Option<String> },
    /// In memory.
    Here(Arc<Room>),
    /// It could not be read.
    Failed(String),
}

#[derive(Clone, Debug)]
struct Layer {
    /// Its number in the model.
    number: usize,
    /// Its first expert's number, and how many there are.
    first: u32,
    count: u32,
    choices: LayerChoices,
}

struct State {
    places: Vec<Arc<StoredExpert>>,
    slots: Vec<Whereabouts>,
    layers: Vec<Layer>,
    residents: Residents,
    rooms: Rooms,
    reader: Option<Reader>,
    path: PathBuf,
    /// Experts that a run has chosen and not computed, and those that are expected: they stay.
    wanted: Vec<bool>,
    expected: Vec<bool>,
    expected_bytes: u64,
    /// What may be read next, the most probable first.
    to_prefetch: Vec<u32>,
    done: Vec<Done>,
    stats: ExpertStats,
}

/// Experts in memory under a byte budget.
pub(crate) struct ExpertCache {
    state: Mutex<State>,
    clock: RealClock,
    budget: u64,
    ring: bool,
    forecast: OnceLock<Arc<ExpertForecast>>,
    on_wait: OnceLock<OnWait>,
}

/// Called after computing has waited for an expert: the layer, and how long.
pub type OnWait = Arc<dyn Fn(usize, Duration) + Send + Sync>;

impl ExpertCache {
    pub fn new(budget: u64, eviction: Eviction, ring: bool) -> Arc<ExpertCache> {
        let state = State {
            places: Vec::new(),
            slots: Vec::new(),
            layers: Vec::new(),
            residents: Residents::new(eviction, 0),
            rooms: Rooms::new(budget),
            reader: None,
            path: PathBuf::new(),
            wanted: Vec::new(),
            expected: Vec::new(),
            expected_bytes: 0,
            to_prefetch: Vec::new(),
            done: Vec::new(),
            stats: ExpertStats { budget, ..ExpertStats::default() },
        };
        Arc::new(ExpertCache {
            state: Mutex::new(state),
            clock: RealClock::new(),
            budget,
            ring,
            forecast: OnceLock::new(),
            on_wait: OnceLock::new(),
        })
    }

    /// Sets what says which experts are read ahead while decoding.
    pub fn set_forecast(&self, forecast: Arc<ExpertForecast>) {
        let _ = self.forecast.set(forecast);
    }

    /// Sets what is told of waits.
    pub fn on_wait(&self, told: OnWait) {
        let _ = self.on_wait.set(told);
    }

    /// The experts of a layer, which are known already if another device or phase asked for them.
    pub fn add_layer(
        self: &Arc<ExpertCache>,
        experts: Vec<[ExpertPart; EXPERT_PARTS]>,
    ) -> Result<Arc<dyn ExpertsOnDisk>, DeviceError> {
        let mut state = lock(&self.state);
        let count = experts.len() as u32;
        if let Some(layer) = state.known(&experts) {
            let first = state.layers[layer].first;
            return Ok(Arc::new(LayerExperts { cache: self.clone(), layer, first, count }));
        }
        let (layer, first) = (state.layers.len(), state.places.len() as u32);
        let number = experts.first().and_then(|parts| layer_of(&parts[0].weight)).unwrap_or(layer);
        for parts in experts {
            let mut bytes = 0;
            let parts = parts.map(|part| {
                let placed = PartAt { part, at: bytes, stored: OnceLock::new() };
                bytes += placed.room();
                placed
            });
            if bytes as u64 > self.budget {
                let why = format!(
                    "its expert has {}, and all experts in memory may have {}; raise \
                     --expert-cache-mib",
                    size_needed(bytes as u64),
                    size(self.budget)
                );
                return Err(DeviceError::Weight { name: parts[0].part.weight.to_string(), why });
            }
            state.stats.bytes_of_all += bytes as u64;
            let checked = OnceLock::new();
            state.places.push(Arc::new(StoredExpert { parts, bytes, checked }));
            state.slots.push(Whereabouts::Away);
        }
        let all = state.places.len();
        state.residents.grow(all);
        state.wanted.resize(all, false);
        state.expected.resize(all, false);
        let choices = LayerChoices::new(count as usize);
        state.layers.push(Layer { number, first, count, choices });
        state.stats.experts = all;
        Ok(Arc::new(LayerExperts { cache: self.clone(), layer, first, count }))
    }

    /// Opens the file in which all experts are. `stored` says where a weight's form is, with its
    /// length and hash.
    ///
    /// # Errors
    /// The file cannot be opened, or lacks a part.
    pub fn open(
        &self,
        path: PathBuf,
        stored: &dyn Fn(&ExpertPart) -> Option<(u64, String)>,
    ) -> Result<(), String> {
        let mut state = lock(&self.state);
        for part in state.places.iter().flat_map(|place| &place.parts) {
            let Some(stored) = stored(&part.part) else {
                return Err(format!("{} lacks weight {}", path.display(), part.part.weight));
            };
            let _ = part.stored.set(stored);
        }
        let opened = Reader::open(&path, self.ring);
        let reader = opened.map_err(|e| format!("{}: {e}", path.display()))?;
        state.stats.reads = reader.name();
        state.reader = Some(reader);
        state.path = path;
        Ok(())
    }

    /// Whether it has experts.
    pub fn is_used(&self) -> bool {
        !lock(&self.state).places.is_empty()
    }

    /// What was read and found.
    pub fn stats(&self) -> ExpertStats {
        let state = lock(&self.state);
        ExpertStats { held: state.rooms.bytes(), ..state.stats.clone() }
    }
}

/// The number of a layer in the name of its weight.
fn layer_of(weight: &str) -> Option<usize> {
    weight.strip_prefix("layers.")?.split('.').next()?.parse().ok()
}

impl State {
    /// The layer with these experts.
    fn known(&self, experts: &[[ExpertPart; EXPERT_PARTS]]) -> Option<usize> {
        self.layers.iter().position(|layer| {
            let places = &self.places[layer.first as usize..][..layer.count as usize];
            let same = |(place, parts): (&Arc<StoredExpert>, &[ExpertPart; EXPERT_PARTS])| {
                place.parts.iter().zip(parts).all(|(known, part)| known.part == *part)
            };
            places.len() == experts.len() && places.iter().zip(experts).all(same)
        })
    }

    /// Begins to read experts of a layer that a row will probably choose.
    fn expect(&mut self, layer: usize, experts: &[u16]) {
        let Some(layer) = self.layers.iter().find(|known| known.number == layer) else { return };
        let inside = experts.iter().map(|e| u32::from(*e)).filter(|e| *e < layer.count);
        self.to_prefetch.clear();
        self.to_prefetch.extend(inside.map(|e| layer.first + e));
    }

    /// Takes note of reads that are done. Waits for one if `wait`, unless none is pending.
    fn settle(&mut self, wait: bool) -> Result<(), String> {
        let Some(reader) = &mut self.reader else {
            return Err("its file is not complete yet".into());
        };
        let mut done = std::mem::take(&mut self.done);
        let told = reader.done(wait, &mut done).map_err(|e| e.to_string());
        for Done { number, result } in done.drain(..) {
            self.part_done((number / EXPERT_PARTS as u64) as usize, number, result);
        }
        self.done = done;
        told
    }

    fn part_done(&mut self, expert: usize, number: u64, result: std::io::Result<usize>) {
        let Whereabouts::Coming { pending, fault, .. } = &mut self.slots[expert] else { return };
        *pending -= 1;
        let part = &self.places[expert].parts[(number % EXPERT_PARTS as u64) as usize];
        match result {
            Ok(bytes) if bytes >= part.part.bytes => self.stats.bytes_read += bytes as u64,
            Ok(_) => *fault = Some("the file is cut short".into()),
            Err(e) => *fault = Some(e.to_string()),
        }
        if *pending > 0 {
            return;
        }
        let slot = std::mem::replace(&mut self.slots[expert], Whereabouts::Away);
        let Whereabouts::Coming { room, fault, .. } = slot else { return };
        match fault {
            None => {
                self.residents.entered(expert as u32);
                self.slots[expert] = Whereabouts::Here(Arc::new(room));
            }
            Some(why) => {
                self.rooms.give(room);
                self.unexpect(expert);
                self.slots[expert] = Whereabouts::Failed(why);
            }
        }
    }

    fn unexpect(&mut self, expert: usize) {
        if std::mem::take(&mut self.expected[expert]) {
            self.expected_bytes -= self.places[expert].bytes as u64;
        }
    }

    /// Memory for an expert: free memory, or the memory of an expert that leaves. Experts that a
    /// run has chosen leave only if `even_wanted`.
    fn room(&mut self, bytes: usize, even_wanted: bool) -> Option<Room> {
        loop {
            if let Some(room) = self.rooms.take(bytes) {
                return Some(room);
            }
            let (slots, wanted, expected) = (&self.slots, &self.wanted, &self.expected);
            let idle = |e: u32| matches!(&slots[e as usize], Whereabouts::Here(room) if Arc::strong_count(room) == 1);
            let free = |e: u32| !wanted[e as usize] && !expected[e as usize] && idle(e);
            let leaves = self.residents.next_to_leave(free);
            let leaves =
                leaves.or_else(|| self.residents.next_to_leave(|e| even_wanted && idle(e)))?;
            self.residents.left(leaves);
            self.unexpect(leaves as usize);
            self.stats.evictions += 1;
            let slot = std::mem::replace(&mut self.slots[leaves as usize], Whereabouts::Away);
            let Whereabouts::Here(room) = slot else { continue };
            // Nobody else has it, and nobody can get it meanwhile.
            if let Some(room) = Arc::into_inner(room) {
                self.rooms.give(room);
            }
        }
    }

    /// Begins to read an expert. `false` if there is no memory for it now.
    fn begin(&mut self, expert: usize, even_wanted: bool) -> Result<bool, String> {
        let place = self.places[expert].clone();
        // Known before the first read begins: after it, nothing here may return early.
        let offsets = place.offsets().ok_or("its file is not complete yet")?;
        if self.reader.is_none() {
            return Err("its file is not complete yet".into());
        }
        let Some(mut room) = self.room(place.bytes, even_wanted) else { return Ok(false) };
        let Some(reader) = &mut self.reader else { return Ok(false) };
        let (mut pending, mut fault) = (0, None);
        for (i, (part, offset)) in place.parts.iter().zip(offsets).enumerate() {
            let target = &mut room.as_mut()[part.at..part.at + part.room()];
            let to = Target { start: target.as_mut_ptr(), bytes: target.len() };
            let number = expert as u64 * EXPERT_PARTS as u64 + i as u64;
            // SAFETY: the room goes into its whereabouts below, whatever happens, and stays there
            // untouched until all of its reads are done (`part_done`), also if the cache is dropped.
            match unsafe { reader.read(number, offset, to) } {
                Ok(()) => pending += 1,
                Err(e) => {
                    fault = Some(e.to_string());
                    break;
                }
            }
        }
        self.slots[expert] = match fault {
            Some(why) if pending == 0 => {
                self.rooms.give(room);
                Whereabouts::Failed(why)
            }
            fault => Whereabouts::Coming { room, pending, fault },
        };
        Ok(true)
    }

    /// Begins to read what may be chosen next, as far as there is memory for it.
    fn prefetch(&mut self, budget: u64) -> Result<(), String> {
        while let Some(&expert) = self.to_prefetch.first() {
            let expert = expert as usize;
            let bytes = self.places[expert].bytes as u64;
            let away = matches!(self.slots[expert], Whereabouts::Away);
            if away && self.expected_bytes + bytes > budget / EXPECTED_SHARE {
                return Ok(());
            }
            self.to_prefetch.remove(0);
            if away {
                if !self.begin(expert, false)? {
                    self.to_prefetch.clear();
                    return Ok(());
                }
                self.expected[expert] = true;
                self.expected_bytes += bytes;
                self.stats.expected += 1;
            }
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<(), String> {
        let told = self.reader.as_mut().map(Reader::submit);
        told.transpose().map(drop).map_err(|e| e.to_string())
    }

    /// Begins to read chosen experts, in order, as far as there is memory for them.
    fn begin_all(&mut self, first: u32, chosen: &[(u32, u32)]) -> Result<(), String> {
        for (expert, _) in chosen {
            let expert = (first + expert) as usize;
            if matches!(self.slots[expert], Whereabouts::Away) && !self.begin(expert, false)? {
                break;
            }
        }
        Ok(())
    }
}

struct LayerExperts {
    cache: Arc<ExpertCache>,
    layer: usize,
    first: u32,
    count: u32,
}

impl std::fmt::Debug for LayerExperts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LayerExperts({}, {} experts)", self.layer, self.count)
    }
}

impl ExpertsOnDisk for LayerExperts {
    fn choose(&self, chosen: &mut [(u32, u32)], tokens: usize, row: Option<&[f32]>) {
        let mut guard = lock(&self.cache.state);
        let state = &mut *guard;
        // An error is told when the expert is taken.
        let _ = state.settle(false);
        let now = state.layers[self.layer].choices.chosen(chosen, tokens);
        for (expert, rows) in &*chosen {
            state.residents.used(self.first + expert, *rows as usize, now);
        }
        let mut hits = 0;
        for (expert, _) in &*chosen {
            let at = (self.first + expert) as usize;
            state.wanted[at] = true;
            if std::mem::take(&mut state.expected[at]) {
                state.expected_bytes -= state.places[at].bytes as u64;
                state.stats.expected_used += 1;
            }
            match &state.slots[at] {
                Whereabouts::Here(_) => hits += 1,
                Whereabouts::Coming { .. } => state.stats.coming += 1,
                Whereabouts::Away => {}
                // Another run's failure: this one tries again.
                Whereabouts::Failed(_) => state.slots[at] = Whereabouts::Away,
            }
        }
        state.stats.chosen += chosen.len() as u64;
        state.stats.hits += hits;
        // Those of this layer that were expected in vain make way.
        for expert in self.first..self.first + self.count {
            if !state.wanted[expert as usize] {
                state.unexpect(expert as usize);
            }
        }
        chosen.sort_by_key(|(expert, _)| match state.slots[(self.first + expert) as usize] {
            Whereabouts::Here(_) => 0,
            Whereabouts::Coming { .. } => 1,
            Whereabouts::Away | Whereabouts::Failed(_) => 2,
        });
        let _ = state.begin_all(self.first, chosen);
        if tokens >= PROMPT_TOKENS {
            state.to_prefetch.clear();
            let next = &state.layers[(self.layer + 1) % state.layers.len()];
            state.to_prefetch.extend(next.choices.popular().iter().map(|e| next.first + e));
        } else if let Some((row, forecast)) = row.zip(self.cache.forecast.get()) {
            let layer = state.layers[self.layer].number;
            forecast(layer, row, &mut |layer, experts| state.expect(layer, experts));
        }
        let _ = state.prefetch(self.cache.budget);
        let _ = state.submit();
    }

    fn take(&self, left: &[(u32, u32)], into: &mut Vec<ExpertBytes>) -> Result<(), DeviceError> {
        let Some((first, _)) = left.first() else { return Ok(()) };
        let expert = (self.first + first) as usize;
        let (mut guard, mut waited) = (lock(&self.cache.state), None);
        loop {
            let state = &mut *guard;
            // What is computed may leave.
            state.wanted[self.first as usize..][..self.count as usize].fill(false);
            left.iter().for_each(|(e, _)| state.wanted[(self.first + e) as usize] = true);
            self.submit_reads(state, left).map_err(|why| self.failed(state, expert, &why))?;
            match &state.slots[expert] {
                Whereabouts::Here(_) => break,
                Whereabouts::Failed(why) => {
                    let error = self.failed(state, expert, why);
                    // The next run tries again.
                    state.slots[expert] = Whereabouts::Away;
                    return Err(error);
                }
                Whereabouts::Coming { .. } | Whereabouts::Away => {}
            }
            waited.get_or_insert_with(|| self.cache.clock.now());
            if state.reader.as_ref().is_some_and(|r| r.pending > 0) {
                state.settle(true).map_err(|why| self.failed(state, expert, &why))?;
            } else if !state.begin(expert, true).map_err(|why| self.failed(state, expert, &why))? {
                // Others compute with all that is in memory.
                drop(guard);
                self.cache.clock.wait(ALL_HELD);
                guard = lock(&self.cache.state);
            }
        }
        let state = &mut *guard;
        if let Some(since) = waited {
            let waited = self.cache.clock.now().saturating_sub(since);
            state.stats.stall += waited;
            if let Some(told) = self.cache.on_wait.get() {
                told(state.layers[self.layer].number, waited);
            }
        }
        for (e, _) in left {
            let at = (self.first + e) as usize;
            let Whereabouts::Here(room) = &state.slots[at] else { break };
            into.push(state.places[at].bytes_in(room)?);
        }
        Ok(())
    }
}

impl LayerExperts {
    /// Takes note of reads that are done, and submits the ones that can begin.
    fn submit_reads(&self, state: &mut State, left: &[(u32, u32)]) -> Result<(), String> {
        state.settle(false)?;
        state.begin_all(self.first, left)?;
        state.prefetch(self.cache.budget)?;
        state.submit()
    }

    fn failed(&self, state: &State, expert: usize, why: &str) -> DeviceError {
        let name = state.places[expert].parts[0].part.weight.to_string();
        let why = format!(
            "the expert cannot be read from {} ({why}); if the file is damaged, remove it: the \
             next start makes it again",
            state.path.display()
        );
        DeviceError::Weight { name, why }
    }
}

impl StoredExpert {
    /// Where the parts are in the file, once that is complete.
    fn offsets(&self) -> Option<[u64; EXPERT_PARTS]> {
        let [gate, up, down] = &self.parts;
        let offset = |part: &PartAt| part.stored.get().map(|(offset, _)| *offset);
        Some([offset(gate)?, offset(up)?, offset(down)?])
    }

    /// The parts in memory; the first time, checks that they are what was written.
    fn bytes_in(&self, room: &Arc<Room>) -> Result<ExpertBytes, DeviceError> {
        for part in self.parts.iter().filter(|_| self.checked.get().is_none()) {
            let bytes = &(**room).as_ref()[part.at..part.at + part.part.bytes];
            let found = hash::of_bytes(bytes).to_hex();
            if part.stored.get().is_none_or(|(_, stored)| found.as_str() != stored) {
                let why = "its packed form on disk is damaged; remove it (troika cache prune): the \
                           next start makes it again";
                return Err(DeviceError::weight(&*part.part.weight, why));
            }
        }
        let _ = self.checked.set(());
        let part = |i: usize| {
            let PartAt { part, at, .. } = &self.parts[i];
            WeightBytes::new(room.clone(), *at..*at + part.bytes)
        };
        match [part(0), part(1), part(2)] {
            [Some(gate), Some(up), Some(down)] => Ok([gate, up, down]),
            _ => {
                let name = &*self.parts[0].part.weight;
                Err(DeviceError::weight(name, "it is not inside of its memory"))
            }
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // The kernel and other threads write to memory until their reads are done.
        while self.reader.as_ref().is_some_and(|reader| reader.pending > 0) {
            if self.settle(true).is_err() {
                // Then they may still write to it: it is never freed.
                for slot in self.slots.drain(..) {
                    if let Whereabouts::Coming { room, .. } = slot {
                        std::mem::forget(room);
                    }
                }
                return;
            }
        }
    }
}
