//! Measures pairs of devices, and a device's costs besides runs: mutual slowdown, hand-overs, lists
//! and copies.

use std::sync::Arc;

use troika_device::{
    Buffer, CommandList, CopyRows, DeviceError, HostTask, OutOfMemory, Point, Signal, SpaceId,
    Submission, TaskTime, Timelines, View, Wait, Waiting, Work,
};
use troika_model::lower::SegmentKind;
use troika_solve::{
    DeviceSample, PairSample, Profile, ProfiledGraph, RunSample, SegmentPart, Slowdown, Spread,
};
use troika_weights::WeightStore;

use super::bench::{DeviceProfiler, LoadedGraph, lost, nanoseconds};
use super::inputs::RowsAt;

/// Numbers of rows at which devices run side by side.
const SIDE_BY_SIDE: [usize; 3] = [1, 16, 128];
/// How long (in nanoseconds) and how often to measure.
const TOGETHER_NS: f64 = 60e6;
const TIMES: usize = 5;
/// Hand-overs from one device to another and back.
const ROUND_TRIPS: usize = 200;
/// Lists of one task.
const LISTS: usize = 50;
/// Bytes of a row that a function of the host copies.
const ROW: usize = 4096;
/// Sizes of copies in bytes.
const COPIES: [usize; 2] = [64 << 10, 4 << 20];

/// Measures all pairs of devices, and each device alone.
pub(super) fn measure(
    profilers: &mut [DeviceProfiler<'_>],
    store: &WeightStore,
    graphs: &[Vec<ProfiledGraph>],
    profile: &mut Profile,
) -> Result<(), DeviceError> {
    let (mut large_of, mut small_of) = (Vec::new(), Vec::new());
    for (d, graphs) in graphs.iter().enumerate() {
        large_of.push(load(profilers, d, store, pick(graphs, large(profile, d)))?);
        small_of.push(load(profilers, d, store, pick(graphs, small(profile, d)))?);
    }
    for (d, profiler) in profilers.iter_mut().enumerate() {
        profile.devices[d] = device(profiler, small_of[d].as_ref())?;
    }
    profile.pairs.clear();
    for a in 0..profilers.len() {
        for b in (0..profilers.len()).filter(|b| *b > a) {
            let mut ab = PairSample {
                from: a,
                to: b,
                predicted_ns: Spread::default(),
                blocking_ns: Spread::default(),
                slowdowns: Vec::new(),
            };
            let mut ba = PairSample { from: b, to: a, ..ab.clone() };
            // As in a model: a wait of a few microseconds would be over before anybody sleeps.
            if let (Some(x), Some(y)) = (&large_of[a], &large_of[b]) {
                (ab.predicted_ns, ba.predicted_ns) = round_trips(profilers, x, y, Waiting::Poll)?;
                (ab.blocking_ns, ba.blocking_ns) = round_trips(profilers, x, y, Waiting::Block)?;
                for rows in SIDE_BY_SIDE.into_iter().filter(|n| *n <= x.most && *n <= y.most) {
                    let (on_a, on_b) = side_by_side(profilers, x, y, rows)?;
                    ab.slowdowns.push(Slowdown { rows, factor: on_b });
                    ba.slowdowns.push(Slowdown { rows, factor: on_a });
                }
            }
            profile.pairs.extend([ab, ba]);
        }
    }
    Ok(())
}

/// A graph that represents others of a device.
struct Chosen {
    device: usize,
    loaded: LoadedGraph,
    /// The most rows.
    most: usize,
}

/// A graph by its name in the profile, if there is one.
fn pick<'g>(graphs: &'g [ProfiledGraph], name: Option<&str>) -> Option<&'g ProfiledGraph> {
    graphs.iter().find(|g| Some(g.name.as_str()) == name)
}

/// The runs of a row of whole graphs; of products, on a device that takes nothing else.
fn of_a_row(profile: &Profile, device: usize) -> impl Iterator<Item = &RunSample> {
    let of = move |part| {
        let is = move |r: &&RunSample| {
            (r.device, r.rows, r.cached, r.share, r.part) == (device, 1, 0, 64, part)
        };
        profile.runs.iter().filter(is)
    };
    let whole = of(SegmentPart::Whole);
    let none = of(SegmentPart::Whole).next().is_none();
    whole.chain(of(SegmentPart::Products).filter(move |_| none))
}

fn by_time(a: &&RunSample, b: &&RunSample) -> std::cmp::Ordering {
    a.ns.median.total_cmp(&b.ns.median)
}

/// The graph whose runs slow other devices down: the feed-forward, else the slowest one.
pub(super) fn large(profile: &Profile, device: usize) -> Option<&str> {
    let runs = || of_a_row(profile, device);
    let ffn = runs().find(|r| matches!(r.segment, SegmentKind::Ffn | SegmentKind::Experts));
    ffn.or_else(|| runs().max_by(by_time)).map(|r| r.graph.as_str())
}

