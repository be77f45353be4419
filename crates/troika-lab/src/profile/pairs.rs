//! Measures pairs of devices, and a device's costs besides runs: mutual slowdown, hand-overs, lists
//! and copies.

use std::sync::Arc;

use troika_device::{
    Buffer, CommandList, CopyRows, DeviceError, Point, Signal, SpaceId, Submission, TaskTime,
    Timelines, View, Wait, Waiting, Work,
};
use troika_model::lower::SegmentKind;
use troika_solve::{DeviceSample, PairSample, Profile, ProfiledGraph, RunSample, Slowdown, Spread};
use troika_weights::WeightStore;

use super::bench::{Bench, LoadedGraph, nanoseconds};
use super::lost;

/// Numbers of rows at which devices run side by side.
const SIDE_BY_SIDE: [usize; 3] = [1, 16, 128];
/// How long (in nanoseconds) and how often to measure.
const TOGETHER_NS: f64 = 60e6;
const TIMES: usize = 5;
/// Hand-overs from one device to another and back.
const ROUND_TRIPS: usize = 200;
/// Lists of one task.
const LISTS: usize = 50;
/// Sizes of copies in bytes.
const COPIES: [usize; 2] = [64 << 10, 4 << 20];

/// Measures all pairs of devices, and each device alone.
pub(super) fn measure(
    benches: &mut [Bench<'_>],
    store: &WeightStore,
    (graphs, profile): (&[Vec<ProfiledGraph>], &mut Profile),
) -> Result<(), DeviceError> {
    let mut large = Vec::new();
    let mut small = Vec::new();
    for (d, bench) in benches.iter_mut().enumerate() {
        large.push(load(bench, store, pick(&graphs[d], profile, (d, true)))?);
        small.push(load(bench, store, pick(&graphs[d], profile, (d, false)))?);
    }
    for d in 0..benches.len() {
        profile.devices[d] = device(&mut benches[d], small[d].as_ref())?;
    }
    profile.pairs.clear();
    for a in 0..benches.len() {
        for b in (0..benches.len()).filter(|b| *b > a) {
            let mut ab = PairSample {
                from: a,
                to: b,
                predicted_ns: Spread::default(),
                blocking_ns: Spread::default(),
                slowdowns: Vec::new(),
            };
            let mut ba = PairSample { from: b, to: a, ..ab.clone() };
            if let (Some(x), Some(y)) = (&small[a], &small[b]) {
                for waiting in [Waiting::Poll, Waiting::Block] {
                    let (there, back) = round_trips(benches, ((a, x), (b, y)), waiting)?;
                    match waiting {
                        Waiting::Poll => (ab.predicted_ns, ba.predicted_ns) = (there, back),
                        Waiting::Block => (ab.blocking_ns, ba.blocking_ns) = (there, back),
                    }
                }
            }
            if let (Some(x), Some(y)) = (&large[a], &large[b]) {
                for rows in SIDE_BY_SIDE.into_iter().filter(|n| *n <= x.most && *n <= y.most) {
                    let (on_a, on_b) = side_by_side(benches, ((a, x), (b, y)), rows)?;
                    ab.slowdowns.push(Slowdown { rows, factor: on_b });
                    ba.slowdowns.push(Slowdown { rows, factor: on_a });
                }
            }
            profile.pairs.extend([ab, ba]);
        }
    }
    Ok(())
}

/// A graph that represents others.
struct Chosen {
    loaded: LoadedGraph,
    /// The most rows.
    most: usize,
}

/// The feed-forward, else the slowest graph; or the fastest.
fn pick<'g>(
    graphs: &'g [ProfiledGraph],
    profile: &Profile,
    (device, large): (usize, bool),
) -> Option<&'g ProfiledGraph> {
    let whole = |r: &&RunSample| (r.device, r.rows, r.cached, r.share) == (device, 1, 0, 64);
    let runs = || profile.runs.iter().filter(whole);
    let by_time = |a: &&RunSample, b: &&RunSample| a.ns.median.total_cmp(&b.ns.median);
    let ffn = || runs().find(|r| matches!(r.segment, SegmentKind::Ffn | SegmentKind::Experts));
    let found = match large {
        true => ffn().or_else(|| runs().max_by(by_time)),
        false => runs().min_by(by_time),
    }?;
    graphs.iter().find(|g| g.name == found.graph)
}

