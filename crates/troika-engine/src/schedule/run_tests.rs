//! The loop on devices that compute, fail, die or are cancelled at any task: on threads, with
//! queues that can wait for each other and queues that cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use troika_device::{Buffer, DeviceError, ForwardBatch, Run, Waiting, Work};
use troika_plan::Policy;

use super::fake::{Fake, Hook, RunHook, run, runner};
use super::{Canceller, JobId, Runner, Task, TaskGraph};
use crate::error::EngineError;

const BUFFERS: usize = 5;
const NOBODY: u32 = u32::MAX;

/// Tasks that each compute a number from two others and their own old one.
struct Case {
    buffers: Vec<Buffer>,
    runs: Vec<Run>,
    device: Vec<usize>,
    /// Which task fails, and which one cancels.
    fails: AtomicU32,
    cancels: AtomicU32,
    canceller: std::sync::Mutex<Option<Canceller>>,
    ran: AtomicU32,
}

impl Case {
    fn new(seed: u64, tasks: usize, devices: u64) -> Arc<Case> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut below = |n: u64| (rng.next_u64() % n) as usize;
        let buffers: Vec<Buffer> = (0..BUFFERS).map(|_| Buffer::zeroed(8).unwrap()).collect();
        let mut runs = Vec::new();
        for _ in 0..tasks {
            let (a, step) = (below(BUFFERS as u64), 1 + below(BUFFERS as u64 - 2));
            let (b, out) = ((a + step) % BUFFERS, (a + BUFFERS - 1) % BUFFERS);
            runs.push(run(&[&buffers[a], &buffers[b]], &[&buffers[out]]));
        }
        let device = (0..tasks).map(|_| below(devices)).collect();
        let none = || AtomicU32::new(NOBODY);
        let (canceller, ran) = (std::sync::Mutex::new(None), AtomicU32::new(0));
        Arc::new(Case { buffers, runs, device, fails: none(), cancels: none(), canceller, ran })
    }

    fn graph(&self, chunks: u32) -> Arc<TaskGraph> {
        let task = |i: usize| Task {
            device: self.device[i],
            name: "t".into(),
            chunk: i as u32 % chunks,
            rows: 0..0,
            work: Work::Run(self.runs[i].clone()),
        };
        Arc::new(TaskGraph::new((0..self.runs.len()).map(task).collect()))
    }

    fn work(&self, tag: u32) -> Result<(), DeviceError> {
        if self.cancels.load(Ordering::Relaxed) == tag {
            self.canceller.lock().unwrap().as_ref().unwrap().cancel();
        }
        if self.fails.load(Ordering::Relaxed) == tag {
            return Err(DeviceError::Gone(format!("task {tag}")));
        }
        let b = &self.runs[tag as usize].bindings;
        let mut out = b.outputs[0].write()?;
        let mut sum = u64::from(tag);
        for view in &b.inputs {
            sum = sum.wrapping_mul(31).wrapping_add(view.read()?.as_slice::<u64>().unwrap()[0]);
        }
        let out = out.as_mut_slice::<u64>().unwrap();
        out[0] = out[0].wrapping_mul(17).wrapping_add(sum);
        self.ran.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn reset(&self) {
        self.ran.store(0, Ordering::Relaxed);
        for (i, b) in self.buffers.iter().enumerate() {
            b.write().unwrap().as_mut_slice::<u64>()[0] = i as u64;
        }
    }

    fn values(&self) -> Vec<u64> {
        self.buffers.iter().map(|b| b.read().unwrap().as_slice::<u64>()[0]).collect()
    }

    /// The result of program order.
    fn want(&self) -> Vec<u64> {
        self.reset();
        (0..self.runs.len() as u32).for_each(|tag| self.work(tag).unwrap());
        self.values()
    }

    fn hook(self: &Arc<Case>) -> Hook {
        let case = self.clone();
        Arc::new(move |tag| case.work(tag))
    }

    fn runner(self: &Arc<Case>, devices: usize, queue_waits: bool, policy: Policy) -> Runner {
        runner((0..devices).map(|_| Fake::new(queue_waits, &self.hook())), policy)
    }

    /// Runs to the end and compares with program order.
    fn check(&self, runner: &mut Runner, graph: &Arc<TaskGraph>, what: &str) {
        let want = self.want();
        self.reset();
        runner.run(graph).unwrap();
        assert_eq!(self.values(), want, "{what}");
        assert_eq!(self.ran.load(Ordering::Relaxed) as usize, self.runs.len(), "{what}");
    }
}

