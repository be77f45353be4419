//! Ablations of papers on two devices: each step adds a technique to the steps before it.

use std::time::Instant;

use troika::engine::WantedLogits;
use troika::graph::{ProductForm, ScaleOrigin};
use troika::model::spec::WeightRole;
use troika::plan::{Policy, Strategy, SyncMode, median};
use troika::{Model, NpuNumbers, OpenOptions, Outliers, PlanSource, Planned};

use crate::simulate::CHUNK;
use crate::{LabError, Result, Subject};

/// HeteroInfer's standard lengths (section 4.1).
const STANDARD: [usize; 5] = [32, 64, 128, 256, 512];

/// A paper's ablation, on the first two devices: the first is the NPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ablation {
    /// llm.npu, figure 19: needs a calibration.
    LlmNpu,
    /// HeteroInfer, section 5.6.
    HeteroInfer,
}

/// A step, and what a prompt takes with it.
#[derive(Clone, Debug)]
pub struct StepTime {
    /// What it adds.
    pub name: &'static str,
    /// The time to load weights and to make graphs, in milliseconds.
    pub prepare_ms: f64,
    /// The time to the first token, in milliseconds: the median. Includes preparing where graphs are
    /// made for the length of the prompt.
    pub ttft_ms: f64,
}

struct Step {
    name: &'static str,
    options: OpenOptions,
    /// The products that have their operands exchanged, instead of those of the plan.
    exchange: Option<Vec<WeightRole>>,
    /// Whether graphs are made for one length, once the prompt is known.
    online: bool,
}

impl Ablation {
    /// The ablation of this name.
    ///
    /// # Errors
    /// A sentence with the known names.
    pub fn parse(name: &str) -> Result<Ablation, String> {
        match name {
            "llm.npu" => Ok(Ablation::LlmNpu),
            "heteroinfer" => Ok(Ablation::HeteroInfer),
            _ => Err(format!("there is no ablation {name:?}; they are llm.npu and heteroinfer")),
        }
    }

    /// The steps, each with all that the former ones have.
    fn steps(
        self,
        options: &OpenOptions,
        prompt: usize,
        exchange: Option<Vec<WeightRole>>,
    ) -> Result<Vec<Step>> {
        let [_, second, ..] = &options.devices.devices[..] else {
            let why = "the ablation needs two devices, as in --device npu,cpu";
            return Err(LabError::Impossible(why.into()));
        };
        let mut base = OpenOptions {
            plan: PlanSource::Strategy,
            strategy: Strategy::PrefillDecode,
            chunk: options.chunk.or(Some(CHUNK.min(prompt))),
            cache: None,
            ..options.clone()
        };
        if self == Ablation::HeteroInfer {
            // The prompt goes through the model once, in parts of standard lengths.
            base.sync = SyncMode::Blocking;
            base.chunk = options.chunk.or(Some(prompt));
            if base.devices.npu.row_buckets.is_empty() {
                let standard = STANDARD.iter().copied().filter(|n| *n < prompt);
                base.devices.npu.row_buckets = standard.chain([prompt]).collect();
            }
        }
        let mut alone = OpenOptions { strategy: Strategy::OneDevice, ..base.clone() };
        alone.devices.devices = vec![second.clone()];
        (alone.npu_numbers, alone.npu_decode) = (NpuNumbers::Floats, None);
        let rest = match self {
            Ablation::LlmNpu => llm_npu(base, prompt)?,
            Ablation::HeteroInfer => heteroinfer(base, prompt, options, exchange),
        };
        Ok([Step::new("the other device alone", &alone)].into_iter().chain(rest).collect())
    }

    /// Opens a model for each step, and times prompts on them in turns. Virtual devices take virtual
    /// time.
    ///
    /// # Errors
    /// Other than two devices, no calibration where one is needed, or a model that does not open.
    pub fn run(
        self,
        subject: &Subject,
        options: &OpenOptions,
        prompt: usize,
        repetitions: usize,
    ) -> Result<Vec<StepTime>> {
        // Plans for virtual devices have the faster order. On others, a profile knows it.
        let exchange = match (self, &options.plan) {
            (Ablation::HeteroInfer, PlanSource::Profile(_)) => {
                let plan = subject.bind(options, false)?.plan(options)?.plan;
                Some(plan.all_rules().flat_map(|rule| rule.exchange.iter().copied()).collect())
            }
            _ => None,
        };
        let steps = self.steps(options, prompt, exchange)?;
        let mut open = Vec::with_capacity(steps.len());
        for step in &steps {
            open.push(step.open(subject)?);
        }
        let vocab = subject.spec()?.vocab;
        let tokens: Vec<u32> = (0..prompt).map(|i| (i * 7919 % vocab) as u32).collect();
        let mut times = vec![Vec::new(); steps.len()];
        for turn in 0..=repetitions {
            for (times, (model, _)) in times.iter_mut().zip(&open) {
                let mut session = model.fresh_session()?;
                let began = model.clock().now();
                session.feed(&tokens, WantedLogits::Last, &mut |_, _| {})?;
                // The first run touches new memory.
                if turn > 0 {
                    times.push((model.clock().now() - began).as_secs_f64() * 1e3);
                }
            }
        }
        let figures = steps.iter().zip(open).zip(times);
        Ok(figures
            .map(|((step, (_, prepare_ms)), times)| {
                let run = median(times).unwrap_or(f64::NAN);
                let ttft_ms = if step.online { run + prepare_ms } else { run };
                StepTime { name: step.name, prepare_ms, ttft_ms }
            })
            .collect())
    }
}

