//! Growing graphs on real and virtual devices: routers are host functions, experts are compiled.
//! Results are bit-identical to one thread in program order.

#![allow(clippy::unwrap_used)]

mod setup;

use std::sync::Arc;

use setup::{cpu, processors};
use troika::device::{
    Bindings, Buffer, Clock, Device, HostTask, RealClock, Run, View, Weights, Work,
};
use troika::engine::EngineError;
use troika::engine::schedule::{Growth, Runner, Task, TaskGraph};
use troika::graph::{DType, Op, Subgraph, SubgraphBuilder};
use troika::plan::Policy;
use troika::trace::Tracer;
use troika_check::CaseWeights;
use troika_sim::VirtualClock;

const COLS: usize = 8;
const CHUNKS: usize = 4;
const LAYERS: u64 = 3;
const EXPERTS: usize = 5;

/// An expert adds its values to a row.
fn expert() -> Subgraph {
    let mut b = SubgraphBuilder::new("expert", 1);
    let x = b.input("x", COLS, DType::F32);
    let own = b.input("own", COLS, DType::F32);
    let y = b.op("y", Op::Add, &[x, own], COLS);
    b.output(y);
    b.finish().unwrap()
}

fn modelled(name: &str, clock: &Arc<VirtualClock>) -> Arc<dyn Device> {
    let text = format!(
        "name = \"s\"\n[[processor]]\nname = \"{name}\"\nkind = \"cpu\"\npeak_gops = 1\n\
         bandwidth_gb_s = 1\nlaunch_us = 2\n"
    );
    processors(&text, clock).remove(0)
}

fn row() -> View {
    View::dense(&Buffer::zeroed(4 * COLS).unwrap(), 0, (1, 4 * COLS)).unwrap()
}

fn write(view: &View, value: impl Fn(usize) -> f32) {
    let mut rows = view.write().unwrap();
    rows.row_mut::<f32>(0).unwrap().iter_mut().enumerate().for_each(|(i, x)| *x = value(i));
}

fn read(view: &View) -> Vec<f32> {
    view.read().unwrap().row::<f32>(0).unwrap().to_vec()
}

/// The experts chosen for a row.
fn chosen(row: &[f32]) -> Vec<usize> {
    let sum: f32 = row.iter().sum();
    let bits = sum.to_bits() as usize >> 3;
    (0..bits % 4).map(|i| (bits / 4 + i) % EXPERTS).collect()
}

/// The work before a layer's router: rows mix with a value that all chunks share.
fn mix(row: &mut [f32], shared: &mut [f32], layer: u64) {
    for (x, s) in row.iter_mut().zip(shared) {
        *x = *x * 0.75 + *s;
        *s = *s * 0.5 + *x * 0.125 + layer as f32;
    }
}

fn scatter(row: &mut [f32], made: &[f32], e: usize) {
    row.iter_mut().zip(made).for_each(|(x, y)| *x = *x * 0.5 + y * (e + 1) as f32 * 0.25);
}

struct Model {
    devices: Vec<Arc<dyn Device>>,
    experts: Vec<Arc<Weights>>,
    rows: Vec<View>,
    own: Vec<View>,
    shared: View,
    /// Outputs of experts: one buffer for all chunks, or one per chunk.
    made: Vec<View>,
}

impl Model {
    fn new(devices: Vec<Arc<dyn Device>>, buffers: usize) -> Arc<Model> {
        let compile = |d: &Arc<dyn Device>| {
            Weights::compiled(&**d, &expert(), &CaseWeights::default()).unwrap()
        };
        let m = Model {
            experts: devices.iter().map(compile).collect(),
            devices,
            rows: (0..CHUNKS).map(|_| row()).collect(),
            own: (0..EXPERTS).map(|_| row()).collect(),
            shared: row(),
            made: (0..buffers).map(|_| row()).collect(),
        };
        for (c, r) in m.rows.iter().enumerate() {
            write(r, |i| (c * 3 + i) as f32 * 0.3);
        }
        for (e, r) in m.own.iter().enumerate() {
            write(r, |i| (e + 1) as f32 * 0.7 - i as f32);
        }
        Arc::new(m)
    }

    /// The expected final rows, computed without devices.
    fn want(&self) -> Vec<Vec<f32>> {
        let own: Vec<Vec<f32>> = self.own.iter().map(read).collect();
        let mut rows: Vec<Vec<f32>> = self.rows.iter().map(read).collect();
        let mut shared = read(&self.shared);
        let mut ran = 0;
        for row in &mut rows {
            for layer in 0..LAYERS {
                mix(row, &mut shared, layer);
                for e in chosen(row) {
                    ran += 1;
                    let made: Vec<f32> = row.iter().zip(&own[e]).map(|(x, y)| x + y).collect();
                    scatter(row, &made, e);
                }
            }
        }
        assert!(ran >= CHUNKS * LAYERS as usize, "{ran} experts ran");
        rows
    }

