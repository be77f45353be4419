//! What a virtual device guarantees: limits, times, and when results are visible.

#![allow(clippy::panic, clippy::unwrap_used)]
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use troika_device::*;
use troika_graph::{
    ActivationFormat, Attention, DType, Dim, KvAppend, Op, Shape, StateKind, Subgraph,
    SubgraphBuilder, WeightDecl,
};
use troika_sim::{Board, ProcessorKind, Soc, VirtualClock, VirtualDevice};

/// All weights are ones. With `none` set, reading one is an error.
#[derive(Clone, Copy)]
struct Ones {
    none: bool,
    shape: (usize, usize),
}

/// Floats of 1.0, aligned as words.
struct Words(Vec<u32>);
impl AsRef<[u8]> for Words {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl WeightSource for Ones {
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
        assert!(!self.none, "{name} was read");
        let (rows, cols) = self.shape;
        let bytes = WeightBytes::whole(Arc::new(Words(vec![1f32.to_bits(); rows * cols])));
        Ok(WeightData { dtype: DType::F32, rows, cols, bytes })
    }

    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let data = self.weight(name)?;
        let mut bytes = ZeroedBytes::new(layout.bytes(data.rows).unwrap()).unwrap();
        pack(&data, &mut bytes)?;
        Ok(Packed { bytes: WeightBytes::whole(Arc::new(bytes)), stored: false })
    }
}

const ONES: Ones = Ones { none: false, shape: (16, 16) };
const NONE: Ones = Ones { none: true, shape: (16, 16) };

/// `y = 16 times the mean of x` in each of 16 columns.
fn product(rows: Dim) -> Subgraph {
    let mut b = SubgraphBuilder::new("product", rows.bound());
    let weight = b.weight(WeightDecl::whole("w".into(), 16, 16, DType::F32));
    let x = b.input("x", 16, DType::F32);
    let op = Op::Linear { weight, bias: None, activations: ActivationFormat::F32, form: None };
    let y = b.op("y", op, &[x], 16);
    b.output(y);
    let mut graph = b.finish().unwrap();
    graph.values.iter_mut().for_each(|v| v.shape.0[0] = rows);
    graph
}

fn append() -> Subgraph {
    let mut b = SubgraphBuilder::new("append", 4);
    let x = b.input("x", 16, DType::F32);
    let cache = b.state("cache", Shape(vec![Dim::KvLen(8), Dim::Fixed(16)]), DType::F32);
    b.node(Op::KvAppend(KvAppend { width: 16, page_group: 0 }), &[x], &[cache], &[]);
    let q = b.input("q", 16, DType::F32);
    let op = Attention {
        heads: 1,
        kv_heads: 1,
        k_dim: 16,
        v_dim: 16,
        scale: 1.0,
        window: None,
        softcap: None,
        sinks: None,
        value_in_key: true,
        page_group: 0,
        activations: ActivationFormat::F32,
    };
    let y = b.attention(op, q, &[cache]);
    b.output(y);
    b.finish().unwrap()
}

/// A run takes 1 us plus a picosecond per operation or byte.
fn open(name: &str, limits: &str, top: &str, clock: &Arc<VirtualClock>) -> VirtualDevice {
    open_kind((name, "npu"), limits, top, clock)
}

fn open_kind(
    (name, kind): (&str, &str),
    limits: &str,
    top: &str,
    clock: &Arc<VirtualClock>,
) -> VirtualDevice {
    let text = format!(
        "name = \"s\"\n{top}\n[[processor]]\nname = \"p\"\nkind = \"{kind}\"\npeak_gops = 1000\n\
         bandwidth_gb_s = 1000\nlaunch_us = 1\n{limits}"
    );
    let soc = Soc::parse("s.toml", &text).unwrap();
    let board = Board::new(&soc, clock.clone());
    VirtualDevice::on(&board, name, soc.processor(None).unwrap()).unwrap()
}

struct Lane {
    queue: Box<dyn Queue>,
    done: Receiver<Completion>,
}

fn lane(device: &VirtualDevice, clock: Arc<dyn Clock>) -> Lane {
    let (send, done) = sync_channel(64);
    Lane { queue: device.queue(0, clock, send).unwrap(), done }
}

fn filled(buffer: &Buffer, value: f32) {
    buffer.write().unwrap().as_mut_slice::<f32>().fill(value);
}

fn first(buffer: &Buffer) -> f32 {
    buffer.read().unwrap().as_slice::<f32>()[0]
}

/// The product for up to four rows, with ones.
fn compiled(device: &VirtualDevice) -> Arc<Weights> {
    Weights::compiled(device, &product(Dim::Rows(4)), &ONES).unwrap()
}

