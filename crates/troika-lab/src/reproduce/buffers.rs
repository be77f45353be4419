//! Claims about rows that gather in buffers of experts, with real kernels on two CPU devices, and
//! with counts of drawn routing.

use troika::engine::WantedLogits;
use troika::plan::{
    Dispatch, ExpertGroupPlan, ExpertSettings, ExpertSplit, Overflow, Plan, Policy, Tiers, median,
};
use troika::program::{ExpertCounts, ExpertRows, LayerCounts, RoutedShape};
use troika::weights::{Quant, WeightStore};
use troika::{BoundModel, Model, OpenOptions, Planned, Source, open_devices};
use troika_check::Random;
use troika_engine::GroupStats;
use troika_graph::DType;
use troika_model::{families, presets};

use super::experts::{novel, zipf_routing};
use super::lab::Lab;
use super::outcome::{Item, Outcome};
use super::presets::MANY_EXPERTS;
use super::two_cpus::{plain, shared};
use crate::{Result, Shape};

/// The claim's numbers: experts, experts of a row, rows of a chunk, of a prompt, and of a buffer.
const EXPERTS: usize = 128;
const TOP_K: usize = 8;
const CHUNK: usize = 128;
const ROWS: usize = 2048;
const BUFFER: usize = 64;
/// Rows of the prompts that are compared.
const COMPARED: usize = 400;
const REPETITIONS: usize = 5;

/// A model that is opened many times, each time with another plan.
enum Subject {
    BuiltIn,
    /// Random weights, with experts as many as the claim's: hidden size, width of an expert, type.
    Random(usize, usize, DType),
}

impl Subject {
    fn name(&self) -> &'static str {
        match self {
            Subject::BuiltIn => "built-in model",
            Subject::Random(..) => "random weights",
        }
    }

    fn open(&self, options: &OpenOptions) -> Result<Model> {
        self.open_with(options, |_| ())
    }

    /// Opens it with a changed plan.
    fn open_with(&self, options: &OpenOptions, change: impl Fn(&mut Plan)) -> Result<Model> {
        let bound = match *self {
            Subject::BuiltIn => BoundModel::open(Source::BuiltIn, options)?,
            Subject::Random(hidden, inter, dtype) => {
                let spec = many_experts(hidden, inter, dtype)?.spec;
                let store = WeightStore::synthetic(&spec, dtype, 1, Quant::None);
                BoundModel { spec, store, devices: open_devices(&options.devices)? }
            }
        };
        let Planned { mut plan, model, .. } = bound.plan(options)?;
        change(&mut plan);
        let options = OpenOptions { plan: plan.into(), ..options.clone() };
        Ok(Model::open_bound(self.name(), model, &options)?)
    }

    /// Token ids: of a text, or drawn.
    fn tokens(&self, count: usize) -> Result<Vec<u32>> {
        match self {
            Subject::BuiltIn => Ok(novel()?[..count].to_vec()),
            Subject::Random(..) => Ok(drawn(count)),
        }
    }
}

/// Two layers of a model with many experts, made narrower.
fn many_experts(hidden: usize, inter: usize, dtype: DType) -> Result<Shape> {
    let mut shape = Shape::find(MANY_EXPERTS, dtype)?;
    let mut config = presets::config(MANY_EXPERTS).unwrap_or_default();
    let heads = hidden / 64;
    for (field, number) in [
        ("num_hidden_layers", 2),
        ("hidden_size", hidden),
        ("moe_intermediate_size", inter),
        ("num_attention_heads", heads),
        ("num_key_value_heads", heads / 2),
        ("head_dim", 64),
        ("vocab_size", VOCAB),
        ("max_position_embeddings", 2 * ROWS),
    ] {
        config[field] = number.into();
    }
    let model = families::from_config(&config)
        .map_err(|error| troika::Error::Config { model: MANY_EXPERTS.into(), error })?;
    shape.spec = model.spec;
    Ok(shape)
}

const VOCAB: usize = 1024;

fn drawn(count: usize) -> Vec<u32> {
    let mut random = Random(11);
    (0..count).map(|_| random.below(VOCAB) as u32).collect()
}

fn buffers(dispatch: Dispatch) -> ExpertSettings {
    ExpertSettings { group: Some(1), dispatch, ..ExpertSettings::default() }
}

/// The logits of all tokens, a row for each.
fn logits(model: &Model, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
    let mut rows = Vec::with_capacity(tokens.len());
    let mut keep = |_: usize, row: &mut [f32]| rows.push(row.to_vec());
    model.session()?.feed(tokens, WantedLogits::All, &mut keep)?;
    Ok(rows)
}

/// What two ways to compute logits differ by.
#[derive(Default)]
struct Difference {
    most: f32,
    /// Predicted tokens, and how many of them are the same.
    tokens: usize,
    same: usize,
}