fn load(
    bench: &mut Bench<'_>,
    store: &WeightStore,
    graph: Option<&ProfiledGraph>,
) -> Result<Option<Chosen>, DeviceError> {
    let Some(graph) = graph else { return Ok(None) };
    let most = graph.layers.first().map_or(1, |g| g.max_rows());
    Ok(Some(Chosen { loaded: bench.load(graph, store)?, most }))
}

fn timed(tasks: Vec<Submission>) -> CommandList {
    CommandList { tasks, timed: true, ..CommandList::default() }
}

/// Runs both devices at once. Returns the slowdown of each.
fn side_by_side(
    benches: &mut [Bench<'_>],
    ((a, x), (b, y)): ((usize, &Chosen), (usize, &Chosen)),
    rows: usize,
) -> Result<(f64, f64), DeviceError> {
    let mut alone = [0.0; 2];
    for (i, (d, chosen)) in [(a, x), (b, y)].into_iter().enumerate() {
        if benches[d].device.clock().is_some() {
            // Slowdowns of virtual devices are modelled, and do not show beside real ones.
            return Ok((1.0, 1.0));
        }
        alone[i] = Spread::of(&benches[d].times(&chosen.loaded, (rows, 0), 1.0)?).median.max(1.0);
    }
    let (mut on_a, mut on_b) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        // Alternates, so that a disturbance affects both alike.
        let mut before = [0.0; 2];
        for (i, (d, chosen)) in [(a, x), (b, y)].into_iter().enumerate() {
            let times = benches[d].times(&chosen.loaded, (rows, 0), alone[i])?;
            before[i] = Spread::of(&times).median.max(1.0);
        }
        for (i, (d, chosen)) in [(a, x), (b, y)].into_iter().enumerate() {
            let count = ((TOGETHER_NS / alone[i]) as usize).clamp(3, 2000);
            let (_, runs) = benches[d].submissions(&chosen.loaded, (rows, 0), count)?;
            benches[d].submit(timed(runs))?;
        }
        let (ta, tb) = (benches[a].finish()?, benches[b].finish()?);
        on_a.extend(beside(&ta, &tb).map(|ns| ns / before[0]));
        on_b.extend(beside(&tb, &ta).map(|ns| ns / before[1]));
    }
    let factor = |all: &[f64]| Spread::of(all).median.max(1.0);
    Ok((factor(&on_a), factor(&on_b)))
}

/// The median time of runs that overlapped with runs of the other device.
fn beside(own: &[TaskTime], others: &[TaskTime]) -> Option<f64> {
    let (start, end) = (others.first()?.start, others.last()?.end);
    let inside = own.iter().filter(|t| t.start >= start && t.end <= end);
    let times: Vec<f64> = inside.map(nanoseconds).collect();
    (!times.is_empty()).then(|| Spread::of(&times).median)
}

