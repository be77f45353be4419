//! Which experts stay in memory, on any device: a state machine without bytes, time or threads. It is
//! told what is used and what came into memory, and says what leaves next.
//!
//! What time is depends on the caller: caches count the tokens of a layer.

use std::collections::BTreeSet;

/// How experts that leave are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The one that came first.
    Fifo,
    /// The one that was used least recently.
    Lru,
    /// The least frequently used one (LFU with decay): a use counts half after each half-life. The
    /// frequency of an expert that took another's place counts half until it is used again. So a
    /// prompt, which passes over all experts, does not displace experts that are used as often.
    Frequency,
}

impl Eviction {
    /// All ways.
    pub const ALL: [Eviction; 3] = [Eviction::Fifo, Eviction::Lru, Eviction::Frequency];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Eviction::Fifo => "fifo",
            Eviction::Lru => "lru",
            Eviction::Frequency => "frequency",
        }
    }
}

/// Experts that are loaded because they may be chosen next take at most one part in this many of a
/// cache.
pub const EXPECTED_SHARE: u64 = 8;
/// Prompts of at least this many tokens choose nearly all experts of a layer, and of the next layer.
pub const PROMPT_TOKENS: usize = 32;

/// What the tokens of a layer have chosen.
#[derive(Clone, Debug)]
pub struct LayerChoices {
    /// How many tokens have chosen.
    tokens: f64,
    /// How many of them chose each expert.
    popularity: Vec<f32>,
}

impl LayerChoices {
    /// Of a layer of so many experts, of which none was chosen.
    pub fn new(experts: usize) -> LayerChoices {
        LayerChoices { tokens: 0.0, popularity: vec![0.0; experts] }
    }

    /// Number of experts.
    pub fn experts(&self) -> usize {
        self.popularity.len()
    }

    /// Notes what `tokens` tokens chose, experts with their rows. Returns the time, in tokens.
    pub fn chosen(&mut self, chosen: &[(u32, u32)], tokens: usize) -> f64 {
        self.tokens += tokens as f64;
        for (expert, rows) in chosen {
            if let Some(sum) = self.popularity.get_mut(*expert as usize) {
                *sum += *rows as f32;
            }
        }
        self.tokens
    }

    /// The experts that an even share of the tokens or more have chosen, the most popular first.
    pub fn popular(&self) -> Vec<u32> {
        let of = |e: &u32| self.popularity[*e as usize];
        let all: f32 = self.popularity.iter().sum();
        let even = all / self.experts().max(1) as f32;
        let mut popular: Vec<u32> =
            (0..self.experts() as u32).filter(|e| all > 0.0 && of(e) >= even).collect();
        popular.sort_by(|a, b| of(b).total_cmp(&of(a)));
        popular
    }
}

/// Tokens after which a use counts half.
const HALF_LIFE: f64 = 1024.0;
/// What one that just came is put back by: a factor of two in frequency.
const NEWCOMER: f64 = 1.0;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The sum of its uses at the time of the last one. A use counts half after a half-life.
    uses: f64,
    /// When it was used last.
    last: f64,
    /// Its place in the order of events.
    event: u64,
    resident: bool,
    /// Whether it took another's place and was not used since.
    newcomer: bool,
}

/// The experts in memory, by who leaves first.
#[derive(Clone, Debug)]
pub struct Residents {
    eviction: Eviction,
    known: Vec<Known>,
    /// Ranks as numbers that compare like them, with the expert.
    order: BTreeSet<(u64, u32)>,
    events: u64,
    /// Whether some have left, so that whoever comes takes another's place.
    full: bool,
}

impl Residents {
    /// A state for `experts` experts, none of them in memory.
    pub fn new(eviction: Eviction, experts: usize) -> Residents {
        Residents {
            eviction,
            known: vec![Known::default(); experts],
            order: BTreeSet::new(),
            events: 0,
            full: false,
        }
    }

    /// Adds experts that are not in memory.
    pub fn grow(&mut self, experts: usize) {
        self.known.resize(experts.max(self.known.len()), Known::default());
    }