/// Chunks, and whether queues wait: then lists of a single chunk are submitted at once.
const WAYS: [(u32, bool); 3] = [(1, true), (1, false), (3, true)];

#[test]
fn queues_that_wait_for_each_other_compute_what_program_order_does() {
    for seed in 0..60 {
        let devices = 1 + seed as usize % 3;
        let case = Case::new(seed, 40, devices as u64);
        for ((chunks, waits), policy) in
            WAYS.into_iter().flat_map(|w| [(w, Policy::InOrder), (w, Policy::OutOfOrder)])
        {
            let graph = case.graph(chunks);
            let mut runner = case.runner(devices, waits, policy);
            assert_eq!(graph.schedule.order.is_some(), devices > 1 && chunks == 1);
            for waiting in [Waiting::Poll, Waiting::Block] {
                runner.set_waiting(waiting);
                for _ in 0..3 {
                    let what = format!("seed {seed}, {chunks} chunks, {policy:?}, {waiting:?}");
                    case.check(&mut runner, &graph, &what);
                }
            }
        }
    }
}

/// Whichever task fails: its error is reported, nothing waits for ever, nothing stays claimed, and
/// the next run works.
#[test]
fn a_failure_at_any_task_ends_the_run_and_leaves_the_queues_usable() {
    for (chunks, waits) in WAYS {
        for waiting in [Waiting::Poll, Waiting::Block] {
            let case = Case::new(7, 30, 3);
            let graph = case.graph(chunks);
            let mut runner = case.runner(3, waits, Policy::InOrder);
            runner.set_waiting(waiting);
            let held = Arc::strong_count(&case.runs[0].bindings);
            for failing in 0..30 {
                case.fails.store(failing, Ordering::Relaxed);
                case.reset();
                let error = runner.run(&graph).unwrap_err();
                let told = format!("task {failing}");
                assert!(
                    matches!(&error, EngineError::Device(DeviceError::Gone(t)) if *t == told),
                    "{error:?} {told}"
                );
                assert!(case.ran.load(Ordering::Relaxed) < 30);
                for r in &case.runs {
                    assert_eq!(Arc::strong_count(&r.bindings), held);
                }
                case.fails.store(NOBODY, Ordering::Relaxed);
                case.check(&mut runner, &graph, &told);
            }
        }
    }
}

#[test]
fn a_queue_that_takes_no_lists_leaves_nobody_waiting() {
    for gone in 0..3 {
        let case = Case::new(11, 30, 3);
        let graph = case.graph(1);
        let hook = case.hook();
        let device = |i: usize| {
            let fake = Fake::new(true, &hook);
            if i == gone { fake.gone() } else { fake }
        };
        let mut runner = runner((0..3).map(device), Policy::InOrder);
        for _ in 0..3 {
            let error = runner.run(&graph).unwrap_err();
            assert!(matches!(error, EngineError::Device(DeviceError::Gone(_))), "{error:?}");
        }
    }
}

