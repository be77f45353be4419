//! Plans for prompts of a length, on the SoC files: none that was made for another length is faster by
//! much.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use troika::device::Device;
use troika::sim::Soc;
use troika::weights::{Quant, WeightStore};
use troika::{DeviceOptions, SocCosts, open_devices};
use troika_graph::DType;
use troika_lab::{Shape, WEIGHTS};
use troika_model::lower::{Lowered, lower};
use troika_plan::{Goal, Plan, PlanDevice, PlanRequest, Refusal, leave_attention, make};
use troika_solve::{PredictRequest, SolveRequest, predict, solve};

const CONTEXT: usize = 1024;
const CHUNK: usize = 512;

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
    fn new(file: &str, names: &[&str], layers: usize) -> Machine {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../socs").join(file);
        let at = root.display().to_string();
        let spec = |name: &&str| format!("{name}=virtual:{at}:{name}").parse().unwrap();
        let devices =
            DeviceOptions { devices: names.iter().map(spec).collect(), ..Default::default() };
        let mut shape = Shape::find("qwen3-0.6b", WEIGHTS).unwrap();
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

/// Makes plans for some lengths: at each, the one that was made for it takes at most so many times as
/// long as any other.
fn check(machine: &Machine, lengths: &[usize], most: f64) {
    let plans: Vec<Plan> = lengths.iter().map(|n| machine.plan(CHUNK, *n)).collect();
    for (own, at) in plans.iter().zip(lengths) {
        let ms = machine.ms(CHUNK, own, *at);
        for (other, made_for) in plans.iter().zip(lengths) {
            let by_other = machine.ms(CHUNK, other, *at);
            assert!(
                ms <= by_other * most,
                "{} {:?}: {at} tokens take {ms} ms, and {by_other} ms by the plan for {made_for}",
                machine.soc.file,
                machine.names
            );
        }
    }
}

/// Most are within 2 %. Orders of chunks in flight are judged by a second prompt, too, which may forbid
/// one that is fast at first.
#[test]
fn no_plan_for_another_length_is_faster() {
    let machines = [
        ("sd8gen3-fp16.toml", ["gpu", "npu"]),
        ("sd8elite-fp16.toml", ["gpu", "npu"]),
        ("example.toml", ["gpu", "npu"]),
        ("two-ratios.toml", ["double", "cpu"]),
        ("two-ratios.toml", ["even", "cpu"]),
    ];
    let mut dice = ChaCha8Rng::seed_from_u64(62);
    for (file, names) in machines {
        let lengths = [0; 3].map(|_| 1 + (dice.next_u64() % 1000) as usize);
        check(&Machine::new(file, &names, 8), &lengths, 1.08);
    }
}

/// A plan for 300 tokens was once slower at 300 than the plan for 525.
#[test]
fn a_prompt_of_300_tokens_takes_less_than_by_the_plan_for_525() {
    check(&Machine::new("sd8gen3-fp16.toml", &["gpu", "npu"], 28), &[300, 525, 900], 1.02);
}