/// A device of some limits, its clock, and the product on it.
fn opened(limits: &str) -> (Arc<VirtualClock>, VirtualDevice, Arc<Weights>) {
    let clock = Arc::new(VirtualClock::new());
    let device = open("p", limits, "", &clock);
    let exe = compiled(&device);
    (clock, device, exe)
}

fn zeroed(rows: usize) -> Buffer {
    Buffer::zeroed(rows * 64).unwrap()
}

fn forward(seq: u64, pos: usize, rows: usize, pages: &[u32]) -> Arc<ForwardBatch> {
    let table = PageTable::new(StateKind::Paged(None), 4, pages.to_vec());
    let rows = 0..rows;
    let known_len = pos + rows.len();
    Arc::new(ForwardBatch {
        seqs: vec![SeqRows { seq, rows, pos, known_len, tables: vec![table] }],
    })
}

fn run(weights: &Arc<Weights>, x: View, y: View, rows: usize) -> Submission {
    let bindings = Bindings { inputs: vec![x], states: vec![], outputs: vec![y] };
    let bindings = Arc::new(bindings);
    let forward = forward(0, 0, rows, &[0]);
    Submission {
        tag: 7,
        work: Work::Run(Run { weights: weights.clone(), bindings, rows, forward }),
    }
}

fn list(id: u64, tasks: Vec<Submission>) -> CommandList {
    CommandList { id, tasks, timed: true, ..CommandList::default() }
}

fn refusal(lane: &mut Lane, task: Submission) -> String {
    let done = lane.queue.run_here(list(0, vec![task])).unwrap();
    done.outcome.unwrap_err().to_string()
}

#[test]
fn a_run_takes_its_time_and_its_results_are_there_at_the_end() {
    let (clock, device, exe) = opened("");
    let mut lane = lane(&device, clock.clone());
    let (x, y) = (zeroed(4), zeroed(4));
    filled(&x, 0.5);
    filled(&y, 3.0);
    let whole = View::whole;
    let tasks = vec![run(&exe, whole(&x), whole(&y), 4), run(&exe, whole(&x), whole(&y), 1)];
    lane.queue.submit(list(5, tasks)).unwrap();
    // 4 x 16 x 16 multiplications and additions: 2048 ps; 64 bytes for each row and weight: 1536.
    assert_eq!(clock.next_event(), Some(Duration::from_nanos(1003)));
    clock.wait(Duration::from_nanos(1002));
    // Until its end the run holds its claims, and nothing is computed.
    assert_eq!(x.write().err(), Some(AccessError::Busy));
    assert_eq!(y.read().err(), Some(AccessError::Busy));
    assert!(x.read().is_ok() && lane.done.try_recv().is_err());
    clock.wait(Duration::from_nanos(1));
    // The second run holds the first row of each.
    assert_eq!(y.read().err(), Some(AccessError::Busy));
    let rest = View::whole(&y).buffer().hold(&[(Rect::bytes(64..256), Access::Read)]);
    drop(rest.unwrap());
    clock.wait(Duration::from_secs(1));
    let done = lane.done.try_recv().unwrap();
    done.outcome.unwrap();
    assert_eq!(first(&y), 8.0);
    let times: Vec<_> = done.times.iter().map(|t| (t.start.as_nanos(), t.end.as_nanos())).collect();
    // One row: 512 ps of operations, 128 + 1024 bytes.
    assert_eq!(times, [(0, 1003), (1003, 1003 + 1002)]);
    assert_eq!(done.times[0].modelled, Some(Duration::from_nanos(1003)));
    assert_eq!((done.list.id, done.times[1].tag, done.list.tasks.len()), (5, 7, 0));
}

#[test]
fn a_dependency_that_is_missing_shows() {
    let clock = Arc::new(VirtualClock::new());
    let (a, b) = (open("a", "", "", &clock), open("b", "", "", &clock));
    let [first_exe, second_exe] = [&a, &b].map(compiled);
    let (mut qa, mut qb) = (lane(&a, clock.clone()), lane(&b, clock.clone()));
    let [x, y, z] = [0; 3].map(|_| View::whole(&zeroed(4)));
    filled(x.buffer(), 1.0);
    qa.queue.submit(list(0, vec![run(&first_exe, x.clone(), y.clone(), 4)])).unwrap();
    qb.queue.submit(list(0, vec![run(&second_exe, y.clone(), z.clone(), 4)])).unwrap();
    clock.wait(Duration::from_secs(1));
    let failed = qb.done.try_recv().unwrap().outcome;
    assert!(matches!(failed, Err(DeviceError::Busy(AccessError::Busy))), "{failed:?}");
    qa.done.try_recv().unwrap().outcome.unwrap();
    // In order, they give the right results.
    qb.queue.submit(list(1, vec![run(&second_exe, y, z.clone(), 4)])).unwrap();
    clock.wait(Duration::from_secs(1));
    qb.done.try_recv().unwrap().outcome.unwrap();
    assert_eq!(first(z.buffer()), 256.0);
}