/// What llm.npu adds to a graph for each prompt with scales for groups of columns.
fn llm_npu(base: OpenOptions, prompt: usize) -> Result<Vec<Step>> {
    let mut groups = base.clone();
    let NpuNumbers::Calibrated(numbers) = &mut groups.npu_numbers else {
        let why = "the ablation needs a calibration (--calibration)";
        return Err(LabError::Impossible(why.into()));
    };
    numbers.groups = true;
    numbers.outliers = Outliers { scales: ScaleOrigin::Static, pruned: 1.0 };
    let several = |name, policy| {
        let options = OpenOptions { policy: Some(policy), ..base.clone() };
        Step { options, ..Step::new(name, &base) }
    };
    Ok(vec![
        Step::online("a graph for the prompt, a scale for 32 columns", &groups, prompt),
        Step::new("chunks that share graphs", &groups),
        Step::new("one scale, and outliers beside", &base),
        several("several chunks in flight", Policy::InOrder),
        several("out of order", Policy::OutOfOrder),
        several("the longest way first", Policy::CriticalPath),
    ])
}

/// What HeteroInfer adds to a graph for each prompt. The last plans are those of the options, if a
/// profile chooses them.
fn heteroinfer(
    base: OpenOptions,
    prompt: usize,
    options: &OpenOptions,
    exchange: Option<Vec<WeightRole>>,
) -> Vec<Step> {
    let rows = OpenOptions { strategy: Strategy::SplitRows(None), ..base.clone() };
    let (strategy, plan) = (Strategy::SplitHybrid, options.plan.clone());
    let columns = OpenOptions { strategy, plan, ..base.clone() };
    let fast = OpenOptions { sync: SyncMode::Predicted, ..columns.clone() };
    let own = |name, options| Step { exchange: None, ..Step::new(name, options) };
    vec![
        Step::online("a graph for the prompt", &base, prompt),
        Step::new("standard lengths, other rows beside", &rows),
        Step { exchange, ..own("the faster order of operands", &rows) },
        own("columns beside, too", &columns),
        own("fast synchronization", &fast),
    ]
}

impl Step {
    /// A chunk at a time.
    fn new(name: &'static str, options: &OpenOptions) -> Step {
        let options = OpenOptions { policy: Some(Policy::ChunkAtATime), ..options.clone() };
        Step { name, options, exchange: Some(Vec::new()), online: false }
    }

    /// The prompt is a chunk, for which alone graphs are made.
    fn online(name: &'static str, options: &OpenOptions, prompt: usize) -> Step {
        let mut options = OpenOptions { chunk: Some(prompt), ..options.clone() };
        options.devices.npu.row_buckets = vec![prompt];
        Step { online: true, ..Step::new(name, &options) }
    }

    /// The model, and the milliseconds that opening it took.
    fn open(&self, subject: &Subject) -> Result<(Model, f64)> {
        let bound = subject.bind(&self.options, true)?;
        let Planned { mut plan, model, .. } = bound.plan(&self.options)?;
        if let Some(exchange) = &self.exchange {
            let exchanged = || exchange.iter().map(|role| (*role, ProductForm::Exchanged));
            plan.all_rules_mut().for_each(|rule| rule.set_forms(exchanged()));
        }
        let options = OpenOptions { plan: plan.into(), fallback: true, ..self.options.clone() };
        let began = Instant::now();
        let model = Model::open_bound(&subject.to_string(), model, &options)?;
        let is_virtual = options.devices.devices.iter().all(|d| d.processor.is_some());
        let took = if is_virtual { model.clock().now() } else { began.elapsed() };
        Ok((model, took.as_secs_f64() * 1e3))
    }
}
