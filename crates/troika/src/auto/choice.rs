//! Which devices compute a model where that is left open, and which layers each has: one function of
//! what is there, the model and its cache.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use troika_engine::{KvLayout, largest};
use troika_plan::{LayerRun, Strategy};

use crate::budget::HostMemory;
use crate::devices::GpuAdapter;

/// A model with fewer bytes of weights opens no GPU by itself: the CPU has read them before a driver
/// is loaded.
pub const WORTH_A_GPU: u64 = 256 << 20;
/// A GPU that takes fewer than one of so many layers is left alone.
const WORTH_A_CARD: usize = 10;
/// The shortest context for which layers leave a GPU.
const LEAST_CONTEXT: usize = 8192;
/// Contexts that a GPU limits are multiples of this.
const CONTEXT_STEP: usize = 1024;
/// Memory of a GPU whose driver does not tell.
const UNKNOWN: u64 = 2 << 30;
/// What a token costs, in bytes per microsecond: reading weights in the host's memory and in a
/// card's; and the microseconds in which values cross over.
const HOST_RATE: f64 = 40e3;
const CARD_RATE: f64 = 250e3;
const CROSSING: f64 = 50.0;

/// What can compute besides the CPU.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Adapters, in the order of their numbers.
    pub adapters: Vec<GpuAdapter>,
    /// The host's memory, where the system tells.
    pub host: Option<HostMemory>,
    /// The most bytes of the first GPU and of further ones.
    pub limits: Vec<u64>,
}

/// What a model needs, in bytes as GPUs hold them.
#[derive(Clone, Debug)]
pub struct ModelNeeds {
    /// Weights in the files.
    pub stored: u64,
    /// Its layers.
    pub layers: Vec<LayerNeeds>,
    /// The weights of the head.
    pub head: u64,
    /// Those of the embedding.
    pub embed: u64,
    /// Values and scratch memory, at most.
    pub values: u64,
    /// The cache of the longest sequence, and how many share it.
    pub cache: KvLayout,
}

/// What a layer needs.
#[derive(Clone, Debug, Default)]
pub struct LayerNeeds {
    /// Weights besides experts.
    pub weights: u64,
    /// Weights of experts, with those that every token uses.
    pub experts: u64,
    /// The part of these that one token reads.
    pub chosen: u64,
    /// Its states: the group of the cache, and bytes of a row.
    pub states: Vec<StateNeeds>,
}

/// What a state of a layer needs.
#[derive(Clone, Copy, Debug)]
pub struct StateNeeds {
    /// Its group in the cache.
    pub group: usize,
    /// Bytes of a row.
    pub row: u64,
}

/// What the user asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct AskedDevices {
    /// Layers on the GPU; more than there are: the head, too. `None`: what is best.
    pub layers: Option<usize>,
    /// The context; `None`: the model's, or what fits.
    pub context: Option<usize>,
}

/// What computes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// The numbers of the adapters, the best first; none: the CPU alone.
    pub adapters: Vec<usize>,
    /// How the model is divided over `gpu`, `gpu1`, ... and `cpu`.
    pub strategy: Strategy,
    /// The context, if the GPU's memory limits it.
    pub context: Option<usize>,
    /// The budget of the cache, where a GPU has a part of it.
    pub kv_bytes: Option<u64>,
    /// Bytes on each adapter: weights, cache, values.
    pub held: Vec<u64>,
    /// What computes, or why the CPU does, in words; empty where nothing speaks for a GPU.
    pub line: String,
}