    /// Notes that `rows` tokens chose an expert, in memory or not, at a time that never runs
    /// backwards for this expert.
    pub fn used(&mut self, expert: u32, rows: usize, now: f64) {
        self.change(expert, |known, event| {
            known.uses = known.uses * ((known.last - now) / HALF_LIFE).exp2() + rows as f64;
            known.last = now;
            known.event = event;
            known.newcomer = false;
        });
    }

    /// Notes that an expert came into memory.
    pub fn entered(&mut self, expert: u32) {
        let (fifo, full) = (self.eviction == Eviction::Fifo, self.full);
        self.change(expert, |known, event| {
            known.resident = true;
            known.newcomer = full;
            if fifo || known.event == 0 {
                known.event = event;
            }
        });
    }

    /// Notes that an expert left memory.
    pub fn left(&mut self, expert: u32) {
        self.full = true;
        self.change(expert, |known, _| known.resident = false);
    }

    /// Who leaves next, of those for which `may` holds.
    pub fn next_to_leave(&self, mut may: impl FnMut(u32) -> bool) -> Option<u32> {
        self.order.iter().map(|(_, expert)| *expert).find(|expert| may(*expert))
    }

    /// Whether an expert that is not in memory should take the place of one that is, which leaves next.
    /// Only frequencies tell: what is used next was always used longer ago than what is in memory.
    pub fn outranks(&self, newcomer: u32, resident: u32) -> bool {
        if self.eviction != Eviction::Frequency {
            return true;
        }
        let of = |expert: u32| self.known.get(expert as usize).copied().unwrap_or_default();
        let newcomer = Known { newcomer: self.full, ..of(newcomer) };
        rank(self.eviction, &newcomer) > rank(self.eviction, &of(resident))
    }

    /// Whether an expert is in memory.
    pub fn is_resident(&self, expert: u32) -> bool {
        self.known.get(expert as usize).is_some_and(|known| known.resident)
    }

    /// Changes what is known of an expert, and its place in the order.
    fn change(&mut self, expert: u32, change: impl FnOnce(&mut Known, u64)) {
        self.events += 1;
        let (eviction, event) = (self.eviction, self.events);
        let Some(known) = self.known.get_mut(expert as usize) else { return };
        if known.resident {
            self.order.remove(&(rank(eviction, known), expert));
        }
        // A newcomer stays in the order of arrivals, whoever uses it.
        let arrived = (eviction == Eviction::Fifo && known.resident).then_some(known.event);
        change(known, event);
        if let Some(arrived) = arrived {
            known.event = arrived;
        }
        if known.resident {
            self.order.insert((rank(eviction, known), expert));
        }
    }
}

/// A number that is smaller for who leaves sooner, and that does not change with time.
fn rank(eviction: Eviction, known: &Known) -> u64 {
    match eviction {
        Eviction::Fifo | Eviction::Lru => known.event,
        Eviction::Frequency => {
            // uses * 2^((last - now) / half-life), as a logarithm, without what all have in common.
            let newcomer = if known.newcomer { NEWCOMER } else { 0.0 };
            ordered(known.uses.max(f64::MIN_POSITIVE).log2() + known.last / HALF_LIFE - newcomer)
        }
    }
}