    fn task(&self, device: usize, name: &str, work: Work) -> Task {
        let device = device % self.devices.len();
        Task { device, name: name.into(), chunk: 0, rows: 0..1, work }
    }

    /// All tasks; the experts become known by the routers.
    fn graph(self: &Arc<Model>) -> TaskGraph {
        let mut tasks = Vec::new();
        for (c, layer) in (0..CHUNKS).flat_map(|c| (0..LAYERS).map(move |l| (c, l))) {
            let views = (vec![], vec![self.rows[c].clone(), self.shared.clone()]);
            let mixes = HostTask::new("mix", views, move |_, writes| {
                let [row, shared] = writes else { return Err("two views".into()) };
                let (Some(row), Some(shared)) = (row.row_mut(0), shared.row_mut(0)) else {
                    return Err("no rows".into());
                };
                mix(row, shared, layer);
                Ok(None)
            });
            tasks.push(self.task(c, "mix", Work::Host(Arc::new(mixes.unwrap()))));
            // It declares what its experts use.
            let writes = vec![self.rows[c].clone(), self.made[c % self.made.len()].clone()];
            let routes = HostTask::new("route", (self.own.clone(), writes), |_, writes| {
                Ok(Some(Box::new(chosen(writes[0].row_mut(0).ok_or("no row")?))))
            });
            tasks.push(self.task(c + 1, "route", Work::Host(Arc::new(routes.unwrap()))));
        }
        let routers: Vec<u32> = (0..tasks.len() as u32).filter(|task| task % 2 == 1).collect();
        let model = self.clone();
        let growth: Growth = Arc::new(move |router, result| {
            let experts = result.unwrap().downcast::<Vec<usize>>().unwrap();
            Ok(Arc::new(model.grown(router as usize / 2 / LAYERS as usize, &experts)?))
        });
        TaskGraph::new(tasks).growing(&routers, growth)
    }

    /// The experts that a router chose.
    fn grown(&self, c: usize, experts: &[usize]) -> Result<TaskGraph, EngineError> {
        let (row, made) = (&self.rows[c], &self.made[c % self.made.len()]);
        let mut tasks = Vec::new();
        for &e in experts {
            let device = (e + c) % self.devices.len();
            let inputs = vec![row.clone(), self.own[e].clone()];
            let b = Bindings { inputs, states: vec![], outputs: vec![made.clone()] };
            let run = Run {
                weights: self.experts[device].clone(),
                bindings: Arc::new(b),
                rows: 1,
                forward: Arc::default(),
            };
            tasks.push(self.task(device, "expert", Work::Run(run)));
            let views = (vec![made.clone()], vec![row.clone()]);
            let scatters = HostTask::new("scatter", views, move |reads, writes| {
                let made = reads[0].row(0).ok_or("no row")?;
                scatter(writes[0].row_mut(0).ok_or("no row")?, made, e);
                Ok(None)
            })?;
            tasks.push(self.task(c, "scatter", Work::Host(Arc::new(scatters))));
        }
        Ok(TaskGraph::new(tasks))
    }

    /// Runs it once and compares.
    fn check(self: &Arc<Model>, clock: Arc<dyn Clock>, policy: Policy) {
        let want = self.want();
        let mut runner =
            Runner::new(&self.devices, &[], (policy, 0), &clock, Tracer::off()).unwrap();
        runner.run(&self.graph().into()).unwrap();
        let rows: Vec<Vec<f32>> = self.rows.iter().map(read).collect();
        assert_eq!(rows, want);
    }
}

#[test]
fn graphs_grow_on_any_devices() {
    let clock = Arc::new(VirtualClock::new());
    for buffers in [1, CHUNKS] {
        for policy in [Policy::InOrder, Policy::OutOfOrder] {
            for devices in [
                vec![cpu("a", 1)],
                vec![cpu("a", 1), cpu("b", 1), cpu("c", 1)],
                vec![cpu("a", 1), modelled("m", &clock)],
            ] {
                Model::new(devices, buffers).check(Arc::new(RealClock::new()), policy);
            }
        }
    }
}

/// In virtual time, where a task holds its memory from start to end: every run takes equally long,
/// and less if each chunk's experts have their own buffer.
#[test]
fn graphs_grow_in_virtual_time() {
    let mut took = Vec::new();
    for buffers in [1, CHUNKS, 1, CHUNKS] {
        let clock = Arc::new(VirtualClock::new());
        let devices = (0..3).map(|i| modelled(&format!("m{i}"), &clock)).collect();
        Model::new(devices, buffers).check(clock.clone(), Policy::InOrder);
        took.push(clock.now());
    }
    assert_eq!(took[..2], took[2..]);
    assert!(took[1] < took[0], "{took:?}");
}
