//! Host functions as tasks: routers whose decisions become tasks.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use troika_device::{
    Buffer, Clock, Device, DeviceError, HostData, HostTask, RealClock, View, Work,
};
use troika_plan::Policy;
use troika_trace::Tracer;

use super::fake::{Fake, idle, runner};
use super::{Growth, Runner, Task, TaskGraph};
use crate::error::EngineError;

const CHUNKS: usize = 3;
const LAYERS: u64 = 3;

fn task(device: usize, name: &str, work: Work) -> Task {
    Task { device, name: name.into(), chunk: 0, rows: 0..4, work }
}

/// A model of three chunks. In each layer a router chooses, by a chunk's value, the experts that
/// change it. Each chunk also changes a value that all share.
struct Model {
    /// A value for each chunk, one that all share, and the buffer that experts share.
    values: Vec<View>,
    /// Which router fails or panics.
    fails: AtomicU32,
    panics: AtomicU32,
    /// How long routers take.
    takes: [AtomicU32; CHUNKS],
    threads: Mutex<HashSet<ThreadId>>,
}

const SHARED: usize = CHUNKS;
const EXPERTS: usize = CHUNKS + 1;
const NOBODY: u32 = u32::MAX;

fn experts(value: u64) -> Vec<u64> {
    (0..value % 4).map(|i| value / 7 % 5 + i).collect()
}

fn mix(value: u64, with: u64) -> u64 {
    value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(with) >> 3
}

impl Model {
    fn new() -> Arc<Model> {
        let view = |_| View::whole(&Buffer::zeroed(8).unwrap());
        Arc::new(Model {
            values: (0..CHUNKS + 2).map(view).collect(),
            fails: AtomicU32::new(NOBODY),
            panics: AtomicU32::new(NOBODY),
            takes: Default::default(),
            threads: Mutex::default(),
        })
    }

    fn reset(&self) {
        for (i, v) in self.values.iter().enumerate() {
            v.write().unwrap().as_mut_slice::<u64>().unwrap()[0] = 1000 + i as u64;
        }
    }

    fn read(&self) -> Vec<u64> {
        let value = |v: &View| v.read().unwrap().as_slice::<u64>().unwrap()[0];
        self.values.iter().map(value).collect()
    }

    /// The expected values, computed without devices.
    fn want() -> Vec<u64> {
        let mut v: Vec<u64> = (0..CHUNKS as u64 + 2).map(|i| 1000 + i).collect();
        for (c, layer) in (0..CHUNKS).flat_map(|c| (0..LAYERS).map(move |l| (c, l))) {
            (v[c], v[SHARED]) = (mix(v[c], v[SHARED]), mix(v[SHARED], layer));
            for e in experts(v[c]) {
                v[EXPERTS] = mix(v[c], e);
                v[c] = mix(v[c], v[EXPERTS]);
            }
        }
        v
    }

    /// A function of the values that it reads and writes.
    fn function(
        self: &Arc<Model>,
        name: &str,
        (reads, writes): (&[usize], &[usize]),
        compute: impl Fn(&[u64], &mut [u64]) -> Result<Option<HostData>, String> + Send + Sync + 'static,
    ) -> Work {
        let views = |list: &[usize]| list.iter().map(|i| self.values[*i].clone()).collect();
        let model = self.clone();
        let host = HostTask::new(name, (views(reads), views(writes)), move |reads, writes| {
            model.threads.lock().unwrap().insert(std::thread::current().id());
            let read: Vec<u64> = reads.iter().map(|r| r.as_slice::<u64>().unwrap()[0]).collect();
            let mut written: Vec<u64> =
                writes.iter().map(|w| w.as_slice::<u64>().unwrap()[0]).collect();
            let data = compute(&read, &mut written)?;
            for (w, value) in writes.iter_mut().zip(written) {
                w.as_mut_slice::<u64>().unwrap()[0] = value;
            }
            Ok(data)
        });
        Work::Host(Arc::new(host.unwrap()))
    }