/// The fastest graph.
fn small(profile: &Profile, device: usize) -> Option<&str> {
    of_a_row(profile, device).min_by(by_time).map(|r| r.graph.as_str())
}

fn load(
    profilers: &mut [DeviceProfiler<'_>],
    device: usize,
    store: &WeightStore,
    graph: Option<&ProfiledGraph>,
) -> Result<Option<Chosen>, DeviceError> {
    let Some(graph) = graph else { return Ok(None) };
    let profiler = &mut profilers[device];
    let most = graph.layers.first().map_or(1, |g| g.max_rows()).min(SIDE_BY_SIDE[2]);
    let most = profiler.most_rows(most);
    Ok(Some(Chosen { device, loaded: profiler.load(graph, most, store)?, most }))
}

impl Chosen {
    /// A list of some runs, each of some rows.
    fn list(
        &self,
        profiler: &DeviceProfiler<'_>,
        rows: usize,
        count: usize,
    ) -> Result<CommandList, DeviceError> {
        let (_, runs) = profiler.submissions(&self.loaded, RowsAt { rows, cached: 0 }, count)?;
        Ok(timed(runs))
    }
}

fn timed(tasks: Vec<Submission>) -> CommandList {
    CommandList { tasks, timed: true, ..CommandList::default() }
}

/// Runs both devices at once. Returns the slowdown of each.
fn side_by_side(
    profilers: &mut [DeviceProfiler<'_>],
    x: &Chosen,
    y: &Chosen,
    rows: usize,
) -> Result<(f64, f64), DeviceError> {
    let (both, at) = ([x, y], RowsAt { rows, cached: 0 });
    let mut alone = [0.0; 2];
    for (alone, chosen) in alone.iter_mut().zip(both) {
        let profiler = &mut profilers[chosen.device];
        if profiler.device.clock().is_some() {
            // Slowdowns of virtual devices are modelled, and do not show beside real ones.
            return Ok((1.0, 1.0));
        }
        *alone = Spread::of(&profiler.times(&chosen.loaded, at, 1.0)?).median.max(1.0);
    }
    let (mut on_x, mut on_y) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        // Alternates, so that a disturbance affects both alike.
        let mut before = [0.0; 2];
        for (i, chosen) in both.into_iter().enumerate() {
            let times = profilers[chosen.device].times(&chosen.loaded, at, alone[i])?;
            before[i] = Spread::of(&times).median.max(1.0);
        }
        for (alone, chosen) in alone.iter().zip(both) {
            let count = ((TOGETHER_NS / alone) as usize).clamp(3, 2000);
            let profiler = &mut profilers[chosen.device];
            let list = chosen.list(profiler, rows, count)?;
            profiler.bench.submit(list)?;
        }
        let [tx, ty] = finish(profilers, both)?;
        on_x.extend(beside(&tx, &ty).map(|ns| ns / before[0]));
        on_y.extend(beside(&ty, &tx).map(|ns| ns / before[1]));
    }
    let factor = |all: &[f64]| Spread::of(all).median.max(1.0);
    Ok((factor(&on_x), factor(&on_y)))
}

/// Waits for a list of each device.
fn finish(
    profilers: &mut [DeviceProfiler<'_>],
    [x, y]: [&Chosen; 2],
) -> Result<[Vec<TaskTime>; 2], DeviceError> {
    Ok([profilers[x.device].bench.finish()?, profilers[y.device].bench.finish()?])
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
    profilers: &mut [DeviceProfiler<'_>],
    x: &Chosen,
    y: &Chosen,
    waiting: Waiting,
) -> Result<(Spread, Spread), DeviceError> {
    if ![x, y].into_iter().all(|c| profilers[c.device].device.caps().queue_waits) {
        let there = passed_on(profilers, x, y, waiting)?;
        return Ok((there, passed_on(profilers, y, x, waiting)?));
    }
    let timelines = Arc::new(Timelines::new(profilers.len()));
    let on = |c: &Chosen, value: usize| Point { queue: c.device as u32, value: value as u64 };
    let all = 0..ROUND_TRIPS;
    let back = all.clone().skip(1).map(|i| Wait { task: i as u32, on: on(y, i) }).collect();
    let there = all.clone().map(|i| Wait { task: i as u32, on: on(x, i + 1) }).collect();
    for (chosen, waits) in [(x, back), (y, there)] {
        let profiler = &mut profilers[chosen.device];
        let list = chosen.list(profiler, 1, ROUND_TRIPS)?;
        let signals = all.clone().map(|i| Signal { task: i as u32, value: i as u64 + 1 }).collect();
        let timelines = Some(timelines.clone());
        profiler.bench.submit(CommandList { waits, signals, waiting, timelines, ..list })?;
    }
    let [ta, tb] = finish(profilers, [x, y])?;
    let gap = |from: &TaskTime, to: &TaskTime| to.start.saturating_sub(from.end).as_nanos() as f64;
    let there: Vec<f64> = ta.iter().zip(&tb).map(|(x, y)| gap(x, y)).collect();
    let back: Vec<f64> = tb.iter().zip(ta.iter().skip(1)).map(|(y, x)| gap(y, x)).collect();
    // The first ones teach how long to wait.
    Ok((Spread::of(&there[there.len() / 10..]), Spread::of(&back[back.len() / 10..])))
}

/// The same for queues that cannot wait by themselves: the second list is submitted after the first
/// one is reported.
fn passed_on(
    profilers: &mut [DeviceProfiler<'_>],
    from: &Chosen,
    to: &Chosen,
    waiting: Waiting,
) -> Result<Spread, DeviceError> {
    let mut gaps = Vec::new();
    for _ in 0..lists(&profilers[from.device]).max(lists(&profilers[to.device])) {
        let mut one = |chosen: &Chosen| {
            let profiler = &mut profilers[chosen.device];
            let list = chosen.list(profiler, 1, 1)?;
            profiler.bench.run(CommandList { waiting, ..list })
        };
        let (first, second) = (one(from)?, one(to)?);
        if let (Some(first), Some(second)) = (first.last(), second.first()) {
            gaps.push(second.start.saturating_sub(first.end).as_nanos() as f64);
        }
    }
    Ok(Spread::of(&gaps))
}

/// Number of lists to measure. Modelled times never vary.
fn lists(profiler: &DeviceProfiler<'_>) -> usize {
    if profiler.device.clock().is_some() { 1 } else { LISTS }
}

/// Measures a device's costs besides runs.
fn device(
    profiler: &mut DeviceProfiler<'_>,
    small: Option<&Chosen>,
) -> Result<DeviceSample, DeviceError> {
    let mut submit = Vec::new();
    if let Some(chosen) = small {
        for _ in 0..lists(profiler) {
            let list = chosen.list(profiler, 1, 1)?;
            let start = profiler.clock.now();
            let times = profiler.bench.run(list)?;
            let all = profiler.clock.now().saturating_sub(start).as_nanos() as f64;
            submit.push(all - times.iter().map(nanoseconds).sum::<f64>());
        }
    }
    let mut copies = Vec::new();
    let own = profiler.device.caps().spaces.first().copied().unwrap_or(SpaceId::HOST);
    if own != SpaceId::HOST {
        for bytes in COPIES {
            let memory = |e: OutOfMemory| lost(profiler.device.name(), &e.to_string());
            let host = Buffer::zeroed(bytes).map_err(memory)?;
            let there = profiler.device.allocate(bytes).map_err(memory)?;
            let (from, to) = (View::whole(&host), View::whole(&there));
            let work = Work::Copy(CopyRows::whole(from, to));
            let times = profiler.bench.run(timed(vec![Submission { tag: 0, work }]))?;
            copies.push((bytes as u64, times.iter().map(nanoseconds).sum()));
        }
    }
    let mut functions = Vec::new();
    let runs_functions = profiler.device.caps().host_tasks;
    for bytes in COPIES.into_iter().filter(|_| runs_functions) {
        functions.push((2 * bytes as u64, function(profiler, bytes)?));
    }
    let compile_ns = Spread::of(&profiler.compiled_ns);
    let loads = profiler.loads.clone();
    Ok(DeviceSample { submit_ns: Spread::of(&submit), compile_ns, copies, functions, loads })
}

/// Nanoseconds in which a function of the host copies `bytes` bytes, row by row.
fn function(profiler: &mut DeviceProfiler<'_>, bytes: usize) -> Result<f64, DeviceError> {
    let memory = |e: OutOfMemory| lost(profiler.device.name(), &e.to_string());
    let [from, to] = [Buffer::zeroed(bytes), Buffer::zeroed(bytes)];
    let (from, to, rows) = (from.map_err(memory)?, to.map_err(memory)?, bytes / ROW);
    let view = |buffer: &Buffer| View::dense(buffer, 0, (rows, ROW)).map_err(DeviceError::View);
    let views = (vec![view(&from)?], vec![view(&to)?]);
    let task = HostTask::new("rows", views, move |reads, writes| {
        for row in 0..rows {
            let read = reads.first().and_then(|from| from.row::<f32>(row));
            let written = writes.first_mut().and_then(|to| to.row_mut::<f32>(row));
            let (Some(read), Some(written)) = (read, written) else { return Ok(None) };
            written.copy_from_slice(read);
        }
        Ok(None)
    })?;
    let task = Arc::new(task);
    let runs = (0..lists(profiler))
        .map(|tag| Submission { tag: tag as u32, work: Work::Host(task.clone()) });
    let times = profiler.bench.run(timed(runs.collect()))?;
    Ok(Spread::of(&times.iter().map(nanoseconds).collect::<Vec<_>>()).median)
}