/// Sequences wait for each other only where they share pages.
#[test]
fn claims_of_caches_are_those_of_pages() {
    let clock = Arc::new(VirtualClock::new());
    let (a, b) = (open("a", "", "", &clock), open("b", "", "", &clock));
    let graph = append();
    let [ea, eb] = [&a, &b].map(|device| Weights::compiled(device, &graph, &NONE).unwrap());
    let (mut qa, mut qb) = (lane(&a, clock.clone()), lane(&b, clock.clone()));
    let cache = zeroed(8);
    let task = |exe: &Arc<Weights>, seq, pages: &[u32]| {
        let [x, q, y] = [0; 3].map(|_| View::whole(&zeroed(4)));
        filled(x.buffer(), seq as f32);
        let states = vec![View::whole(&cache)];
        let bindings = Arc::new(Bindings { inputs: vec![x, q], states, outputs: vec![y] });
        let forward = forward(seq, 1, 2, pages);
        let run = Run { weights: exe.clone(), bindings, rows: 2, forward };
        Submission { tag: 0, work: Work::Run(run) }
    };
    let mut both = |pages: [&[u32]; 2]| {
        qa.queue.submit(list(0, vec![task(&ea, 5, pages[0])])).unwrap();
        qb.queue.submit(list(0, vec![task(&eb, 6, pages[1])])).unwrap();
        clock.wait(Duration::from_secs(1));
        qa.done.try_recv().unwrap().outcome.unwrap();
        qb.done.try_recv().unwrap().outcome
    };
    both([&[0], &[1]]).unwrap();
    let rows: Vec<f32> =
        cache.read().unwrap().as_slice().chunks(16).map(|r: &[f32]| r[0]).collect();
    assert_eq!(rows, [0.0, 5.0, 5.0, 0.0, 0.0, 6.0, 6.0, 0.0]);
    assert!(matches!(both([&[0], &[0]]), Err(DeviceError::Busy(_))));
}

#[test]
fn beside_real_devices_it_computes_at_once_and_reports_the_modelled_time() {
    let (clock, device, exe) = opened("");
    let mut lane = lane(&device, Arc::new(RealClock::new()));
    let (x, y) = (zeroed(4), zeroed(4));
    filled(&x, 0.5);
    let task = || run(&exe, View::whole(&x), View::whole(&y), 4);
    lane.queue.submit(list(0, vec![task()])).unwrap();
    let done = lane.done.recv().unwrap();
    done.outcome.unwrap();
    assert_eq!((first(&y), done.times[0].modelled), (8.0, Some(Duration::from_nanos(1003))));
    assert_eq!(clock.now(), Duration::ZERO);
    filled(&y, 0.0);
    lane.queue.run_here(list(0, vec![task()])).unwrap().outcome.unwrap();
    assert_eq!(first(&y), 8.0);
}

#[test]
fn with_numerics_off_time_passes_and_nothing_is_read() {
    let clock = Arc::new(VirtualClock::new());
    let device = open("p", "compile_us = 3", "numerics = \"off\"", &clock);
    let exe = Weights::compiled(&device, &product(Dim::Rows(4)), &NONE).unwrap();
    assert_eq!(clock.now(), Duration::from_micros(3));
    let mut lane = lane(&device, clock.clone());
    let (x, y) = (View::whole(&zeroed(4)), View::whole(&zeroed(4)));
    filled(x.buffer(), 0.5);
    lane.queue.submit(list(0, vec![run(&exe, x.clone(), y.clone(), 4)])).unwrap();
    clock.wait(Duration::from_nanos(1003));
    lane.done.try_recv().unwrap().outcome.unwrap();
    assert_eq!(first(y.buffer()), 0.0);
    // The checks remain.
    lane.queue.submit(list(0, vec![run(&exe, x, y, 5)])).unwrap();
    let e = lane.done.try_recv().unwrap().outcome.unwrap_err().to_string();
    assert!(e.contains("5 rows do not fit value x of 4 on device p"), "{e}");
}