/// Chooses the devices: the best GPU with as many whole layers as its memory takes, the rest on the
/// CPU.
pub fn choose(machine: &Machine, model: &ModelNeeds, wanted: AskedDevices) -> Choice {
    let alone = |line: String| Choice { line, ..Choice::default() };
    if wanted.layers == Some(0) || (wanted.layers.is_none() && model.stored < WORTH_A_GPU) {
        return Choice::default();
    }
    let cards = machine.cards();
    let Some(best) = cards.first() else {
        let mut wrong = machine
            .adapters
            .iter()
            .filter(|a| !a.is_software)
            .filter_map(|a| Some(format!("{} cannot be used: {}", a.name, a.fault.as_ref()?)));
        let asked = || wanted.layers.map(|_| "there is no GPU that can be used".to_string());
        return wrong.next().or_else(asked).map(alone).unwrap_or_default();
    };
    let fit = Fit { model, cards: &cards, most: wanted.layers.unwrap_or(usize::MAX) };
    let Some((layout, placed)) = fit.best(wanted.context) else {
        return alone("its cache cannot be counted; use a smaller context (-c)".into());
    };
    let (layers, all) = (placed.count(), model.layers.len());
    if layers == 0 || (wanted.layers.is_none() && layers * WORTH_A_CARD < all) {
        return alone(format!(
            "{} has {} left, which take {layers} of {all} layers with their cache",
            best.adapter.name,
            size(best.room, None)
        ));
    }
    let context = Some(layout.context).filter(|c| *c < model.cache.context);
    Choice {
        adapters: cards.iter().take(placed.held.len()).map(|card| card.number).collect(),
        strategy: placed.strategy(all),
        context,
        kv_bytes: layout.budget,
        line: fit.line(&placed, context),
        held: placed.held,
    }
}

/// A GPU that may be chosen.
struct Card<'a> {
    number: usize,
    adapter: &'a GpuAdapter,
    /// Bytes that may be taken.
    room: u64,
}

impl Machine {
    /// The GPUs that are used: all with memory of their own, the largest first, or the first other one.
    fn cards(&self) -> Vec<Card<'_>> {
        let room = |a: &GpuAdapter| match a.has_own_memory {
            true => a.free.or(a.memory.map(|m| m / 10 * 9)),
            false => self.host.map(HostMemory::gpu).into_iter().chain(a.memory).min(),
        };
        let card =
            |(number, adapter)| Card { number, adapter, room: room(adapter).unwrap_or(UNKNOWN) };
        let usable = |a: &GpuAdapter| a.fault.is_none() && !a.is_software;
        let all = self.adapters.iter().enumerate().filter(|(_, a)| usable(a));
        let mut cards: Vec<Card<'_>> = all.map(card).collect();
        cards.sort_by_key(|card| (!card.adapter.has_own_memory, Reverse(card.room)));
        let own = cards.iter().filter(|card| card.adapter.has_own_memory).count();
        cards.truncate(own.max(1));
        for (card, limit) in cards.iter_mut().zip(&self.limits) {
            card.room = card.room.min(*limit);
        }
        cards
    }

    /// The devices that a plan names, in the user's notation; `None` if it names others than these GPUs
    /// and the CPU.
    pub fn named(&self, devices: &[String]) -> Option<Vec<String>> {
        let cards = self.cards();
        let gpu = |at: usize| (name(at), format!("{}=gpu:{}", name(at), cards[at].number));
        let cpu = ("cpu".to_string(), "cpu".to_string());
        let known: BTreeMap<_, _> = (0..cards.len()).map(gpu).chain([cpu]).collect();
        devices.iter().map(|device| known.get(device).cloned()).collect()
    }
}

/// What is placed where.
#[derive(Default)]
struct Placed {
    /// Layers of each card: the best has the last ones.
    layers: Vec<usize>,
    /// Whether the best card has the head, and the embedding, too.
    head: bool,
    embed: bool,
    /// Layers, the last ones, whose experts are on the card; `None`: all that are there.
    experts: Option<usize>,
    /// Bytes of each card.
    held: Vec<u64>,
}

/// What places layers.
struct Fit<'a> {
    model: &'a ModelNeeds,
    cards: &'a [Card<'a>],
    /// The most layers on cards.
    most: usize,
}

