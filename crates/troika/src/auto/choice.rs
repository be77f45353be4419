//! Which devices compute a model where that is left open, and which layers each has: one function of
//! what is there, the model and its cache.

use troika_engine::KvLayout;
use troika_plan::{LayerRun, Strategy};

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
/// The share of the host's free memory that a GPU without memory of its own takes.
const OF_HOST: (u64, u64) = (2, 3);
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
    /// Bytes of the host's memory that are free, where the system tells.
    pub free: Option<u64>,
    /// The most bytes of the first GPU and of further ones, where the user sets limits.
    pub limits: Vec<Option<u64>>,
}

/// What a model needs, in bytes as GPUs hold them.
#[derive(Clone, Debug)]
pub struct ModelNeeds {
    /// Its name, for people.
    pub name: String,
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
    /// What the user should know.
    pub line: Option<String>,
}

/// Chooses the devices: the best GPU with as many whole layers as its memory takes, the rest on the
/// CPU.
pub fn choose(machine: &Machine, model: &ModelNeeds, wanted: AskedDevices) -> Choice {
    let alone = |why: Option<String>| {
        let line = why.map(|why| format!("{}: the CPU computes: {why}", model.name));
        Choice { line, ..Choice::default() }
    };
    if wanted.layers == Some(0) || (wanted.layers.is_none() && model.stored < WORTH_A_GPU) {
        return alone(None);
    }
    let cards = cards(machine);
    let Some(best) = cards.first() else {
        let wrong = |a: &&GpuAdapter| a.fault.is_some() && !a.is_software;
        let wrong = machine.adapters.iter().find(wrong);
        let why = wrong.map(|a| {
            let why = a.fault.as_deref().unwrap_or_default();
            format!("{} cannot be used: {why}", a.name)
        });
        let asked = wanted.layers.map(|_| "there is no GPU that can be used".to_string());
        return alone(why.or(asked));
    };
    let fit = Fit { model, cards: &cards, most: wanted.layers.unwrap_or(usize::MAX) };
    let Some((cache, placed)) = fit.best(wanted.context) else {
        return alone(Some("its cache cannot be counted; use a smaller context (-c)".into()));
    };
    let (layers, all) = (placed.count(), model.layers.len());
    if layers == 0 || (wanted.layers.is_none() && layers * WORTH_A_CARD < all) {
        let (name, room) = (&best.adapter.name, best.room);
        let (room, unit) = (figure(room, room), unit(room));
        return alone(Some(format!(
            "{name} has {room} {unit} left, which take {layers} of {all} layers with their cache"
        )));
    }
    let context = Some(cache.layout.context).filter(|c| *c < model.cache.context);
    Choice {
        adapters: cards.iter().take(placed.held.len()).map(|card| card.number).collect(),
        strategy: placed.strategy(model),
        context,
        kv_bytes: Some(cache.budget),
        line: Some(placed.line(model, &cards, context)),
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

/// The GPUs that are used: all with memory of their own, the largest first, or the first other one.
fn cards(machine: &Machine) -> Vec<Card<'_>> {
    let usable = |a: &GpuAdapter| a.fault.is_none() && !a.is_software;
    let adapters = || machine.adapters.iter().enumerate().filter(|(_, a)| usable(a));
    let own = |a: &GpuAdapter| a.free.or(a.memory.map(|m| m / 10 * 9)).unwrap_or(UNKNOWN);
    let of_host = |a: &GpuAdapter| {
        let host = machine.free.map(|free| free / OF_HOST.1 * OF_HOST.0);
        host.into_iter().chain(a.memory).min().unwrap_or(UNKNOWN)
    };
    let card = |(number, adapter), room| Card { number, adapter, room };
    let mut cards: Vec<Card<'_>> =
        adapters().filter(|(_, a)| a.has_own_memory).map(|a| card(a, own(a.1))).collect();
    cards.sort_by_key(|card| std::cmp::Reverse(card.room));
    if cards.is_empty() {
        cards.extend(adapters().next().map(|a| card(a, of_host(a.1))));
    }
    for (card, limit) in cards.iter_mut().zip(&machine.limits) {
        card.room = limit.unwrap_or(u64::MAX).min(card.room);
    }
    cards
}

/// A cache of some size.
#[derive(Clone)]
struct Cache {
    layout: KvLayout,
    budget: u64,
    /// Rows of each group.
    rows: Vec<u64>,
}

impl Cache {
    /// The cache of one sequence of this context, or of the budget that is given or asked for.
    fn of(model: &ModelNeeds, context: usize, budget: Option<u64>) -> Option<Cache> {
        let one = KvLayout { context, sequences: 1, budget: None, ..model.cache.clone() };
        let budget = budget.or(model.cache.budget);
        let budget = budget.map_or_else(|| one.bytes().ok(), Some)?;
        let layout = KvLayout { context, budget: Some(budget), ..model.cache.clone() };
        let rows = layout.rows().ok()?.into_iter().map(|rows| rows as u64).collect();
        Some(Cache { layout, budget, rows })
    }

    fn bytes(&self, state: &StateNeeds) -> u64 {
        self.rows.get(state.group).copied().unwrap_or(0).saturating_mul(state.row)
    }
}

/// What is placed where.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// The cache and where everything lies: as much of the context as leaves all layers on the cards,
    /// but not less than a usual one.
    fn best(&self, context: Option<usize>) -> Option<(Cache, Placed)> {
        let at = |context: usize, budget: Option<u64>| {
            let cache = Cache::of(self.model, context, budget)?;
            let placed = self.placed(&cache);
            Some((cache, placed))
        };
        let full = context.unwrap_or(self.model.cache.context);
        let least = if context.is_some() { full } else { full.min(LEAST_CONTEXT) };
        let (mut cache, mut placed) = at(full, None)?;
        // The most of something that leaves everything where it is.
        let grown = |placed: &Placed, most: u64, with: &dyn Fn(u64) -> Option<(Cache, Placed)>| {
            let alike = |n| with(n).filter(|(_, other)| other.is_alike(placed));
            alike(largest(most, &|n| alike(n).is_some()))
        };
        if !placed.is_whole(self.model) && least < full {
            (cache, placed) = at(least, None)?;
            let longer = |n: u64| at((n as usize * CONTEXT_STEP).clamp(least, full), None);
            let most = full.div_ceil(CONTEXT_STEP) as u64;
            (cache, placed) = grown(&placed, most, &longer).unwrap_or((cache, placed));
        }
        let KvLayout { budget: None, sequences: 2.., .. } = self.model.cache else {
            return Some((cache, placed));
        };
        // Further sequences have what is left.
        let (context, one) = (cache.layout.context, cache.budget);
        let more = |n: u64| at(context, Some(one.saturating_add((one / 16).saturating_mul(n))));
        let most = 16 * (self.model.cache.sequences as u64 - 1);
        Some(grown(&placed, most, &more).unwrap_or((cache, placed)))
    }

    /// Whole layers, or attention of all layers before experts, if that is faster.
    fn placed(&self, cache: &Cache) -> Placed {
        let whole = self.whole(cache);
        let split = match self.most > self.model.layers.len() && !whole.is_whole(self.model) {
            true => self.without_experts(cache),
            false => None,
        };
        let price = |placed: &Placed| self.price(placed);
        split.filter(|split| price(split) < price(&whole)).unwrap_or(whole)
    }

    /// Bytes of a layer besides experts; `None` where a card does not bind its cache.
    fn layer(&self, card: &Card<'_>, layer: &LayerNeeds, cache: &Cache) -> Option<u64> {
        let binds = |state: &StateNeeds| cache.bytes(state) <= card.adapter.binding;
        let states = layer.states.iter();
        let bytes = states.clone().map(|state| cache.bytes(state)).sum::<u64>();
        states.clone().all(binds).then(|| layer.weights.saturating_add(bytes))
    }

    /// Whole layers, with the head on the best card if all of them are on cards.
    fn whole(&self, cache: &Cache) -> Placed {
        let with_head = self.most > self.model.layers.len();
        let whole = with_head.then(|| self.whole_with(cache, self.model.head));
        match whole.filter(|placed| placed.count() == self.model.layers.len()) {
            Some(placed) => placed.with_head(self),
            None => self.whole_with(cache, 0),
        }
    }

    /// Whole layers, where the best card leaves room for the head.
    fn whole_with(&self, cache: &Cache, head: u64) -> Placed {
        let (mut rest, mut most) = (&self.model.layers[..], self.most);
        let mut placed = Placed::default();
        for (at, card) in self.cards.iter().enumerate() {
            let left = if at == 0 { head } else { 0 };
            let (mut held, before) = (self.model.values, rest.len());
            while let Some((last, others)) = rest.split_last().filter(|_| most > 0) {
                let Some(bytes) = self.layer(card, last, cache) else { break };
                let with = held.saturating_add(bytes).saturating_add(last.experts);
                if with.saturating_add(left) > card.room {
                    break;
                }
                (held, rest, most) = (with, others, most - 1);
            }
            if before == rest.len() {
                break;
            }
            placed.layers.push(before - rest.len());
            placed.held.push(held);
        }
        placed
    }

    /// All but experts on the best card, and experts of as many layers as fit beside.
    fn without_experts(&self, cache: &Cache) -> Option<Placed> {
        let (card, model) = (self.cards.first()?, self.model);
        let all = model.layers.iter().map(|layer| self.layer(card, layer, cache));
        let all = all.sum::<Option<u64>>()?.saturating_add(model.values).saturating_add(model.head);
        if all > card.room || model.layers.iter().all(|layer| layer.experts == 0) {
            return None;
        }
        let (mut held, mut experts) = (all, 0);
        for layer in model.layers.iter().rev() {
            if held.saturating_add(layer.experts) > card.room {
                break;
            }
            held += layer.experts;
            experts += 1;
        }
        let layers = vec![model.layers.len()];
        let (head, embed, experts) = (true, false, Some(experts));
        Some(Placed { layers, head, embed, experts, held: vec![held] })
    }

    /// Microseconds of a token, by what is read and what crosses over.
    fn price(&self, placed: &Placed) -> f64 {
        let own = self.cards.first().is_some_and(|card| card.adapter.has_own_memory);
        let card_rate = if own { CARD_RATE } else { HOST_RATE };
        let first = self.model.layers.len() - placed.count();
        let first_experts = placed.experts.map_or(first, |n| self.model.layers.len() - n);
        let mut price = 2.0 * CROSSING;
        for (i, layer) in self.model.layers.iter().enumerate() {
            let rate = |first: usize| if i < first { HOST_RATE } else { card_rate };
            price += layer.weights as f64 / rate(first) + layer.chosen as f64 / rate(first_experts);
            if i >= first && i < first_experts {
                price += 2.0 * CROSSING;
            }
        }
        price
    }
}

