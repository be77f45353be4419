//! Plans for prompts of a length, on the SoC files: none that was made for another length is faster.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use troika::device::Device;
use troika::sim::Soc;
use troika::weights::{Quant, WeightStore};
use troika::{DeviceOptions, SocCosts, open_devices};
use troika_graph::DType;
use troika_lab::{Shape, WEIGHTS};
use troika_model::lower::{Lowered, lower};
use troika_plan::{Goal, Plan, PlanDevice, PlanRequest, Policy, Refusal, leave_attention, make};
use troika_solve::{PredictRequest, SolveRequest, predict, solve};

const CONTEXT: usize = 1024;

/// Processors of a SoC file, and a model.
struct Machine {
    soc: Soc,
    names: Vec<String>,
    facts: Vec<PlanDevice>,
    devices: Vec<Arc<dyn Device>>,
    shape: Shape,
    store: WeightStore,
}

impl Machine {
    fn new(file: &str, names: &[&str], model: &str, layers: usize) -> Machine {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../socs").join(file);
        let at = root.display().to_string();
        let spec = |name: &&str| format!("{name}=virtual:{at}:{name}").parse().unwrap();
        let devices =
            DeviceOptions { devices: names.iter().map(spec).collect(), ..Default::default() };
        let mut shape = Shape::find(model, WEIGHTS).unwrap();
        shape.spec.layers.truncate(layers);
        let devices = open_devices(&devices).unwrap();
        let facts = devices.iter().map(PlanDevice::of).collect();
        let store = shape.lazy_weights(Quant::None);
        let names = names.iter().map(|n| n.to_string()).collect();
        Machine { soc: Soc::read(&root).unwrap(), names, facts, devices, shape, store }
    }

    fn base(&self, chunk: usize) -> PlanRequest {
        PlanRequest {
            context: Some(CONTEXT),
            chunk,
            kv_dtype: Some(DType::F16),
            ..PlanRequest::default()
        }
    }

    fn lowered(&self, chunk: usize) -> Arc<Lowered> {
        let one = make(&self.shape.spec, &self.facts, &self.base(chunk)).unwrap();
        Arc::new(
            lower(&self.shape.spec, &|key| self.store.shape(key), one.lower_options()).unwrap(),
        )
    }

    fn plan(&self, chunk: usize, prompt: usize) -> Plan {
        let base = self.base(chunk);
        let spec = &self.shape.spec;
        let one = make(spec, &self.facts, &base).unwrap();
        let shapes = |key| self.store.shape(key);
        let mut refusals: Vec<Refusal> =
            troika_engine::examine(spec, &shapes, &one, &self.devices).unwrap();
        leave_attention(self.devices.iter().map(|d| &**d), &mut refusals);
        solve(&SolveRequest {
            spec,
            lowered: &self.lowered(chunk),
            devices: &self.facts,
            cost: &SocCosts::named(&self.soc, &self.names),
            refusals: &refusals,
            goal: Goal::Ttft,
            base: &base,
            prompt,
            generate: 16,
            lengths: &[],
            candidates: &[],
        })
        .unwrap()
        .plan
    }

    /// Milliseconds to the first token.
    fn ms(&self, chunk: usize, plan: &Plan, prompt: usize) -> f64 {
        let request = PredictRequest {
            lowered: &self.lowered(chunk),
            devices: &self.facts,
            cost: &SocCosts::named(&self.soc, &self.names),
            prompt,
            generate: 16,
        };
        predict(&request, plan).unwrap().ttft_us * 1e-3
    }
}

#[test]
#[ignore]
fn matrix() {
    let layers: usize = std::env::var("L").map_or(28, |l| l.parse().unwrap());
    let chunk: usize = std::env::var("C").map_or(512, |l| l.parse().unwrap());
    let model = std::env::var("MODEL").unwrap_or("qwen3-0.6b:Q4_0".into());
    let lengths = [17, 50, 100, 130, 183, 256, 300, 400, 525, 700, 900, 1000];
    let which = std::env::var("F").unwrap_or_default();
    for (file, names) in [
        ("sd8gen3-fp16.toml", ["gpu", "npu"]),
        ("sd8elite-fp16.toml", ["gpu", "npu"]),
        ("example.toml", ["gpu", "npu"]),
        ("two-ratios.toml", ["double", "cpu"]),
        ("two-ratios.toml", ["even", "cpu"]),
    ] {
        if !format!("{file}{}", names[0]).contains(&which) {
            continue;
        }
        let m = Machine::new(file, &names, &model, layers);
        let start = std::time::Instant::now();
        let plans: Vec<(f64, Plan)> = lengths
            .iter()
            .map(|b| {
                let s = std::time::Instant::now();
                let p = m.plan(chunk, *b);
                (s.elapsed().as_secs_f64(), p)
            })
            .collect();
        let took = start.elapsed();
        println!("{file} {names:?} planning {took:?}");
        for (b, (s, p)) in lengths.iter().zip(&plans) {
            println!(
                "  for {b}: {s:.2} s, chunk {} x {}, {:?}, {} lengths, {:?}",
                p.prefill.chunk,
                p.prefill.chunks_in_flight,
                p.prefill.policy,
                p.prefill.lengths.len(),
                p.devices
            );
            if std::env::var("RULES").is_ok_and(|r| r.split(',').any(|r| r == b.to_string())) {
                println!("{}", p.explain());
                for policy in [Policy::InOrder, Policy::OutOfOrder, Policy::CriticalPath] {
                    let mut q = p.clone();
                    q.prefill.policy = policy;
                    println!("{policy:?} {:.3}", m.ms(chunk, &q, *b));
                }
            }
        }
        if std::env::var("FAST").is_ok() {
            continue;
        }
        for (i, a) in lengths.iter().enumerate() {
            let all: Vec<f64> = plans.iter().map(|p| m.ms(chunk, &p.1, *a)).collect();
            let own = all[i];
            let best = all.iter().copied().fold(f64::INFINITY, f64::min);
            let by = all.iter().position(|x| *x == best).unwrap();
            println!(
                "  at {a}: own {own:.3}, best {best:.3} by {}, ratio {:.3}",
                lengths[by],
                own / best
            );
        }
    }
}