    fn router(self: &Arc<Model>, c: usize, layer: u64) -> Work {
        let (model, number) = (self.clone(), c as u32 + 3 * layer as u32);
        self.function(
            &format!("router {c} of layer {layer}"),
            (&[], &[c, EXPERTS]),
            move |_, written| {
                let takes = model.takes[c].load(Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(takes.into()));
                if model.panics.load(Ordering::Relaxed) == number {
                    std::panic::panic_any(format!("router {number}"));
                }
                if model.fails.load(Ordering::Relaxed) == number {
                    return Err(format!("no experts for router {number}"));
                }
                Ok(Some(Box::new(experts(written[0]))))
            },
        )
    }

    /// All tasks but the experts, which become known.
    fn graph(self: &Arc<Model>, devices: usize) -> Arc<TaskGraph> {
        let mut tasks = Vec::new();
        for (c, layer) in (0..CHUNKS).flat_map(|c| (0..LAYERS).map(move |l| (c, l))) {
            let attention = self.function("attention", (&[], &[c, SHARED]), move |_, v| {
                (v[0], v[1]) = (mix(v[0], v[1]), mix(v[1], layer));
                Ok(None)
            });
            tasks.push(task(c % devices, "attention", attention));
            let name = format!("router {c} of layer {layer}");
            tasks.push(task((c + 1) % devices, &name, self.router(c, layer)));
        }
        let routers: Vec<u32> = (0..tasks.len() as u32).filter(|task| task % 2 == 1).collect();
        let model = self.clone();
        let growth: Growth = Arc::new(move |router, result| {
            let chunk = router as usize / 2 / LAYERS as usize;
            let experts = result.unwrap().downcast::<Vec<u64>>().unwrap();
            Ok(Arc::new(model.experts(devices, chunk, &experts)))
        });
        Arc::new(TaskGraph::new(tasks).growing(&routers, growth))
    }

    /// The experts that a router chose.
    fn experts(self: &Arc<Model>, devices: usize, c: usize, experts: &[u64]) -> TaskGraph {
        let both = experts.iter().flat_map(|&e| {
            let gather = self.function("gather", (&[c], &[EXPERTS]), move |read, v| {
                v[0] = mix(read[0], e);
                Ok(None)
            });
            let expert = self.function("expert", (&[EXPERTS], &[c]), |read, v| {
                v[0] = mix(v[0], read[0]);
                Ok(None)
            });
            let gather = task(c % devices, "gather", gather);
            [gather, task(e as usize % devices, "expert", expert)]
        });
        TaskGraph::new(both.collect())
    }

    fn run(self: &Arc<Model>, runner: &mut Runner, devices: usize) -> Result<(), EngineError> {
        self.reset();
        runner.run(&self.graph(devices))
    }
}

/// Whichever router is slowest, the values are the same, and the scheduling thread computes none.
#[test]
fn what_routers_decide_becomes_tasks() {
    let want = Model::want();
    let orders = [[0, 4, 8], [8, 4, 0], [4, 8, 0], [8, 0, 4], [0, 8, 4], [4, 0, 8]];
    for (devices, order) in (1..=3).flat_map(|d| orders.map(|o| (d, o))) {
        for policy in [Policy::InOrder, Policy::OutOfOrder] {
            let model = Model::new();
            for (takes, ms) in model.takes.iter().zip(order) {
                takes.store(ms, Ordering::Relaxed);
            }
            let fakes = (0..devices).map(|_| Fake::new(true, &idle()).here());
            let mut runner = runner(fakes, policy);
            model.run(&mut runner, devices).unwrap();
            assert_eq!(model.read(), want, "{devices} devices, {order:?}");
            let threads = model.threads.lock().unwrap();
            assert!(threads.len() <= devices && !threads.contains(&std::thread::current().id()));
        }
    }
}

