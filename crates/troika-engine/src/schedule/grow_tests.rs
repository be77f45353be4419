//! Graphs whose tasks become known while they run, compared with the same tasks run one by one in
//! program order.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use troika_device::{Buffer, CopyRows, DeviceError, HostTask, ReadRows, View, Work, WriteRows};
use troika_plan::Policy;

use super::fake::{Fake, idle, run, runner};
use super::{Canceller, Growth, JobId, Runner, Task, TaskGraph};
use crate::error::EngineError;

fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    (rng.next_u64() % n as u64) as usize
}

/// Buffers of 8 rows of 8 bytes.
const BUFFERS: usize = 4;
const NOBODY: u32 = u32::MAX;

/// A function that computes bytes from others and from their old values. It may make known others.
struct Op {
    number: u32,
    device: usize,
    reads: Vec<View>,
    writes: Vec<View>,
    grows: Option<Vec<Op>>,
}

/// Operations on some memory, and what happens to them.
struct Case {
    buffers: Vec<Buffer>,
    ops: Vec<Op>,
    count: u32,
    fails: AtomicU32,
    cancels: AtomicU32,
    /// Whose growth is refused.
    refused: AtomicU32,
    canceller: Mutex<Option<Canceller>>,
    ran: AtomicU32,
}

fn compute(number: u32, reads: &[ReadRows<'_>], writes: &mut [WriteRows<'_>]) {
    let mut sum = number as u8;
    for r in reads {
        let rows = (0..).map_while(|i| r.row::<u8>(i));
        sum = rows.flatten().fold(sum, |s, b| s.wrapping_mul(31).wrapping_add(*b));
        std::thread::yield_now();
    }
    for w in writes {
        let mut row = 0;
        while let Some(bytes) = w.row_mut::<u8>(row) {
            bytes.iter_mut().for_each(|b| *b = b.wrapping_mul(17).wrapping_add(sum));
            row += 1;
        }
        std::thread::yield_now();
    }
}

impl Case {
    fn new(seed: u64, devices: usize) -> Arc<Case> {
        let none = || AtomicU32::new(NOBODY);
        let buffers: Vec<_> = (0..BUFFERS).map(|_| Buffer::zeroed(64).unwrap()).collect();
        let (mut count, rng) = (0, &mut ChaCha8Rng::seed_from_u64(seed));
        let all: Vec<usize> = (0..BUFFERS).collect();
        let ops = random(rng, &buffers, (&all, 12), devices, &mut count);
        Arc::new(Case {
            buffers,
            ops,
            count,
            fails: none(),
            cancels: none(),
            refused: none(),
            canceller: Mutex::default(),
            ran: AtomicU32::new(0),
        })
    }