#[test]
fn a_queue_takes_as_many_lists_as_it_says() {
    let (clock, device, exe) = opened("queue_depth = 2");
    assert_eq!(device.caps().queue_depth, 2);
    let mut lane = lane(&device, clock.clone());
    let task = || run(&exe, View::whole(&zeroed(4)), View::whole(&zeroed(4)), 4);
    lane.queue.submit(list(0, vec![task()])).unwrap();
    lane.queue.submit(list(1, vec![])).unwrap();
    let e = lane.queue.submit(list(2, vec![task()])).unwrap_err().to_string();
    assert!(e.contains("device p: 2 lists are in flight"), "{e}");
    clock.wait(Duration::from_secs(1));
    let ids: Vec<u64> = lane.done.try_iter().map(|c| c.list.id).collect();
    assert_eq!(ids, [0, 1]);
    lane.queue.submit(list(3, vec![task()])).unwrap();
}

#[test]
fn a_queue_that_is_dropped_gives_its_claims_back() {
    let (clock, device, exe) = opened("");
    let mut lane = lane(&device, clock.clone());
    let (x, y) = (zeroed(4), zeroed(4));
    lane.queue.submit(list(0, vec![run(&exe, View::whole(&x), View::whole(&y), 4)])).unwrap();
    assert!(y.read().is_err());
    drop(lane);
    assert!(y.read().is_ok());
    clock.wait(Duration::from_secs(1));
    assert_eq!(first(&y), 0.0);
}

#[test]
fn static_shapes_are_those_of_the_bucket() {
    let clock = Arc::new(VirtualClock::new());
    let device = open("p", "static_shapes = true\nrow_buckets = [4]", "", &clock);
    assert!(device.caps().static_shapes && device.caps().row_buckets == [4]);
    let e = Weights::compiled(&device, &product(Dim::Rows(4)), &ONES).unwrap_err().to_string();
    assert!(e.contains("static shapes only, and x has up to 4 rows"), "{e}");
    assert_eq!(device.examine(&product(Dim::Rows(4))), [None], "binding rows mends it");
    let exe = Weights::compiled(&device, &product(Dim::Fixed(4)), &ONES).unwrap();
    let mut lane = lane(&device, Arc::new(RealClock::new()));
    let (x, y) = (zeroed(4), zeroed(4));
    filled(&x, 0.5);
    filled(&y, 3.0);
    // Three valid rows: the padding row stays unchanged, but the run takes the time of four rows.
    let task = run(&exe, View::whole(&x), View::whole(&y), 3);
    let done = lane.queue.run_here(list(0, vec![task])).unwrap();
    done.outcome.unwrap();
    assert_eq!(done.times[0].modelled, Some(Duration::from_nanos(1003)));
    let rows: Vec<f32> = y.read().unwrap().as_slice().chunks(16).map(|r: &[f32]| r[0]).collect();
    assert_eq!(rows, [8.0, 8.0, 8.0, 3.0]);
    // The padding must have room, and runs are limited to the bucket's rows.
    let short = View::dense(&y, 0, (3, 64)).unwrap();
    let e = refusal(&mut lane, run(&exe, View::whole(&x), short, 3));
    assert!(e.contains("value y has 4 rows of 64 bytes, its view 3 of 64"), "{e}");
    let e = refusal(&mut lane, run(&exe, View::whole(&zeroed(5)), View::whole(&zeroed(5)), 5));
    assert!(e.contains("5 rows do not fit the 4"), "{e}");
}

#[test]
fn memory_of_its_own_is_the_only_one_it_takes() {
    let (clock, device, exe) = opened("own_memory = true");
    let [own] = device.caps().spaces[..] else { panic!("{:?}", device.caps().spaces) };
    assert_ne!(own, SpaceId::HOST);
    let mut lane = lane(&device, Arc::new(RealClock::new()));
    let [x, y] = [0; 2].map(|_| View::whole(&device.allocate(256).unwrap()));
    let host = View::whole(&zeroed(4));
    assert_eq!(x.buffer().space(), own);
    assert_eq!(x.read().err(), Some(AccessError::Foreign));
    let copy = |from: &View, to: &View| {
        let copy = CopyRows::whole(from.clone(), to.clone());
        Submission { tag: 1, work: Work::Copy(copy) }
    };
    // Unwritten memory is NaN, and so are results computed from it.
    let tasks = vec![run(&exe, x.clone(), y.clone(), 4), copy(&y, &host)];
    lane.queue.run_here(list(0, tasks)).unwrap().outcome.unwrap();
    assert!(first(host.buffer()).is_nan());
    filled(host.buffer(), 0.5);
    let tasks = vec![copy(&host, &x), run(&exe, x.clone(), y.clone(), 4), copy(&y, &host)];
    let done = lane.queue.run_here(list(0, tasks)).unwrap();
    done.outcome.unwrap();
    assert_eq!(first(host.buffer()), 8.0);
    // 256 bytes at a picosecond each.
    assert_eq!(done.times[0].modelled, Some(Duration::from_nanos(1001)));
    let e = refusal(&mut lane, run(&exe, host.clone(), y.clone(), 4));
    assert!(
        e.contains("value x is bound to other memory than the device's own on device p"),
        "{e}"
    );
    let foreign = Buffer::in_space(SpaceId::unique(), 256, 0).unwrap();
    let e = refusal(&mut lane, copy(&View::whole(&foreign), &host));
    assert!(e.contains("in the memory of another device"), "{e}");
    let e = refusal(&mut lane, copy(&host, &View::dense(&zeroed(4), 0, (4, 64)).unwrap()));
    assert!(e.contains("1 rows of 256 bytes do not go to 4 rows of 64 bytes"), "{e}");
    // A device without its own memory takes only the host's.
    let plain = open("q", "", "", &clock);
    let exe = compiled(&plain);
    let mut lane = self::lane(&plain, Arc::new(RealClock::new()));
    let e = refusal(&mut lane, run(&exe, x, View::whole(&zeroed(4)), 4));
    assert!(e.contains("bound to other memory than the host's on device q"), "{e}");
}