/// The delay from the end of a task to the start of one that waits for it, in both directions.
fn round_trips(
    benches: &mut [Bench<'_>],
    ((a, x), (b, y)): ((usize, &Chosen), (usize, &Chosen)),
    waiting: Waiting,
) -> Result<(Spread, Spread), DeviceError> {
    if ![a, b].into_iter().all(|d| benches[d].device.caps().queue_waits) {
        let there = passed_on(benches, ((a, x), (b, y)), waiting)?;
        return Ok((there, passed_on(benches, ((b, y), (a, x)), waiting)?));
    }
    let timelines = Arc::new(Timelines::new(benches.len()));
    let on = |queue: usize, value: usize| Point { queue: queue as u32, value: value as u64 };
    for (d, chosen) in [(a, x), (b, y)] {
        let (_, tasks) = benches[d].submissions(&chosen.loaded, (1, 0), ROUND_TRIPS)?;
        let all = 0..ROUND_TRIPS;
        let waits = match d == a {
            true => all.clone().skip(1).map(|i| Wait { task: i as u32, on: on(b, i) }).collect(),
            false => all.clone().map(|i| Wait { task: i as u32, on: on(a, i + 1) }).collect(),
        };
        let signals = all.map(|i| Signal { task: i as u32, value: i as u64 + 1 }).collect();
        let timelines = Some(timelines.clone());
        benches[d].submit(CommandList { waits, signals, waiting, timelines, ..timed(tasks) })?;
    }
    let (ta, tb) = (benches[a].finish()?, benches[b].finish()?);
    let gap = |from: &TaskTime, to: &TaskTime| to.start.saturating_sub(from.end).as_nanos() as f64;
    let there: Vec<f64> = ta.iter().zip(&tb).map(|(x, y)| gap(x, y)).collect();
    let back: Vec<f64> = tb.iter().zip(ta.iter().skip(1)).map(|(y, x)| gap(y, x)).collect();
    // The first ones teach how long to wait.
    Ok((Spread::of(&there[there.len() / 10..]), Spread::of(&back[back.len() / 10..])))
}

/// The same for queues that cannot wait by themselves: the second list is submitted after the first
/// one is reported.
fn passed_on(
    benches: &mut [Bench<'_>],
    ((from, x), (to, y)): ((usize, &Chosen), (usize, &Chosen)),
    waiting: Waiting,
) -> Result<Spread, DeviceError> {
    let mut gaps = Vec::new();
    for _ in 0..lists(&benches[from]).max(lists(&benches[to])) {
        let mut one = |d: usize, chosen: &Chosen| {
            let (_, tasks) = benches[d].submissions(&chosen.loaded, (1, 0), 1)?;
            benches[d].run(CommandList { waiting, ..timed(tasks) })
        };
        let (first, second) = (one(from, x)?, one(to, y)?);
        if let (Some(first), Some(second)) = (first.last(), second.first()) {
            gaps.push(second.start.saturating_sub(first.end).as_nanos() as f64);
        }
    }
    Ok(Spread::of(&gaps))
}

/// Number of lists to measure. Modelled times never vary.
fn lists(bench: &Bench<'_>) -> usize {
    if bench.device.clock().is_some() { 1 } else { LISTS }
}

/// Measures a device's costs besides runs.
fn device(bench: &mut Bench<'_>, small: Option<&Chosen>) -> Result<DeviceSample, DeviceError> {
    let mut submit = Vec::new();
    if let Some(chosen) = small {
        for _ in 0..lists(bench) {
            let (_, tasks) = bench.submissions(&chosen.loaded, (1, 0), 1)?;
            let start = bench.clock.now();
            let times = bench.run(timed(tasks))?;
            let all = bench.clock.now().saturating_sub(start).as_nanos() as f64;
            submit.push(all - times.iter().map(nanoseconds).sum::<f64>());
        }
    }
    let mut copies = Vec::new();
    let own = bench.device.caps().spaces.first().copied().unwrap_or(SpaceId::HOST);
    if own != SpaceId::HOST {
        for bytes in COPIES {
            let memory = |e: troika_device::OutOfMemory| lost(bench.device.name(), &e.to_string());
            let host = Buffer::zeroed(bytes).map_err(memory)?;
            let there = bench.device.allocate(bytes).map_err(memory)?;
            let (from, to) = (View::whole(&host), View::whole(&there));
            let work = Work::Copy(CopyRows { from, to });
            let times = bench.run(timed(vec![Submission { tag: 0, work }]))?;
            copies.push((bytes as u64, times.iter().map(nanoseconds).sum()));
        }
    }
    let compile_ns = Spread::of(&bench.compiled_ns);
    Ok(DeviceSample { submit_ns: Spread::of(&submit), compile_ns, copies })
}