    fn work(&self, op: u32) -> Result<(), String> {
        if self.cancels.load(Ordering::Relaxed) == op {
            self.canceller.lock().unwrap().as_ref().unwrap().cancel();
        }
        self.ran.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) == op { Err(format!("op {op}")) } else { Ok(()) }
    }

    /// The graph of some operations. Those that become known are in graphs made beforehand, which
    /// all runs use again.
    fn graph(self: &Arc<Case>, ops: &[Op]) -> Arc<TaskGraph> {
        let task = |op: &Op| {
            let (case, number) = (self.clone(), op.number);
            let views = (op.reads.clone(), op.writes.clone());
            let host = HostTask::new(&format!("op {number}"), views, move |reads, writes| {
                compute(number, reads, writes);
                case.work(number).map(|()| Some(Box::new(number) as _))
            });
            Task {
                device: op.device,
                name: format!("op {number}").into(),
                chunk: 0,
                rows: 0..0,
                work: Work::Host(Arc::new(host.unwrap())),
            }
        };
        let known: Vec<_> =
            ops.iter().map(|op| op.grows.as_ref().map(|ops| self.graph(ops))).collect();
        let growing = (0..ops.len() as u32).filter(|i| known[*i as usize].is_some());
        let growing: Vec<u32> = growing.collect();
        let (numbers, case) = (ops.iter().map(|op| op.number).collect::<Vec<_>>(), self.clone());
        let growth: Growth = Arc::new(move |task, result| {
            let number = numbers[task as usize];
            assert_eq!(result.unwrap().downcast_ref(), Some(&number));
            match case.refused.load(Ordering::Relaxed) == number {
                true => Err(EngineError::Empty),
                false => Ok(known[task as usize].clone().unwrap()),
            }
        });
        Arc::new(TaskGraph::new(ops.iter().map(task).collect()).growing(&growing, growth))
    }

    fn runner(&self, devices: usize, policy: Policy) -> Runner {
        let runner = runner((0..devices).map(|_| Fake::new(true, &idle())), policy);
        *self.canceller.lock().unwrap() = Some(runner.canceller(JobId(0)));
        runner
    }

    fn run(&self, runner: &mut Runner, graph: &Arc<TaskGraph>) -> Result<u32, EngineError> {
        self.ran.store(0, Ordering::Relaxed);
        for b in &self.buffers {
            b.write().unwrap().as_mut_slice::<u8>().fill(1);
        }
        runner.run(graph)?;
        Ok(self.ran.load(Ordering::Relaxed))
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        self.buffers.iter().map(|b| b.read().unwrap().as_slice::<u8>().to_vec()).collect()
    }

    /// The bytes after running all operations one by one.
    fn sequential(&self) -> Vec<Vec<u8>> {
        fn all(ops: &[Op]) {
            for op in ops {
                let reads: Vec<_> = op.reads.iter().map(|v| v.read().unwrap()).collect();
                let mut writes: Vec<_> = op.writes.iter().map(|v| v.write().unwrap()).collect();
                compute(op.number, &reads, &mut writes);
                drop((reads, writes));
                all(op.grows.as_deref().unwrap_or_default());
            }
        }
        for b in &self.buffers {
            b.write().unwrap().as_mut_slice::<u8>().fill(1);
        }
        all(&self.ops);
        self.bytes()
    }
}

/// Operations on some of the buffers. One that makes others known declares some buffers whole, and
/// these use only them.
fn random(
    rng: &mut ChaCha8Rng,
    buffers: &[Buffer],
    (among, most): (&[usize], usize),
    devices: usize,
    count: &mut u32,
) -> Vec<Op> {
    let mut ops = Vec::new();
    for _ in 0..below(rng, most + 1) {
        let number = *count;
        *count += 1;
        let device = below(rng, devices);
        if below(rng, 3) == 0 {
            let mut theirs = among.to_vec();
            (0..below(rng, theirs.len())).for_each(|_| _ = theirs.remove(0));
            let writes = theirs.iter().map(|b| View::dense(&buffers[*b], 0, (8, 8)).unwrap());
            let (reads, writes) = (Vec::new(), writes.collect());
            let grows = Some(random(rng, buffers, (&theirs, most / 2), devices, count));
            ops.push(Op { number, device, reads, writes, grows });
            continue;
        }
        let mut view = |buffer: usize| {
            let (row, col) = (below(rng, 8), below(rng, 8));
            let all = View::dense(&buffers[buffer], 0, (8, 8)).unwrap();
            let rows = all.rows(row..(row + 3).min(8)).unwrap();
            rows.columns(if row % 2 == 0 { 0..8 } else { col..8 }).unwrap()
        };
        let written = among[number as usize % among.len()];
        let reads = among.iter().filter(|b| **b != written).map(|b| view(*b)).collect();
        ops.push(Op { number, device, reads, writes: vec![view(written)], grows: None });
    }
    ops
}

#[test]
fn graphs_that_grow_compute_what_program_order_does() {
    let mut nested = 0;
    for seed in 0..300 {
        let devices = 1 + seed as usize % 3;
        let case = Case::new(seed, devices);
        let (want, graph) = (case.sequential(), case.graph(&case.ops));
        nested += case.count as usize - case.ops.len();
        for policy in [Policy::InOrder, Policy::OutOfOrder] {
            let mut runner = case.runner(devices, policy);
            for _ in 0..3 {
                assert_eq!(case.run(&mut runner, &graph).unwrap(), case.count, "seed {seed}");
                assert!(case.bytes() == want, "seed {seed}, {policy:?}");
            }
        }
    }
    assert!(nested > 1000, "{nested}");
}