#[test]
fn refusals_are_predicted_in_the_words_of_compiling() {
    let clock = Arc::new(VirtualClock::new());
    let attention = append();
    let wide = product(Dim::Rows(17));
    for (limits, graph, ops, says) in [
        (
            "refuses = [\"attention\"]",
            &attention,
            [false, true].as_slice(),
            "does not run attention",
        ),
        ("only = [\"attention\"]", &attention, &[true, false], "does not run kv_append"),
        ("max_binding_bytes = 1024", &wide, &[true], "value x can have 1088 bytes, it binds 1024"),
        (
            "max_graph_bytes = 1023",
            &wide,
            &[true],
            "1024 bytes of weights, of at most 1023 (max_gr",
        ),
        ("max_resident_bytes = 1023", &wide, &[true], "1024 bytes of weights are resident, of at"),
    ] {
        let device = open("p", limits, "", &clock);
        let why = device.examine(graph);
        assert_eq!(why.iter().map(Option::is_some).collect::<Vec<_>>(), ops, "{limits}: {why:?}");
        let why = why.into_iter().flatten().next().unwrap();
        let e = Weights::compiled(&device, graph, &ONES).unwrap_err();
        assert!(matches!(e, DeviceError::Unsupported { .. }), "{e}");
        let text = e.to_string();
        assert!(text.contains(says) && text.contains(&why) && text.contains("device p"), "{text}");
        assert!(why.contains(says), "{why}");
    }
    let device = open("p", "max_binding_bytes = 1024\nmax_graph_bytes = 1024", "", &clock);
    assert_eq!(device.examine(&product(Dim::Rows(16))), [None]);
    let mut broken = product(Dim::Rows(4));
    broken.nodes[0].inputs[0] = troika_graph::ValueId(99);
    assert!(device.examine(&broken)[0].as_ref().unwrap().contains("used before it is computed"));
}

#[test]
fn resident_weights_are_counted_once_and_given_back() {
    let clock = Arc::new(VirtualClock::new());
    let device = open("p", "max_resident_bytes = 1500", "", &clock);
    let graph = product(Dim::Rows(4));
    let mut other = graph.clone();
    other.weights[0].name = "other".into();
    let first = Weights::compiled(&device, &graph, &ONES).unwrap();
    let same = Weights::compiled(&device, &graph, &ONES).unwrap();
    assert!(Weights::compiled(&device, &other, &ONES).is_err());
    drop(first);
    assert!(Weights::compiled(&device, &other, &ONES).is_err());
    drop(same);
    let other = Weights::compiled(&device, &other, &ONES).unwrap();
    assert!(Weights::compiled(&device, &graph, &ONES).is_err());
    drop(other);
    Weights::compiled(&device, &graph, &ONES).unwrap();
}

#[test]
fn loaded_graphs_are_counted_and_given_back() {
    let clock = Arc::new(VirtualClock::new());
    let device = open("p", "max_graphs = 2", "", &clock);
    let graph = product(Dim::Rows(4));
    let load = || Weights::compiled(&device, &graph, &ONES);
    let (first, _second) = (load().unwrap(), load().unwrap());
    let refused = load().unwrap_err().to_string();
    assert!(refused.contains("2 graphs are loaded") && refused.contains("max_graphs"), "{refused}");
    drop(first);
    load().unwrap();
    assert_eq!(device.caps().max_graphs, Some(2));
}