/// A host function in a fixed graph of one device, whose queue could run it on this thread.
#[test]
fn fixed_graphs_run_functions_of_the_host_on_queues() {
    let model = Model::new();
    for devices in [1, 2] {
        let fakes = (0..devices).map(|_| Fake::new(true, &idle()).here());
        let mut runner = runner(fakes, Policy::InOrder);
        let step = |i: usize| {
            let work = model.function("f", (&[i], &[i + 1]), |read, v| {
                v[0] = mix(v[0], read[0]);
                Ok(None)
            });
            task(i % devices, "f", work)
        };
        let graph = Arc::new(TaskGraph::new((0..4).map(step).collect()));
        assert_eq!(graph.schedule.dag.waits, [0, 1, 1, 1]);
        for _ in 0..3 {
            model.reset();
            runner.run(&graph).unwrap();
            let mut want: Vec<u64> = (1000..1005).collect();
            (0..4).for_each(|i| want[i + 1] = mix(want[i + 1], want[i]));
            assert_eq!(model.read(), want);
        }
        let threads = model.threads.lock().unwrap();
        assert!(!threads.contains(&std::thread::current().id()));
    }
}

/// Whichever router fails or panics while other growths are open: the run ends and names it.
#[test]
fn routers_that_fail_or_panic_end_the_run() {
    let model = Model::new();
    let fakes = (0..2).map(|_| Fake::new(true, &idle()));
    let mut runner = runner(fakes, Policy::InOrder);
    for number in 0..CHUNKS as u32 * LAYERS as u32 {
        model.fails.store(number, Ordering::Relaxed);
        let error = model.run(&mut runner, 2).unwrap_err().to_string();
        assert!(error.ends_with(&format!("no experts for router {number}")), "{error}");
        model.fails.store(NOBODY, Ordering::Relaxed);
        model.panics.store(number, Ordering::Relaxed);
        let error = model.run(&mut runner, 2).unwrap_err().to_string();
        assert!(error.ends_with(&format!("panicked: router {number}")), "{error}");
        model.panics.store(NOBODY, Ordering::Relaxed);
        model.run(&mut runner, 2).unwrap();
        assert_eq!(model.read(), Model::want());
    }
}

fn refused(result: Result<(), EngineError>, name: &str) {
    match result {
        Err(EngineError::Device(DeviceError::Submission { task, why })) => {
            assert!(task == name && why.contains("device fake"), "{task}: {why}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn devices_that_run_no_functions_of_the_host_are_named() {
    let model = Model::new();
    let fakes = [Fake::new(true, &idle()), Fake::new(true, &idle()).without_host_tasks()];
    let mut runner = runner(fakes, Policy::InOrder);
    let work = || model.function("f", (&[0], &[1]), |_, _| Ok(None));
    refused(runner.run(&TaskGraph::new(vec![task(1, "f", work())]).into()), "f");
    runner.run(&TaskGraph::new(vec![task(0, "f", work())]).into()).unwrap();
}

#[test]
fn traces_have_functions_of_the_host() {
    let tracer = Tracer::on();
    let model = Model::new();
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let fakes = [Arc::new(Fake::new(true, &idle())) as Arc<dyn Device>];
    let mut runner =
        Runner::new(&fakes, &[], (Policy::InOrder, 0), &clock, tracer.clone()).unwrap();
    let tasks = vec![task(0, "router", model.router(0, 0))];
    model.reset();
    runner.run(&TaskGraph::new(tasks).into()).unwrap();
    let spans = tracer.spans();
    let named = |name: &str| spans.iter().find(|s| s.name == name).unwrap();
    let arg = |name: &str, what: &str| {
        named(name).args.iter().find(|a| a.0 == what).map(|a| format!("{:?}", a.1))
    };
    assert_eq!(arg("router", "rows").as_deref(), Some("Int(4)"));
    assert_eq!(spans.len(), 1);
}