impl Difference {
    fn add(&mut self, a: &[Vec<f32>], b: &[Vec<f32>]) {
        let best = |row: &[f32]| {
            (0..row.len()).max_by(|x, y| row[*x].total_cmp(&row[*y])).unwrap_or_default()
        };
        for (a, b) in a.iter().zip(b) {
            let most = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            self.most = self.most.max(most);
            self.same += usize::from(best(a) == best(b));
        }
        self.tokens += a.len().max(b.len());
    }
}

/// C01.
pub fn same_as_plain(_: &mut Lab) -> Result<Outcome> {
    let (mut words, mut pass) = (Vec::new(), true);
    for subject in [Subject::BuiltIn, Subject::Random(256, 64, DType::F32)] {
        let tokens = subject.tokens(COMPARED)?;
        let (mut differs, mut ways) = (Difference::default(), 0);
        for chunk in [32, 128] {
            let expected = logits(&subject.open(&plain(chunk, ROWS))?, &tokens)?;
            for rows in [1, 7, 64, 256] {
                for (group, policy) in
                    [(1, Policy::InOrder), (1, Policy::OutOfOrder), (4, Policy::InOrder)]
                {
                    let settings =
                        ExpertSettings { group: Some(group), ..buffers(Dispatch::LayerMajor) };
                    let options = shared(plain(chunk, ROWS), Tiers::Rows(rows), settings);
                    let model = subject.open_with(&options, |plan| plan.prefill.policy = policy)?;
                    differs.add(&logits(&model, &tokens)?, &expected);
                    ways += 1;
                }
            }
        }
        pass &= differs.most <= 1e-5 && differs.same == differs.tokens;
        words.push(format!(
            "{}, {ways} ways: {:.1e} at most, {} of {} tokens the same",
            subject.name(),
            differs.most,
            differs.same,
            differs.tokens
        ));
    }
    let note = "Logits of a prompt of 400 tokens on two CPU devices against one; buffers of 1, 7, 64 \
        and 256 rows, for an expert or for four, chunks of 32 and 128, both orders in which ready \
        tasks run.";
    Ok(Outcome::words("1e-5; equal", words.join("\n"), pass).noted(note))
}

/// M28.
pub fn padded_groups(_: &mut Lab) -> Result<Outcome> {
    let subject = Subject::Random(256, 64, DType::F32);
    let room = CHUNK;
    let settings = ExpertSettings { overflow: Overflow::Pad, ..ExpertSettings::default() };
    let options = shared(plain(room, ROWS), Tiers::Chunk, settings);
    let (one, groups) = (subject.open(&plain(room, ROWS))?, subject.open(&options)?);
    let mut differs = Difference::default();
    // Rows of the same token choose the same experts: all of the room, or nothing.
    let prompts = [drawn(room), drawn(77), drawn(1), vec![5; room]];
    let mut counts: Vec<u64> = Vec::new();
    for prompt in &prompts {
        let before = groups.engine()?.group_stats();
        differs.add(&logits(&groups, prompt)?, &logits(&one, prompt)?);
        let after = groups.engine()?.group_stats();
        counts.extend(rows_since(&before, &after));
    }
    let has = |rows: u64| counts.contains(&rows);
    let ragged = counts.iter().filter(|n| (1..room as u64).contains(*n)).count();
    let stats = groups.engine()?.group_stats();
    let experts = stats.layers.values().flat_map(|l| &l.experts);
    let lost: u64 = experts.map(|e| e.overflow + e.dropped).sum();
    let pass = differs.most <= 1e-5 && has(0) && has(room as u64) && ragged > 0 && lost == 0;
    let note = format!(
        "128 experts in groups of 16 with room for {room} rows each, 8 of a row, random weights in \
         32 bits: prompts of drawn tokens ({room}, 77 and 1), and {room} times the same. Of {} runs \
         of experts {} had no row, {ragged} some, {} all of their room; {lost} rows overflowed.",
        counts.len(),
        counts.iter().filter(|n| **n == 0).count(),
        counts.iter().filter(|n| **n == room as u64).count(),
    );
    let item = Item::new("largest difference of logits", 0.0, f64::from(differs.most));
    Ok(Outcome::numbers(vec![item], |_| pass).noted(note))
}

/// Rows of each expert between two looks.
fn rows_since(before: &GroupStats, after: &GroupStats) -> Vec<u64> {
    let of = |(layer, counts): (&usize, &LayerCounts)| {
        let earlier = before.layers.get(layer).map_or(&[][..], |l| &l.experts);
        let earlier = |e: usize| earlier.get(e).map_or(0, |e| e.rows);
        counts.experts.iter().enumerate().map(|(i, e)| e.rows - earlier(i)).collect::<Vec<_>>()
    };
    after.layers.iter().flat_map(of).collect()
}