#[test]
fn bindings_are_held_to_the_limits() {
    let (clock, device, exe) = opened("strided_rows = false\nmax_binding_bytes = 600");
    let mut lane = lane(&device, Arc::new(RealClock::new()));
    let y = View::whole(&zeroed(4));
    let wide = Buffer::zeroed(4 * 128).unwrap();
    let apart = |rows| View::new(&wide, 0, (rows, 64), 128).unwrap();
    let e = refusal(&mut lane, run(&exe, apart(4), y.clone(), 4));
    assert!(e.contains("rows of value x lie apart") && e.contains("on device p"), "{e}");
    let done = lane.queue.run_here(list(0, vec![run(&exe, apart(1), y.clone(), 1)])).unwrap();
    done.outcome.unwrap();
    // The cache may be larger than its slabs, but pages may not: here 8 positions of 64 bytes each.
    let append_with = |limit: &str| {
        let cache = open("c", limit, "", &clock);
        let exe = Weights::compiled(&cache, &append(), &NONE).unwrap();
        let [x, q, y] = [0; 3].map(|_| View::whole(&zeroed(4)));
        let states = vec![View::whole(&zeroed(40))];
        let bindings = Arc::new(Bindings { inputs: vec![x, q], states, outputs: vec![y] });
        let mut forward = ForwardBatch::clone(&forward(0, 0, 2, &[3]));
        forward.seqs[0].tables[0].page_len = 8;
        let run = Run { weights: exe, bindings, rows: 2, forward: Arc::new(forward) };
        let mut lane = self::lane(&cache, Arc::new(RealClock::new()));
        let task = Submission { tag: 0, work: Work::Run(run) };
        lane.queue.run_here(list(0, vec![task])).unwrap().outcome
    };
    append_with("max_binding_bytes = 512").unwrap();
    let e = append_with("max_binding_bytes = 511").unwrap_err().to_string();
    assert!(e.contains("value cache binds 512 bytes, of at most 511"), "{e}");
}

/// Host functions take time on a virtual CPU, hold their memory meanwhile, and give their results at
/// the end. With numerics off they are skipped but take as long.
#[test]
fn functions_of_the_host_take_their_time() {
    for (top, computes) in [("", true), ("numerics = \"off\"", false)] {
        let clock = Arc::new(VirtualClock::new());
        let device = open_kind(("c", "cpu"), "", top, &clock);
        assert!(device.caps().host_tasks);
        let mut lane = lane(&device, clock.clone());
        let (x, y) = (zeroed(4), zeroed(4));
        let views = (vec![View::whole(&x)], vec![View::whole(&y)]);
        let host = HostTask::new("gather", views, |reads, writes| {
            let x = reads[0].as_slice::<f32>().unwrap();
            writes[0].as_mut_slice::<f32>().unwrap().copy_from_slice(x);
            Ok(Some(Box::new(x.len())))
        });
        let host = Arc::new(host.unwrap());
        filled(&x, 3.0);
        let tasks = vec![Submission { tag: 0, work: Work::Host(host.clone()) }];
        lane.queue.submit(list(1, tasks)).unwrap();
        assert!(y.read().is_err() && x.write().is_err(), "held while it runs");
        assert!(host.take_result().is_none());
        while let Some(next) = clock.next_event() {
            clock.wait(next.saturating_sub(clock.now()));
        }
        let done = lane.done.try_recv().unwrap();
        done.outcome.unwrap();
        let ends: Vec<u128> = done.times.iter().map(|t| t.end.as_nanos()).collect();
        // 512 bytes at a picosecond each, plus a launch.
        assert_eq!(ends, [1001]);
        assert_eq!(first(&y), if computes { 3.0 } else { 0.0 });
        assert_eq!(host.take_result().is_some(), computes);
    }
}

#[test]
fn processors_that_are_no_cpu_refuse_functions_of_the_host() {
    let clock = Arc::new(VirtualClock::new());
    let theirs = View::whole(&Buffer::in_space(SpaceId::unique(), 8, 0).unwrap());
    for kind in ["npu", "gpu", "cpu"] {
        let device = open_kind(("d", kind), "", "", &clock);
        assert_eq!(device.caps().host_tasks, kind == "cpu");
        let mut lane = lane(&device, Arc::new(RealClock::new()));
        let host = HostTask::new("router", (vec![theirs.clone()], vec![]), |_, _| Ok(None));
        let work = Work::Host(Arc::new(host.unwrap()));
        let e = refusal(&mut lane, Submission { tag: 0, work });
        let why = if kind == "cpu" { "memory of a device" } else { "runs on CPU devices only" };
        assert!(e.contains("router") && e.contains(why) && e.ends_with("on device d"), "{e}");
    }
}

