//! Other engines, each modelled as a processor of the SoC with one efficiency per stage. The
//! efficiency comes from one printed row (the anchor, H08); all other rows are predictions.

use super::lab::{Case, Lab};
use super::outcome::{Item, Outcome, mean};
use super::presets::{B1_8, B3, B7, B8};
use crate::Result;

/// An engine: the strategies that model its stages, and the printed anchors.
#[derive(Clone, Copy)]
struct Engine {
    name: &'static str,
    prefill: &'static str,
    decode: &'static str,
    /// Times hetero-layer's prefill of 256 tokens, and hetero-tensor's decode.
    anchors: [f64; 2],
}

const MNN: Engine =
    Engine { name: "MNN", prefill: "gpu-only", decode: "gpu-only", anchors: [5.85, 1.50] };
const MLC: Engine =
    Engine { name: "MLC", prefill: "gpu-only", decode: "gpu-only", anchors: [5.64, 1.52] };
const CPP: Engine =
    Engine { name: "llama.cpp", prefill: "cpu-only", decode: "cpu-only", anchors: [24.9, 2.53] };
const PI_2: Engine =
    Engine { name: "PowerInfer-2", prefill: "npu-only", decode: "cpu-only", anchors: [3.29, 1.32] };
const ENGINES: [Engine; 4] = [MNN, MLC, CPP, PI_2];

const TENSOR: &str = "hetero-tensor";

impl Engine {
    /// How many times slower than its processors its stages are, by the anchors.
    fn slower(self, lab: &mut Lab) -> Result<[f64; 2]> {
        let layer = lab.ttft(Case::prefill(B8, "hetero-layer", 256))?;
        let prefill = self.anchors[0] * layer / lab.ttft(Case::prefill(B8, self.prefill, 256))?;
        let tensor = lab.tpot(Case::decode(B8, TENSOR, 256))?;
        let decode = self.anchors[1] * tensor / lab.tpot(Case::decode(B8, self.decode, 256))?;
        Ok([prefill, decode])
    }

    /// Milliseconds of a prompt, and of each later token.
    fn times(self, lab: &mut Lab, model: &'static str, prompt: usize) -> Result<[f64; 2]> {
        let [prefill, decode] = self.slower(lab)?;
        let ttft = lab.ttft(Case::decode(model, self.prefill, prompt))?;
        let tpot = lab.tpot(Case::decode(model, self.decode, prompt))?;
        Ok([ttft * prefill, tpot * decode])
    }
}

fn ours(lab: &mut Lab, model: &'static str, prompt: usize) -> Result<[f64; 2]> {
    let case = Case::decode(model, TENSOR, prompt);
    Ok([lab.ttft(case)?, lab.tpot(case)?])
}

pub fn anchors(lab: &mut Lab) -> Result<Outcome> {
    let layer = lab.ttft(Case::decode(B8, "hetero-layer", 256))?;
    let [_, tensor] = ours(lab, B8, 256)?;
    let (mut items, mut notes) = (Vec::new(), Vec::new());
    for engine in ENGINES {
        let [ttft, tpot] = engine.times(lab, B8, 256)?;
        items.push(Item::new(format!("{}, prefill", engine.name), engine.anchors[0], ttft / layer));
        items.push(Item::new(format!("{}, decode", engine.name), engine.anchors[1], tpot / tensor));
        let [prefill, decode] = engine.slower(lab)?;
        notes.push(format!("{} {:.2} and {:.2}", engine.name, 1.0 / prefill, 1.0 / decode));
    }
    let note = format!("efficiencies of their processors: {}", notes.join("; "));
    Ok(Outcome::each(items, 0.05).noted(note))
}

/// A task of a benchmark: tokens of the prompt, and of the answer.
#[derive(Clone, Copy)]
struct TaskTokens {
    prompt: usize,
    out: usize,
}

const TURNS: TaskTokens = TaskTokens { prompt: 54, out: 374 };
const GSM8K: TaskTokens = TaskTokens { prompt: 296, out: 340 };
const LONG: TaskTokens = TaskTokens { prompt: 1787, out: 5 };

/// How many times slower an engine is in a task.
fn task(lab: &mut Lab, engine: Engine, task: TaskTokens) -> Result<f64> {
    let total = |[ttft, tpot]: [f64; 2]| ttft + tpot * (task.out - 1) as f64;
    let theirs = total(engine.times(lab, B7, task.prompt)?);
    Ok(theirs / total(ours(lab, B7, task.prompt)?))
}

pub fn end_to_end(lab: &mut Lab) -> Result<Outcome> {
    let mut all = Vec::new();
    for engine in ENGINES {
        all.push(task(lab, engine, GSM8K)?);
    }
    let mnn = [task(lab, MNN, TURNS)?, task(lab, MNN, GSM8K)?, task(lab, MNN, LONG)?];
    let items = vec![
        Item::new("multi-turn, MNN", 2.06, mnn[0]),
        Item::new("multi-turn, PowerInfer-2", 1.34, task(lab, PI_2, TURNS)?),
        Item::new("GSM8K, mean", 2.62, mean(&all)),
        Item::new("LongBench, MNN, most", 6.02, mnn[2]),
    ];
    let note = "the 3.40 over llm.npu need that paper's profile of the NPU";
    Ok(Outcome::numbers(items, |all| {
        let ordered = mnn[0] < mnn[1] && mnn[1] < mnn[2];
        all.iter().all(|i| i.error().abs() <= 0.30) && ordered
    })
    .noted(note))
}

pub fn prefill_most(lab: &mut Lab) -> Result<Outcome> {
    let mut most = [0.0_f64; 2];
    for model in [B8, B7, B3, B1_8] {
        for prompt in [64, 256, 1024] {
            let [tensor, _] = ours(lab, model, prompt)?;
            for (most, engine) in most.iter_mut().zip([MNN, PI_2]) {
                *most = most.max(engine.times(lab, model, prompt)?[0] / tensor);
            }
        }
    }
    let items = vec![Item::new("MNN", 8.68, most[0]), Item::new("PowerInfer-2", 3.69, most[1])];
    Ok(Outcome::each(items, 0.25))
}

pub fn long_bench(lab: &mut Lab) -> Result<Outcome> {
    let [ttft, tpot] = ours(lab, B7, 1787)?;
    let items = vec![Item::new("s", 6.2, (ttft + 4.0 * tpot) * 1e-3)];
    Ok(Outcome::numbers(items, |all| all[0].ours <= 6.2))
}