/// C02.
pub fn fewer_calls(_: &mut Lab) -> Result<Outcome> {
    let zipf = zipf_routing().layers.swap_remove(0).ids;
    let mut random = Random(3);
    let even = (0..ROWS).flat_map(|_| {
        let mut order: Vec<u16> = (0..EXPERTS as u16).collect();
        (0..TOP_K).for_each(|i| order.swap(i, i + random.below(EXPERTS - i)));
        order.truncate(TOP_K);
        order
    });
    let even: Vec<u16> = even.collect();
    let (mut words, mut pass) = (Vec::new(), true);
    for (name, ids) in [("even", even), ("Zipf", zipf)] {
        let ids: Vec<i32> = ids.into_iter().map(i32::from).collect();
        let [(calls, counts), (each, _)] =
            [count(Dispatch::LayerMajor, &ids)?, count(Dispatch::PerChunk, &ids)?];
        let bound: u64 = counts.iter().map(|e| e.rows.div_ceil(BUFFER as u64)).sum();
        let grouped: u64 = counts.iter().map(|e| e.grouped).sum();
        let padding: u64 = counts.iter().map(|e| e.padding).sum();
        let fill = 100.0 * grouped as f64 / (grouped + padding).max(1) as f64;
        pass &= fill >= 90.0 && calls <= bound + EXPERTS as u64 && calls < each;
        words.push(format!(
            "counted, {name}: {fill:.1} % full, {calls} calls (bound {bound}), by chunk {each}"
        ));
    }
    let (ratio, fill) = timed()?;
    pass &= ratio > 1.0 && fill >= 90.0;
    words.push(format!("two CPU devices: {ratio:.2} times as fast as by chunk, {fill:.1} % full"));
    let note = "2048 tokens in chunks of 128, 8 of 128 experts, buffers of 64 rows. A last buffer of an \
        expert that is less than half full goes to the device that routes, without padding, and \
        counts as a call. Timed: random weights of 8 bits, 2 layers of width 512, a thread for each \
        device, in turns.";
    Ok(Outcome::words("90 %; calls within the bound and experts", words.join("\n"), pass)
        .noted(note))
}

/// Calls, and counts of experts, for the experts of all rows.
fn count(dispatch: Dispatch, ids: &[i32]) -> Result<(u64, Vec<ExpertCounts>)> {
    let group = |e| ExpertGroupPlan::new("b", vec![e], BUFFER);
    let groups = (0..EXPERTS).map(group).collect();
    let split = ExpertSplit { groups, overflow: Overflow::Cpu, dispatch, expected: Vec::new() };
    let gathers = dispatch == Dispatch::LayerMajor;
    let pairs = TOP_K * if gathers { ROWS } else { CHUNK };
    let rows = ExpertRows::room(&split, pairs, 1);
    let shape =
        RoutedShape { experts: EXPERTS, top_k: TOP_K, rows, align: 1, pairs, most_rest: CHUNK };
    let (mut packed, mut counts) = (ExpertRows::new(&split, shape), LayerCounts::default());
    let chunks = ids.chunks(CHUNK * TOP_K);
    let last = chunks.len() - 1;
    for (i, chunk) in chunks.enumerate() {
        let place = if gathers { (i, i == last) } else { (0, true) };
        let routed = packed.route(place, chunk, None, &mut counts);
        routed
            .map_err(|why| troika_device::DeviceError::Submission { task: "route".into(), why })?;
    }
    Ok((counts.group_runs + counts.rest_runs, counts.experts))
}

/// How much faster rows that gather are than chunks, and how full their buffers, in per cent.
fn timed() -> Result<(f64, f64)> {
    let subject = Subject::Random(512, 256, DType::Q8_0);
    let open = |dispatch| {
        let options = shared(plain(CHUNK, ROWS), Tiers::Rows(BUFFER), buffers(dispatch));
        subject.open_with(&options, |plan| plan.prefill.chunks_in_flight = ROWS / CHUNK)
    };
    let models = [open(Dispatch::PerChunk)?, open(Dispatch::LayerMajor)?];
    let tokens = drawn(ROWS);
    let mut seconds = [const { Vec::new() }; 2];
    for repetition in 0..=REPETITIONS {
        for (model, seconds) in models.iter().zip(&mut seconds) {
            let mut session = model.session()?;
            let began = model.clock().now();
            session.feed(&tokens, WantedLogits::None, &mut |_, _| {})?;
            // The first run touches new memory.
            if repetition > 0 {
                seconds.push((model.clock().now() - began).as_secs_f64());
            }
        }
    }
    let [by_chunk, gathered] = seconds.map(|s| median(s).unwrap_or(f64::NAN));
    let (rows, padding) = models[1].engine()?.group_stats().group_rows();
    Ok((by_chunk / gathered, 100.0 * (rows - padding) as f64 / rows.max(1) as f64))
}