impl Fit<'_> {
    /// The cache and where everything lies: as much of the context, and then of the cache of further
    /// sequences, as leaves all layers where they are with a usual context.
    fn best(&self, context: Option<usize>) -> Option<(KvLayout, Placed)> {
        let cache = &self.model.cache;
        let full = context.unwrap_or(cache.context);
        let least = if context.is_some() { full } else { full.min(LEAST_CONTEXT) };
        let steps = (full - least).div_ceil(CONTEXT_STEP);
        let further = if cache.budget.is_none() { 16 * (cache.sequences - 1) } else { 0 };
        let at = |step: usize| {
            let context = full.min(least + step.min(steps) * CONTEXT_STEP);
            let mut layout = KvLayout { context, ..cache.clone() };
            if layout.budget.is_none() {
                let one = KvLayout { sequences: 1, ..layout.clone() }.bytes().ok()?;
                let others = (one / 16).saturating_mul(step.saturating_sub(steps) as u64);
                layout.budget = Some(one.saturating_add(others));
            }
            let placed = self.placed(&layout.rows().ok()?);
            Some((layout, placed))
        };
        let is_whole = |placed: &Placed| placed.head && placed.experts.is_none();
        let first = if is_whole(&at(steps)?.1) { steps } else { 0 };
        let (_, placed) = at(first)?;
        let alike = |step: usize| at(step).is_some_and(|(_, other)| other.is_alike(&placed));
        at(first + largest(steps + further - first, |more| alike(first + more)))
    }

    /// Whole layers, or attention of all layers before experts, if that is faster.
    fn placed(&self, rows: &[usize]) -> Placed {
        let whole = self.whole(rows);
        let split = (!whole.head).then(|| self.without_experts(rows)).flatten();
        split.filter(|split| self.price(split) < self.price(&whole)).unwrap_or(whole)
    }

    /// Bytes of a layer besides experts, where groups of the cache have so many rows; `None` where a card
    /// does not bind its cache.
    fn layer(&self, card: &Card<'_>, layer: &LayerNeeds, rows: &[usize]) -> Option<u64> {
        layer.states.iter().try_fold(layer.weights, |sum, state| {
            let bytes = state.row.saturating_mul(*rows.get(state.group)? as u64);
            (bytes <= card.adapter.binding).then(|| sum.saturating_add(bytes))
        })
    }

    /// Of each layer from the last one on some bytes, as far as the cards take them; the best one beside
    /// `first` bytes of other things.
    fn fill(&self, first: u64, part: &dyn Fn(&Card<'_>, &LayerNeeds) -> Option<u64>) -> Placed {
        let layers = &self.model.layers;
        let mut rest = &layers[layers.len().saturating_sub(self.most)..];
        let mut placed = Placed::default();
        for (at, card) in self.cards.iter().enumerate() {
            let (before, mut held) = (rest.len(), if at == 0 { first } else { self.model.values });
            while let Some((last, others)) = rest.split_last() {
                let with = part(card, last).map(|bytes| held.saturating_add(bytes));
                let Some(with) = with.filter(|with| *with <= card.room) else { break };
                (held, rest) = (with, others);
            }
            if before == rest.len() {
                break;
            }
            placed.layers.push(before - rest.len());
            placed.held.push(held);
        }
        placed
    }

    /// Whole layers; if all of them are on cards, with the head on the best one, and the embedding, if
    /// that is alone and has room.
    fn whole(&self, rows: &[usize]) -> Placed {
        let (model, all) = (self.model, self.model.layers.len());
        let part = |card: &Card<'_>, layer: &LayerNeeds| {
            Some(self.layer(card, layer, rows)?.saturating_add(layer.experts))
        };
        let mut placed = self.fill(model.values.saturating_add(model.head), &part);
        if self.most <= all || placed.count() < all {
            return self.fill(model.values, &part);
        }
        placed.head = true;
        if let ([held], [card, ..]) = (&mut placed.held[..], self.cards) {
            let with = held.saturating_add(model.embed);
            placed.embed = with <= card.room;
            *held = if placed.embed { with } else { *held };
        }
        placed
    }

    /// All but experts on the best card, and experts of as many layers as fit beside.
    fn without_experts(&self, rows: &[usize]) -> Option<Placed> {
        let (model, card) = (self.model, self.cards.first()?);
        let all = model.layers.len();
        let has_experts = model.layers.iter().any(|layer| layer.experts > 0);
        let mut bytes = model.layers.iter().map(|layer| self.layer(card, layer, rows));
        let others = model.values.saturating_add(model.head);
        let first = bytes.try_fold(others, |sum, bytes| Some(sum.saturating_add(bytes?)))?;
        if first > card.room || !has_experts || self.most <= all {
            return None;
        }
        let best = Fit { cards: &self.cards[..1], ..*self };
        let filled = best.fill(first, &|_, layer| Some(layer.experts));
        let held = vec![filled.held.first().copied().unwrap_or(first)];
        let (layers, experts) = (vec![all], Some(filled.count()));
        Some(Placed { layers, head: true, embed: false, experts, held })
    }

    /// Microseconds of a token, by what is read and what crosses over.
    fn price(&self, placed: &Placed) -> f64 {
        let own = self.cards.first().is_some_and(|card| card.adapter.has_own_memory);
        let first = self.model.layers.len() - placed.count();
        let experts = placed.experts.map_or(first, |n| self.model.layers.len() - n);
        let read = |bytes: u64, on_card: bool| {
            bytes as f64 / if on_card && own { CARD_RATE } else { HOST_RATE }
        };
        let layers = self.model.layers.iter().enumerate();
        let layers =
            layers.map(|(i, l)| read(l.weights, i >= first) + read(l.chosen, i >= experts));
        2.0 * CROSSING * (1 + experts - first) as f64 + layers.sum::<f64>()
    }

    /// The line for the user.
    fn line(&self, placed: &Placed, context: Option<usize>) -> String {
        let all = self.model.layers.len();
        let on = |(at, layers): (usize, &usize)| {
            let adapter = self.cards[at].adapter;
            let memory = adapter.memory.filter(|_| adapter.has_own_memory);
            let of = if at == 0 { format!(" of {all} layers") } else { String::new() };
            let place = if adapter.has_own_memory { "" } else { " of the host's memory" };
            let held = size(placed.held[at], memory);
            format!("{layers}{of} on {} ({held}{place})", adapter.name)
        };
        let cards = placed.layers.iter().enumerate().map(on).collect::<Vec<_>>().join(", ");
        let rest = match (placed.experts, all - placed.count(), placed.head) {
            (Some(n), ..) => format!(", but the experts of {} on the CPU", all - n),
            (None, 0, true) => String::new(),
            (None, 0, false) => ", the head on the CPU".into(),
            (None, rest, _) => format!(", {rest} on the CPU"),
        };
        let full = self.model.cache.context;
        let context = context.map_or(String::new(), |context| {
            format!("; a context of {context} of {full} tokens fits (-c for another)")
        });
        format!("{cards}{rest}{context}")
    }
}