/// A number that compares like a float.
fn ordered(x: f64) -> u64 {
    let bits = x.to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Uses experts one after another, eight by each token, with room for `room`, and counts hits.
    fn hits(eviction: Eviction, trace: &[u32], room: usize) -> usize {
        let mut residents = Residents::new(eviction, 64);
        let (mut hits, mut held) = (0, 0);
        for (now, &expert) in trace.iter().enumerate() {
            residents.used(expert, 1, (now / 8) as f64);
            if residents.is_resident(expert) {
                hits += 1;
                continue;
            }
            if held == room {
                let leaves = residents.next_to_leave(|_| true).unwrap();
                residents.left(leaves);
                held -= 1;
            }
            residents.entered(expert);
            held += 1;
        }
        hits
    }

    /// Hits if everybody knew what comes: Belady's optimum.
    fn best(trace: &[u32], room: usize) -> usize {
        let mut held: Vec<u32> = Vec::new();
        let mut hits = 0;
        for (at, expert) in trace.iter().enumerate() {
            if held.contains(expert) {
                hits += 1;
                continue;
            }
            let next = |e: &u32| trace[at + 1..].iter().position(|x| x == e).unwrap_or(usize::MAX);
            if held.len() == room {
                let leaves = (0..held.len()).max_by_key(|i| next(&held[*i])).unwrap();
                held.swap_remove(leaves);
            }
            held.push(*expert);
        }
        hits
    }

    /// Draws by Zipf's law.
    fn zipf(count: usize) -> Vec<u32> {
        let weights: Vec<f64> = (1..=64).map(|rank| 1.0 / f64::from(rank)).collect();
        let all: f64 = weights.iter().sum();
        let mut state = 7u64;
        let draw = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut x = (state >> 11) as f64 / (1u64 << 53) as f64 * all;
            let at = weights.iter().position(|w| {
                x -= w;
                x < 0.0
            });
            at.unwrap_or(63) as u32
        };
        (0..count).map(draw).collect()
    }

    #[test]
    fn each_way_evicts_by_its_rule() {
        let leaves = |eviction| {
            let mut residents = Residents::new(eviction, 3);
            for (now, expert) in [0, 1, 2, 0, 1, 0, 0, 2].into_iter().enumerate() {
                residents.used(expert, 1, now as f64);
                if !residents.is_resident(expert) {
                    residents.entered(expert);
                }
            }
            residents.next_to_leave(|_| true)
        };
        assert_eq!(leaves(Eviction::Fifo), Some(0));
        assert_eq!(leaves(Eviction::Lru), Some(1));
        assert_eq!(leaves(Eviction::Frequency), Some(1));
        let mut residents = Residents::new(Eviction::Lru, 2);
        residents.entered(1);
        assert_eq!(residents.next_to_leave(|expert| expert != 1), None);
        residents.left(1);
        assert_eq!(residents.next_to_leave(|_| true), None);
    }

    #[test]
    fn frequency_is_a_third_of_the_way_from_recency_to_the_best() {
        let trace = zipf(8000);
        for room in [16, 32] {
            let lru = hits(Eviction::Lru, &trace, room);
            let ours = hits(Eviction::Frequency, &trace, room);
            let best = best(&trace, room);
            let gained = (ours - lru) as f64 / (best - lru) as f64;
            assert!(gained > 0.33, "room {room}: {lru} {ours} {best}, {gained:.2} of the way");
        }
    }

    #[test]
    fn a_pass_over_all_experts_keeps_what_is_there() {
        let trace: Vec<u32> = (0..20).flat_map(|_| 0..64).collect();
        assert_eq!(hits(Eviction::Lru, &trace, 32), 0);
        let ours = hits(Eviction::Frequency, &trace, 32);
        assert!(ours >= 19 * 31, "{ours}");
    }

    #[test]
    fn what_was_used_long_ago_makes_way() {
        let old = (0..40_000).map(|i| i % 8);
        let new = (0..40_000).map(|i| 8 + i % 8);
        let trace: Vec<u32> = old.chain(new).collect();
        let ours = hits(Eviction::Frequency, &trace, 8);
        assert!(ours > 40_000 - 8 + 20_000, "{ours}");
    }

    proptest! {
        #[test]
        fn nobody_beats_the_best(
            trace in proptest::collection::vec(0u32..20, 1..300),
            room in 1usize..20,
        ) {
            let best = best(&trace, room);
            for eviction in Eviction::ALL {
                prop_assert!(hits(eviction, &trace, room) <= best, "{}", eviction.name());
            }
        }

        #[test]
        fn ranks_compare_like_numbers(a in any::<f64>(), b in any::<f64>()) {
            prop_assume!(!a.is_nan() && !b.is_nan() && a != b);
            prop_assert_eq!(a < b, ordered(a) < ordered(b));
        }
    }
}