/// Whichever task fails or cancels, or whichever growth is refused: the run ends with that error,
/// and the next one works.
#[test]
fn failures_of_what_became_known_end_the_run() {
    fn growing(ops: &[Op]) -> Vec<u32> {
        let all = ops.iter().filter_map(|op| op.grows.as_ref().map(|known| (op, known)));
        all.flat_map(|(op, known)| std::iter::once(op.number).chain(growing(known))).collect()
    }
    let mut growths = 0;
    for seed in [2, 8, 15, 21] {
        let case = Case::new(seed, 3);
        let (want, graph, growing) = (case.sequential(), case.graph(&case.ops), growing(&case.ops));
        growths += growing.len();
        let mut runner = case.runner(3, Policy::InOrder);
        for op in 0..case.count {
            case.fails.store(op, Ordering::Relaxed);
            let error = case.run(&mut runner, &graph).unwrap_err().to_string();
            assert!(error.ends_with(&format!("op {op}")), "{error}");
            case.fails.store(NOBODY, Ordering::Relaxed);

            case.cancels.store(op, Ordering::Relaxed);
            match case.run(&mut runner, &graph) {
                // All other tasks had begun: the next run is cancelled instead.
                Ok(ran) => assert_eq!(ran, case.count),
                Err(e) => {
                    assert!(matches!(e, EngineError::Device(DeviceError::Cancelled)), "{e:?}");
                    assert!(case.ran.load(Ordering::Relaxed) < case.count);
                }
            }
            case.cancels.store(NOBODY, Ordering::Relaxed);
            runner.canceller(JobId(0)).reset();

            if growing.contains(&op) {
                case.refused.store(op, Ordering::Relaxed);
                let error = case.run(&mut runner, &graph).unwrap_err();
                assert!(matches!(error, EngineError::Empty), "{error:?}");
                case.refused.store(NOBODY, Ordering::Relaxed);
            }
            assert_eq!(case.run(&mut runner, &graph).unwrap(), case.count);
            assert!(case.bytes() == want, "seed {seed}, op {op}");
        }
    }
    assert!(growths > 10, "{growths}");
}

/// Tasks that use what was not declared, or that are for no device, are refused by name.
#[test]
fn what_does_not_fit_is_refused() {
    let buffers: Vec<_> = (0..3).map(|_| Buffer::zeroed(64).unwrap()).collect();
    let rows = |b: usize, rows| View::dense(&buffers[b], 0, (8, 8)).unwrap().rows(rows).unwrap();
    let task =
        |name: &str, device, work| Task { device, name: name.into(), chunk: 0, rows: 0..0, work };
    let refused = |grown: Task| {
        let declared = (vec![rows(0, 0..4)], vec![rows(1, 0..4)]);
        let host = HostTask::new("router", declared, |_, _| Ok(None)).unwrap();
        let router = task("router", 0, Work::Host(Arc::new(host)));
        let growth: Growth = Arc::new(move |_, _| Ok(TaskGraph::new(vec![grown.clone()]).into()));
        let graph = TaskGraph::new(vec![router]).growing(&[0], growth);
        let devices = [Fake::new(true, &idle()), Fake::new(true, &idle()).without_host_tasks()];
        runner(devices, Policy::InOrder).run(&graph.into()).map_err(|e| e.to_string())
    };
    let copy = |from: View, to: View| task("expert", 0, Work::Copy(CopyRows::whole(from, to)));
    assert_eq!(refused(copy(rows(0, 0..4), rows(1, 0..4))), Ok(()));
    assert_eq!(refused(copy(rows(1, 0..1), rows(1, 3..4))), Ok(()));
    let undeclared = "task expert uses memory that router, which made it known, does not declare";
    for (from, to) in [((1, 1..3), (0, 1..3)), ((0, 4..5), (1, 0..1)), ((2, 0..1), (1, 0..1))] {
        assert_eq!(refused(copy(rows(from.0, from.1), rows(to.0, to.1))), Err(undeclared.into()));
    }
    let mut attends = run(&[], &[]);
    Arc::make_mut(&mut attends.bindings).states.push(rows(1, 0..1));
    assert_eq!(refused(task("expert", 0, Work::Run(attends))), Err(undeclared.into()));
    let nobody = task("expert", 2, Work::Run(run(&[], &[])));
    assert_eq!(refused(nobody), Err("task expert is for device 2 of 2".into()));
    let host = HostTask::new("expert", (vec![], vec![]), |_, _| Ok(None)).unwrap();
    let error = refused(task("expert", 1, Work::Host(Arc::new(host)))).unwrap_err();
    assert!(error.contains("runs no functions of the host"), "{error}");
}