impl Placed {
    /// With the head on the best card, and the embedding, if that is alone and has room.
    fn with_head(mut self, fit: &Fit<'_>) -> Placed {
        if let (Some(held), Some(card)) = (self.held.first_mut(), fit.cards.first()) {
            (*held, self.head) = (*held + fit.model.head, true);
            let with = held.saturating_add(fit.model.embed);
            if self.layers.len() == 1 && with <= card.room {
                (*held, self.embed) = (with, true);
            }
        }
        self
    }

    /// Layers on cards.
    fn count(&self) -> usize {
        self.layers.iter().sum()
    }

    fn is_whole(&self, model: &ModelNeeds) -> bool {
        self.head
            && self.experts.is_none()
            && self.layers.iter().sum::<usize>() == model.layers.len()
    }

    /// Whether the same parts of the model lie on the same devices.
    fn is_alike(&self, other: &Placed) -> bool {
        (&self.layers, self.head, self.experts) == (&other.layers, other.head, other.experts)
    }

    fn strategy(&self, model: &ModelNeeds) -> Strategy {
        if self.embed {
            return Strategy::OneNamed(name(0));
        }
        let on = |device: String, layers| LayerRun { device, experts: None, layers };
        let cpu = |layers| on("cpu".into(), layers);
        let mut runs = vec![cpu(model.layers.len() - self.count())];
        for (at, layers) in self.layers.iter().enumerate().rev() {
            let own = self.experts.unwrap_or(*layers);
            if own < *layers {
                let experts = Some("cpu".into());
                runs.push(LayerRun { experts, ..on(name(at), layers - own) });
            }
            runs.push(on(name(at), own));
        }
        runs.extend((!self.head).then(|| cpu(0)));
        Strategy::Layers(runs)
    }