/// A queue whose thread dies reports nothing, while other senders keep the channel open. The run
/// still ends, on this device and those that wait for it.
#[test]
fn a_queue_whose_thread_dies_ends_the_run() {
    for (chunks, waits) in WAYS {
        for dies in [0, 17] {
            let case = Case::new(7, 30, 3);
            let graph = case.graph(chunks);
            let working = case.hook();
            let hook: Hook = Arc::new(move |tag| {
                assert_ne!(tag, dies, "this is what the test wants");
                working(tag)
            });
            let mut runner = runner((0..3).map(|_| Fake::new(waits, &hook)), Policy::InOrder);
            case.reset();
            for _ in 0..2 {
                let error = runner.run(&graph).unwrap_err();
                let gone =
                    matches!(&error, EngineError::Device(DeviceError::Gone(d)) if d == "fake");
                assert!(gone, "{error:?}");
            }
            assert!(case.ran.load(Ordering::Relaxed) < 30);
        }
    }
}

/// A queue that is only slow is checked, and waited for.
#[test]
fn a_slow_queue_is_waited_for() {
    for (chunks, waits) in WAYS {
        let case = Case::new(3, 12, 2);
        let graph = case.graph(chunks);
        let working = case.hook();
        let hook: Hook = Arc::new(move |tag| {
            // Longer than the time without reports after which queues are checked.
            if tag == 5 {
                std::thread::sleep(Duration::from_millis(2300));
            }
            working(tag)
        });
        let mut runner = runner((0..2).map(|_| Fake::new(waits, &hook)), Policy::InOrder);
        for _ in 0..2 {
            case.check(&mut runner, &graph, "slow");
        }
    }
}

#[test]
fn a_run_is_cancelled_at_any_task_and_the_next_one_works() {
    for (chunks, waits) in WAYS {
        let case = Case::new(13, 30, 2);
        let graph = case.graph(chunks);
        let mut runner = case.runner(2, waits, Policy::InOrder);
        *case.canceller.lock().unwrap() = Some(runner.canceller(JobId(0)));
        let cancelled = |runner: &mut Runner| {
            let error = runner.run(&graph).unwrap_err();
            assert!(matches!(error, EngineError::Device(DeviceError::Cancelled)), "{error:?}");
        };
        for at in 0..30 {
            case.reset();
            case.cancels.store(at, Ordering::Relaxed);
            // If all other tasks had begun, nothing could be left out: that run succeeds, and the
            // next one is cancelled.
            if runner.run(&graph).is_ok() {
                assert!(at > 0 && case.ran.load(Ordering::Relaxed) == 30);
                case.cancels.store(NOBODY, Ordering::Relaxed);
                cancelled(&mut runner);
                assert_eq!(case.ran.load(Ordering::Relaxed), 30);
            } else {
                assert!(case.ran.load(Ordering::Relaxed) < 30);
            }
            case.cancels.store(NOBODY, Ordering::Relaxed);
            case.check(&mut runner, &graph, &format!("after a cancellation at {at}"));
        }
        runner.canceller(JobId(0)).cancel();
        cancelled(&mut runner);
        case.check(&mut runner, &graph, "after a cancellation between runs");
    }
}

/// A graph that ended while another one ran is still reported by its own number, although a third
/// one has begun since.
#[test]
fn a_number_is_not_used_again_before_its_end_was_told() {
    let buffers = [0; 3].map(|_| Buffer::zeroed(8).unwrap());
    let hook: Hook = Arc::new(|tag| {
        std::thread::sleep(Duration::from_millis(if tag == 1 { 50 } else { 0 }));
        Ok(())
    });
    let mut runner = runner((0..2).map(|_| Fake::new(true, &hook)), Policy::InOrder);
    let graph = |device: usize, tasks: usize| {
        let work = || Work::Run(run(&[], &[&buffers[device]]));
        let task = |_| Task { device, name: "t".into(), chunk: 0, rows: 0..0, work: work() };
        Arc::new(TaskGraph::new((0..tasks).map(task).collect()))
    };
    let first = runner.start(graph(0, 1), false).unwrap();
    runner.run(&graph(1, 2)).unwrap();
    let second = runner.start(graph(1, 2), false).unwrap();
    assert_ne!(first, second);
    for job in [first, second] {
        assert_eq!(runner.wait().map(|(ended, _)| ended), Some(job));
    }
    assert!(runner.wait().is_none());
}