impl Placed {
    /// Layers on cards.
    fn count(&self) -> usize {
        self.layers.iter().sum()
    }

    /// Whether the same parts of the model lie on the same devices.
    fn is_alike(&self, other: &Placed) -> bool {
        (&self.layers, self.head, self.experts) == (&other.layers, other.head, other.experts)
    }

    fn strategy(&self, all: usize) -> Strategy {
        if self.embed {
            return Strategy::OneNamed(name(0));
        }
        let on = |device: String, layers| LayerRun { device, experts: None, layers };
        let cpu = |layers| on("cpu".into(), layers);
        let mut runs = vec![cpu(all - self.count())];
        for (at, layers) in self.layers.iter().enumerate().rev() {
            let own = self.experts.unwrap_or(*layers);
            let experts = Some("cpu".into());
            let split = (own < *layers).then(|| LayerRun { experts, ..on(name(at), layers - own) });
            runs.extend(split);
            runs.push(on(name(at), own));
        }
        runs.extend((!self.head).then(|| cpu(0)));
        Strategy::Layers(runs)
    }
}

/// The name of the GPU at a place among those that are chosen.
fn name(at: usize) -> String {
    if at == 0 { "gpu".into() } else { format!("gpu{at}") }
}

/// Bytes for people, of a whole where there is one.
fn size(bytes: u64, whole: Option<u64>) -> String {
    let is_small = whole.unwrap_or(bytes) < 1 << 30;
    let (unit, name) = if is_small { (1u64 << 20, "MiB") } else { (1 << 30, "GiB") };
    let count = |bytes: u64| format!("{:.1}", bytes as f64 / unit as f64);
    let whole = whole.map_or(String::new(), |whole| format!(" of {}", count(whole)));
    format!("{}{whole} {name}", count(bytes))
}