    /// The line for the user.
    fn line(&self, model: &ModelNeeds, cards: &[Card<'_>], context: Option<usize>) -> String {
        let all = model.layers.len();
        let on = |at: usize| {
            let (adapter, held) = (cards[at].adapter, self.held[at]);
            let memory = adapter.memory.filter(|_| adapter.has_own_memory);
            let whole = memory.unwrap_or(held);
            let (name, held, unit) = (&adapter.name, figure(held, whole), unit(whole));
            match (memory, adapter.has_own_memory) {
                (Some(memory), _) => format!("{name} ({held} of {} {unit})", figure(memory, whole)),
                (None, true) => format!("{name} ({held} {unit})"),
                (None, false) => format!("{name} ({held} {unit} of the host's memory)"),
            }
        };
        let mut line = format!("{}: ", model.name);
        match self.experts {
            Some(experts) => line.push_str(&format!(
                "{all} of {all} layers on {}, but the experts of {} on the CPU",
                on(0),
                all - experts
            )),
            None => {
                let of =
                    |at: usize| if at == 0 { format!(" of {all} layers") } else { String::new() };
                let each = self.layers.iter().enumerate();
                let each = each.map(|(at, layers)| format!("{layers}{} on {}", of(at), on(at)));
                line.push_str(&each.collect::<Vec<_>>().join(", "));
                match (all - self.count(), self.head) {
                    (0, true) => {}
                    (0, false) => line.push_str(", the head on the CPU"),
                    (rest, _) => line.push_str(&format!(", {rest} on the CPU")),
                }
            }
        }
        if let Some(context) = context {
            let full = model.cache.context;
            line.push_str(&format!(
                "; a context of {context} of {full} tokens fits (-c for another)"
            ));
        }
        line + "; --device cpu for the CPU alone"
    }
}

/// The name of the GPU at a place among those that are chosen.
fn name(at: usize) -> String {
    if at == 0 { "gpu".into() } else { format!("gpu{at}") }
}

/// The largest number up to which something holds, if it holds for none.
fn largest(most: u64, holds: &dyn Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Bytes as a number of a unit: GiB, or MiB where the whole is less.
fn figure(bytes: u64, whole: u64) -> String {
    let unit = if whole < 1 << 30 { 1 << 20 } else { 1 << 30 };
    format!("{:.1}", bytes as f64 / f64::from(unit))
}

fn unit(whole: u64) -> &'static str {
    if whole < 1 << 30 { "MiB" } else { "GiB" }
}