/// A device that bakes weights into code takes only the graph that it compiled.
#[test]
fn weights_are_loaded_for_code_of_their_shape_or_for_the_graph_alone() {
    let clock = Arc::new(VirtualClock::new());
    let graph = product(Dim::Rows(4));
    let mut other = graph.clone();
    (other.name, other.weights[0].name) = ("other".into(), "v".into());
    let shares = open("p", "compile_us = 5.0", "", &clock);
    let code = Executable::compiled(&shares, &graph, &ONES).unwrap();
    shares.load(&code, &graph, &ONES).unwrap();
    shares.load(&code, &other, &ONES).unwrap();
    assert_eq!(clock.now(), Duration::from_micros(5), "one is compiled");
    let e = shares.load(&code, &product(Dim::Rows(5)), &ONES).unwrap_err().to_string();
    assert!(e.contains("task product") && e.contains("not of the shape of product"), "{e}");
    let bakes = open("q", "bakes_weights = true", "", &clock);
    assert!(bakes.caps().bakes_weights && !shares.caps().bakes_weights);
    let e = bakes.load(&code, &graph, &ONES).unwrap_err().to_string();
    assert!(e.contains("was not compiled on device q"), "{e}");
    let code = Executable::compiled(&bakes, &graph, &ONES).unwrap();
    bakes.load(&code, &graph, &ONES).unwrap();
    let e = bakes.load(&code, &other, &ONES).unwrap_err().to_string();
    assert!(e.contains("task other") && e.contains("become part of product's code"), "{e}");
}

/// A SoC of two processors `a` and `b`. Their runs take 1 us and 1000 bytes; the memory has 1.2
/// GB/s, and each could use 1.
fn board(more: &str) -> (Arc<Board>, [VirtualDevice; 2], Arc<VirtualClock>) {
    let one = |name| {
        format!(
            "[[processor]]\nname = \"{name}\"\nkind = \"gpu\"\npeak_gops = 1e6\n\
             bandwidth_gb_s = 1\nlaunch_us = 0\npower = {{ idle_w = 1, busy_w = 3 }}\n{more}"
        )
    };
    let text = format!(
        "name = \"s\"\nmemory = {{ bandwidth_gb_s = 1.2, pj_per_byte = 1000, rest_w = 4 }}\n{}\n{}",
        one("a"),
        one("b")
    );
    let soc = Soc::parse("s.toml", &text).unwrap();
    let clock = Arc::new(VirtualClock::new());
    let board = Board::new(&soc, clock.clone());
    let devices =
        ["a", "b"].map(|n| VirtualDevice::on(&board, n, soc.processor(Some(n)).unwrap()).unwrap());
    (board, devices, clock)
}

fn ns(clock: &VirtualClock) -> u128 {
    clock.now().as_nanos()
}

#[test]
fn processors_of_a_board_share_bandwidth_and_battery() {
    let (board, [a, b], clock) = board("");
    // Four rows of 64 bytes in and out, and 16 x 64 bytes of weights.
    let bytes = 4 * 128 + 1024;
    let [ea, eb] = [&a, &b].map(compiled);
    let (mut qa, mut qb) = (lane(&a, clock.clone()), lane(&b, clock.clone()));
    let task = |exe: &Arc<Weights>| run(exe, View::whole(&zeroed(4)), View::whole(&zeroed(4)), 4);
    qa.queue.submit(list(0, vec![task(&ea)])).unwrap();
    clock.wait(Duration::from_nanos(512));
    qb.queue.submit(list(0, vec![task(&eb)])).unwrap();
    // `a` has 1024 bytes left; both get 0.6 bytes per nanosecond.
    clock.wait(Duration::from_nanos(1706));
    assert!(qa.done.try_recv().is_err());
    clock.wait(Duration::from_nanos(1));
    qa.done.try_recv().unwrap().outcome.unwrap();
    // Then `b` gets all it can use for its last 512.
    assert_eq!(ns(&clock), 512 + 1707);
    let before = board.usage();
    let next = clock.next_event().unwrap();
    clock.wait(next - clock.now());
    let done = qb.done.try_recv().unwrap();
    assert_eq!(ns(&clock), 512 + 1707 + 512);
    assert_eq!(done.times[0].modelled, Some(Duration::from_nanos(1707 + 512)));
    let after = board.usage();
    assert_eq!((after.busy_ns.clone(), after.bytes), (vec![2219, 2219], 2 * bytes));
    // 512 ns: the rest takes 4 W, `a` idles at 1 W, `b` works at 3 W; 512 bytes at 1 nJ.
    let joules = board.soc().energy_j(&before, &after).unwrap();
    assert!((joules - 512e-9 * (4.0 + 1.0 + 3.0) - 512e-9).abs() < 2e-9, "{joules}");
    let mut soc = board.soc().clone();
    assert_eq!(soc.cpu_time(&before, &after), Duration::ZERO);
    soc.processors[1].kind = ProcessorKind::Cpu;
    assert_eq!(soc.cpu_time(&before, &after), Duration::from_nanos(512));
}