/// Waits end whether they are short or long, also when a queue's times change.
#[test]
fn waits_of_any_length_end() {
    let buffer = Buffer::zeroed(8).unwrap();
    let runs: Vec<Run> = (0..6).map(|_| run(&[], &[&buffer])).collect();
    let turn = Arc::new(AtomicU32::new(0));
    let theirs = turn.clone();
    let hook: Hook = Arc::new(move |tag| {
        let long = [0, 3, 0, 1, 4][theirs.load(Ordering::Relaxed) as usize % 5];
        std::thread::sleep(Duration::from_millis(if tag % 3 == 0 { long } else { 0 }));
        Ok(())
    });
    let mut runner = runner((0..2).map(|_| Fake::new(true, &hook)), Policy::InOrder);
    let task = |i: usize| Task {
        device: i % 2,
        name: "t".into(),
        chunk: 0,
        rows: 0..0,
        work: Work::Run(runs[i].clone()),
    };
    let mut graph = Arc::new(TaskGraph::new((0..6).map(task).collect()));
    for i in 0..25 {
        turn.store(i, Ordering::Relaxed);
        let forward = Arc::new(ForwardBatch::default());
        Arc::get_mut(&mut graph).unwrap().set_forward_batches(|_| Some(&forward));
        runner.run(&graph).unwrap();
    }
}

/// Several graphs on the same queues, each with its own tasks and values.
struct Shared {
    cases: Vec<Arc<Case>>,
    graphs: Vec<Arc<TaskGraph>>,
    runner: Runner,
}

/// Number of tasks of each graph.
const TASKS: usize = 20;

impl Shared {
    fn new(cases: usize, depth: usize, (chunks, waits): (u32, bool), policy: Policy) -> Shared {
        let cases: Vec<Arc<Case>> = (0..cases).map(|i| Case::new(i as u64, TASKS, 3)).collect();
        // A queue sees tags of all graphs: the memory that a task uses tells them apart.
        let theirs = cases.clone();
        let work: RunHook = Arc::new(move |run: &Run, tag| {
            let mine = |c: &&Arc<Case>| {
                let own = c.runs.get(tag as usize);
                own.is_some_and(|r| Arc::ptr_eq(&r.bindings, &run.bindings))
            };
            theirs.iter().find(mine).map_or(Ok(()), |case| case.work(tag))
        });
        let runner = runner((0..3).map(|_| Fake::of_runs(waits, depth, &work)), policy);
        let graphs = cases.iter().map(|c| c.graph(chunks)).collect();
        Shared { cases, graphs, runner }
    }

    /// Starts all graphs and waits for all. Returns their results.
    fn run(&mut self, background: impl Fn(usize) -> bool) -> Vec<Result<(), EngineError>> {
        self.cases.iter().for_each(|c| c.reset());
        let start = |(i, graph): (usize, &Arc<TaskGraph>)| {
            let job = self.runner.start(graph.clone(), background(i)).unwrap();
            let canceller = Some(self.runner.canceller(job));
            *self.cases[i].canceller.lock().unwrap() = canceller;
            job
        };
        let jobs: Vec<_> = self.graphs.iter().enumerate().map(start).collect();
        let mut results: Vec<_> = jobs.iter().map(|_| None).collect();
        while let Some((job, result)) = self.runner.wait() {
            let index = jobs.iter().position(|j| *j == job).unwrap();
            assert!(results[index].replace(result).is_none(), "{job:?} ends twice");
        }
        results.into_iter().map(Option::unwrap).collect()
    }

    fn want(&self) -> Vec<Vec<u64>> {
        self.cases.iter().map(|c| c.want()).collect()
    }
}