#[test]
fn hand_overs_and_submissions_take_their_time() {
    let costs = "submit_us = 2\nhand_over = { blocking_us = 7, predicted_us = 3 }";
    let (_, [a, _], clock) = board(costs);
    let exe = compiled(&a);
    let mut qa = lane(&a, clock.clone());
    let task = || run(&exe, View::whole(&zeroed(4)), View::whole(&zeroed(4)), 4);
    for (waiting, expected) in [(Waiting::Block, 7000), (Waiting::Poll, 3000)] {
        let start = ns(&clock);
        let timed = |tasks| CommandList { waiting, ..list(0, tasks) };
        qa.queue.submit(timed(vec![task()])).unwrap();
        // It is enqueued while the first one runs, so that submitting takes no extra time.
        qa.queue.submit(timed(vec![task(), task()])).unwrap();
        let mut ends = Vec::new();
        while let Some(next) = clock.next_event() {
            clock.wait(next - clock.now());
            ends.extend(qa.done.try_iter().map(|_| ns(&clock) - start));
        }
        let first = 2000 + 1536 + expected;
        assert_eq!(ends, [first, first + 2 * 1536 + expected]);
    }
}

#[test]
fn slow_hand_overs_copy_what_was_written() {
    let more = "hand_over = { blocking_us = 7, predicted_us = 3, blocking_copies = true }";
    let (_, [a, _], clock) = board(more);
    let exe = compiled(&a);
    let mut qa = lane(&a, clock.clone());
    for (waiting, expected) in [(Waiting::Block, 7000 + 4 * 64), (Waiting::Poll, 3000)] {
        let start = ns(&clock);
        let tasks = vec![run(&exe, View::whole(&zeroed(4)), View::whole(&zeroed(4)), 4)];
        qa.queue.submit(CommandList { waiting, ..list(0, tasks) }).unwrap();
        while let Some(next) = clock.next_event() {
            clock.wait(next - clock.now());
        }
        qa.done.try_recv().unwrap().outcome.unwrap();
        assert_eq!(ns(&clock) - start, 1536 + expected);
    }
}

#[test]
fn queues_that_wait_by_themselves_wait_for_each_other() {
    let costs = "queue_waits = true\nhand_over = { blocking_us = 7, predicted_us = 3 }";
    let (_, [a, b], clock) = board(costs);
    assert!(a.caps().queue_waits);
    let [ea, eb] = [&a, &b].map(compiled);
    let (send, done) = sync_channel(64);
    let mut qa = a.queue(0, clock.clone(), send.clone()).unwrap();
    let mut qb = b.queue(1, clock.clone(), send).unwrap();
    let timelines = Arc::new(Timelines::new(2));
    let [x, y, z] = [0; 3].map(|_| View::whole(&zeroed(4)));
    filled(x.buffer(), 1.0);
    let with = |tasks, waits, signals| CommandList {
        waits,
        signals,
        timelines: Some(timelines.clone()),
        ..list(0, tasks)
    };
    let wait = vec![Wait { task: 0, on: Point { queue: 0, value: 5 } }];
    let signal = vec![Signal { task: 0, value: 5 }];
    qb.submit(with(vec![run(&eb, y.clone(), z.clone(), 4)], wait.clone(), vec![])).unwrap();
    qa.submit(with(vec![run(&ea, x.clone(), y.clone(), 4)], vec![], signal)).unwrap();
    clock.wait(Duration::from_micros(100));
    let both: Vec<Completion> = done.try_iter().collect();
    assert!(both.iter().all(|c| c.outcome.is_ok()) && both.len() == 2);
    assert_eq!(first(z.buffer()), 256.0);
    let of = |queue| both.iter().find(|c| c.queue == queue).unwrap().times[0];
    assert_eq!(of(1).start - of(0).end, Duration::from_micros(3));
    // The awaited task is lost: this one is skipped.
    let never = vec![Wait { task: 0, on: Point { queue: 0, value: 9 } }];
    qb.submit(with(vec![run(&eb, y.clone(), z.clone(), 4)], never, vec![])).unwrap();
    assert!(!qb.is_alive(), "nothing will wake it");
    qa.submit(with(vec![run(&ea, x, View::whole(&zeroed(1)), 4)], vec![], vec![])).unwrap();
    clock.wait(Duration::from_micros(100));
    let outcomes: Vec<_> = done.try_iter().map(|c| (c.queue, c.outcome.is_err())).collect();
    assert_eq!(outcomes, [(0, true), (1, true)]);
}