#[test]
fn graphs_that_run_at_once_compute_what_each_computes_alone() {
    for (way, policy) in
        WAYS.into_iter().flat_map(|w| [(w, Policy::InOrder), (w, Policy::OutOfOrder)])
    {
        for (count, depth) in [(2, 1), (5, 1), (5, 8)] {
            let mut shared = Shared::new(count, depth, way, policy);
            let want = shared.want();
            for round in 0..12 {
                let what = format!("{way:?}, {policy:?}, {count} graphs, depth {depth}");
                for result in shared.run(|i| (i + round) % 3 == 0) {
                    result.unwrap_or_else(|e| panic!("{what}: {e}"));
                }
                for (case, want) in shared.cases.iter().zip(&want) {
                    assert_eq!(case.values(), *want, "{what}");
                    assert_eq!(case.ran.load(Ordering::Relaxed) as usize, TASKS, "{what}");
                }
            }
        }
    }
}

/// Whichever task of one graph fails or cancels it: the others get the right results.
#[test]
fn what_ends_one_graph_leaves_the_others_whole() {
    for (way, depth) in WAYS.into_iter().flat_map(|w| [(w, 1), (w, 8)]) {
        let mut shared = Shared::new(4, depth, way, Policy::InOrder);
        let want = shared.want();
        for at in 0..TASKS as u32 {
            for (bad, fails) in [(0, true), (1, false), (3, true), (2, false)] {
                let what = format!("{way:?}, depth {depth}, graph {bad}, task {at}, {fails}");
                let case = shared.cases[bad].clone();
                let switch = if fails { &case.fails } else { &case.cancels };
                switch.store(at, Ordering::Relaxed);
                let results = shared.run(|i| i % 2 == 1);
                switch.store(NOBODY, Ordering::Relaxed);
                for (i, result) in results.into_iter().enumerate() {
                    match (i == bad, result) {
                        (false, result) => {
                            result.unwrap_or_else(|e| panic!("{what}: graph {i}: {e}"));
                            assert_eq!(shared.cases[i].values(), want[i], "{what}: graph {i}");
                        }
                        (true, Err(EngineError::Device(DeviceError::Gone(t)))) if fails => {
                            assert_eq!(t, format!("task {at}"), "{what}");
                        }
                        (true, Err(EngineError::Device(DeviceError::Cancelled))) if !fails => {}
                        (true, Ok(())) if !fails => {
                            // All others had begun: withdraw the late cancellation.
                            assert_eq!(case.values(), want[bad], "{what}");
                            case.canceller.lock().unwrap().as_ref().unwrap().reset();
                        }
                        (true, other) => panic!("{what}: {other:?}"),
                    }
                }
            }
        }
        assert!(shared.run(|_| false).iter().all(Result::is_ok));
    }
}

/// A queue that dies ends all graphs with tasks on it, and none waits for ever.
#[test]
fn a_queue_that_dies_ends_all_graphs_that_it_had() {
    for way in WAYS {
        let mut shared = Shared::new(3, 8, way, Policy::InOrder);
        let lane = shared.cases[1].device[4];
        shared.cases[1].cancels.store(4, Ordering::Relaxed);
        shared.cases.iter().for_each(|c| c.reset());
        let start = |g: &Arc<TaskGraph>| shared.runner.start(g.clone(), false).unwrap();
        let jobs: Vec<_> = shared.graphs.iter().map(start).collect();
        // Without a canceller its task panics, which ends its queue's thread.
        let mut results = Vec::new();
        while let Some((job, result)) = shared.runner.wait() {
            results.push((job, result));
        }
        assert_eq!(results.len(), jobs.len());
        for (job, result) in results {
            let index = jobs.iter().position(|j| *j == job).unwrap();
            if shared.cases[index].ran.load(Ordering::Relaxed) as usize == TASKS {
                continue;
            }
            let gone =
                matches!(&result, Err(EngineError::Device(DeviceError::Gone(d))) if d == "fake");
            assert!(gone, "{way:?}: graph {index} on queue {lane}: {result:?}");
        }
        // The others' queues live, but this one is gone for good.
        assert!(shared.runner.run(&shared.graphs[0]).is_err());
    }
}
