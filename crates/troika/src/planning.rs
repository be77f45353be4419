//! Planning: a model with bound weights, the devices, and the plan that the options ask for.

use std::borrow::Cow;
use std::sync::Arc;

use troika_device::Device;
use troika_engine::EngineError;
use troika_graph::partition::residual;
use troika_graph::{ActivationFormat, DType, Node, Op, convert_products};
use troika_model::lower::{Lowered, SegmentKind, lower};
use troika_model::spec::ModelSpec;
use troika_plan::{
    CalibratedProducts, Elsewhere, ExpertPolicy, ExpertSettings, Plan, PlanDevice, PlanError,
    PlanRequest, Prefill, Refusal, Strategy, describe_refusals, experts_left_out, in_flight,
    leave_attention,
};
use troika_program::{PhaseCopies, copies};
use troika_solve::{
    Alternative, CostModel, Forms, HeldWeights, MadePlan, MakeRequest, PredictRequest, Profile,
    ProfiledCosts, SolveRequest, Solved, attention_pays, check_memory, choose_policy, held_weights,
    make_within_memory, solve,
};
use troika_weights::{FloatType, WeightStore};

use crate::budget::HostMemory;
use crate::describe::{BoundModel, Described, describe};
use crate::devices::sim::Soc;
use crate::devices::{soc_of, virtual_clock};
use crate::error::Error;
use crate::options::{NpuNumbers, OpenOptions, PlanSource, SolveOptions};
use crate::profile_file::subject_of;
use crate::soc_costs::SocCosts;
use crate::source::Source;

/// The most rows of a chunk if nothing else is known.
const CHUNK: usize = 512;
/// The same where an NPU computes prompts (llm.npu, section 3.2).
const NPU_CHUNK: usize = 256;

/// A model with the plan that opening it would use.
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// A sentence for each device whose refusals changed it, and for what else is to be known of it.
    pub changes: Vec<String>,
    /// The ops that devices refuse.
    pub refusals: Vec<Refusal>,
    /// If a profile chose the plan: the plans it beat, the best first.
    pub alternatives: Vec<Alternative>,
    /// Plans without a price, each with the reason.
    pub unpriced: Vec<String>,
    /// Bytes that the KV cache may take; `None`: what all sequences need.
    pub kv_bytes: Option<u64>,
    /// The profile by which it was chosen.
    pub profile: Option<Profile>,
    /// What it was planned for.
    pub model: BoundModel,
}

impl Planned {
    /// The weights that each device holds.
    ///
    /// # Errors
    /// Why the plan cannot run.
    pub fn held(&self) -> Result<Vec<HeldWeights>, Error> {
        let devices = self.model.facts();
        Ok(held_weights(&self.plan, &self.model.lowered(&self.plan)?, &devices)?)
    }

    /// The copies between memories for a chunk of a prompt and for a decoded token.
    ///
    /// # Errors
    /// Why the plan cannot run.
    pub fn copies(&self) -> Result<Vec<PhaseCopies>, Error> {
        let BoundModel { spec, store, .. } = &self.model;
        let devices = self.model.facts();
        let counted = copies(spec, &|key| store.shape(key), &self.plan, &devices);
        Ok(counted.map_err(EngineError::from)?)
    }
}

/// Makes the plan that opening a model with these options would use.
///
/// # Errors
/// Those of [`crate::Model::open`]; but nothing is compiled.
pub fn make_plan(source: impl Into<Source>, options: &OpenOptions) -> Result<Planned, Error> {
    let source = source.into();
    let options = &source.chosen(options)?;
    BoundModel::open(&source, options)?.plan(options)
}

impl Source {
    /// The options with devices that are chosen for this model, where they leave that open.
    ///
    /// # Errors
    /// Unusable files.
    pub fn chosen(&self, options: &OpenOptions) -> Result<OpenOptions, Error> {
        let search = options.look(self.bytes());
        if search.is_none() && options.devices.auto.as_ref().is_none_or(|a| a.profiles.is_none()) {
            return Ok(options.clone());
        }
        let Described { spec, store, .. } = describe(self, options.bind())?;
        options.chosen_by(search, &self.name(), &spec, &store)
    }
}

impl BoundModel {
    /// Binds weights and opens the devices.
    ///
    /// # Errors
    /// A device that cannot be opened, or unusable files.
    pub fn open(source: impl Into<Source>, options: &OpenOptions) -> Result<BoundModel, Error> {
        let devices = options.open_devices()?;
        let Described { spec, mut store, .. } = describe(source, options.bind())?;
        options.calibration().iter().try_for_each(|c| c.apply(&spec, &mut store))?;
        Ok(BoundModel { spec, store, devices })
    }

    /// The given plan, or a new one by the options. Refused ops move to other devices: in a new
    /// plan always, with a report; in a given plan only with `fallback`.
    ///
    /// # Errors
    /// A plan that does not fit model and devices, a profile that cannot be used, or an op that
    /// every device refuses.
    pub fn plan(self, options: &OpenOptions) -> Result<Planned, Error> {
        self.planned(options)?.share_memory(options)
    }

    /// The same for the context that the options ask for, whatever is free.
    pub(crate) fn planned(self, options: &OpenOptions) -> Result<Planned, Error> {
        let options = self.with_attention(options)?;
        self.planned_as_asked(&options)
    }

    fn planned_as_asked(self, options: &OpenOptions) -> Result<Planned, Error> {
        options.experts.check(&self.spec)?;
        let (mut changes, mut alternatives, mut unpriced) = (Vec::new(), Vec::new(), Vec::new());
        let calibration = options.calibration().map(|c| &*c.calibration);
        let (solved, profile) = match &options.plan {
            PlanSource::Profile(wanted) => self.solved(options, wanted, &mut changes)?.unzip(),
            _ => (None, None),
        };
        let by_strategy = options.plan.given().is_none() && solved.is_none();
        let mut plan = match (options.plan.given(), solved) {
            (Some(plan), _) => {
                plan.check_calibration(calibration)?;
                self.checked(plan)?
            }
            (None, Some(solved)) => {
                (alternatives, unpriced) = (solved.alternatives, solved.unpriced);
                if solved.plan.all_rules().any(|rule| rule.experts().is_some()) {
                    let shared = Strategy::Experts(ExpertPolicy::All);
                    changes.extend(options.experts.notes(&self.spec, &shared, calibration));
                }
                solved.plan
            }
            (None, None) => {
                let made = self.made(options)?;
                changes.extend(made.moved.iter().map(Elsewhere::describe));
                changes.extend(self.expert_notes(&made.plan, options)?);
                made.plan
            }
        };
        let computes = plan.activations().iter().any(ActivationFormat::converts_weights);
        let unused = match calibration {
            Some(_) => "the calibration is of no use: no NPU computes with it",
            None => "no NPU of the plan computes with halves",
        };
        changes.extend((!computes && options.converted_format().is_some()).then(|| unused.into()));
        let refusals = self.refusals(&plan, options, profile.as_ref())?;
        if !options.may_change_plan() {
            if let Some(refusal) = plan.refused(&refusals).first() {
                return Err(PlanError::NotTaken(Box::new((*refusal).clone())).into());
            }
        } else {
            changes.extend(self.avoid(&mut plan, &refusals)?);
        }
        if by_strategy {
            self.count_chunks(&mut plan, options);
        }
        self.check_memory(&plan, options)?;
        if matches!(options.plan, PlanSource::Strategy) {
            self.order(&mut plan, options)?;
            if !matches!(options.strategy, Strategy::OneDevice | Strategy::OneNamed(_)) {
                let uses = |name: &&str| plan.all_rules().any(|r| r.devices().any(|d| d == *name));
                let idle = self.names().into_iter().filter(|name| !uses(name));
                changes.extend(
                    idle.map(|name| format!("device {name} computes nothing in this plan")),
                );
            }
        }
        plan.prefill.policy = options.policy.unwrap_or(plan.prefill.policy);
        let (kv_bytes, model) = (None, self);
        Ok(Planned { plan, changes, refusals, alternatives, unpriced, kv_bytes, profile, model })
    }

    /// The options, with attention on the device of experts' groups where a prompt is faster so by the
    /// prices of virtual devices. Strategies know no prices: without any, `--npu-attention` says it.
    fn with_attention<'a>(&self, options: &'a OpenOptions) -> Result<Cow<'a, OpenOptions>, Error> {
        let asks = matches!(options.plan, PlanSource::Strategy)
            && matches!(options.strategy, Strategy::Experts(_))
            && !options.devices.npu.attention;
        if !asks || self.soc(options)?.is_none() {
            return Ok(Cow::Borrowed(options));
        }
        let mut with = options.clone();
        with.devices.npu.attention = true;
        let here = self.made(options)?.plan;
        let Ok(MadePlan { plan: there, .. }) = self.made(&with) else {
            return Ok(Cow::Borrowed(options));
        };
        let refusals = self.refusals(&there, &with, None)?;
        let longest = here.context.saturating_sub(1).max(1);
        let prompt = options.experts.prompt.unwrap_or(here.prefill.chunk).min(longest);
        let pays = self.priced(&self.lowered(&here)?, None, options, |request| {
            let request = PredictRequest { prompt, ..*request };
            attention_pays(&request, &refusals, [&here, &there])
        })?;
        Ok(if pays == Some(true) { Cow::Owned(with) } else { Cow::Borrowed(options) })
    }

    /// What there is to know of a new plan's experts, and of those that their device has no room for.
    fn expert_notes(&self, plan: &Plan, options: &OpenOptions) -> Result<Vec<String>, Error> {
        let calibration = options.calibration().map(|c| &*c.calibration);
        let mut notes = options.experts.notes(&self.spec, &options.strategy, calibration);
        if matches!(options.strategy, Strategy::Experts(_)) {
            let mut request = self.plan_request(options);
            request.calibrated = self.converted(&options.npu_numbers, &*self.lowered(plan)?)?;
            let devices = self.plan_devices(options)?;
            notes.extend(experts_left_out(&self.spec, &devices, &request)?);
        }
        Ok(notes)
    }

    /// Sets the chunks in flight of a new plan: refused ops may have brought in another device.
    fn count_chunks(&self, plan: &mut Plan, options: &OpenOptions) {
        let (request, several) = (self.plan_request(options), plan.devices.len() > 1);
        plan.prefill.chunks_in_flight = in_flight(&request, plan.prefill.chunk, several);
    }

    /// Gives a plan for virtual devices the faster order of operands, and the fastest order of
    /// prompts of a few chunks.
    fn order(&self, plan: &mut Plan, options: &OpenOptions) -> Result<(), Error> {
        if virtual_clock(&self.devices).is_none() {
            return Ok(());
        }
        let lowered = &self.lowered(plan)?;
        let ordered = self.priced(lowered, None, options, |request| {
            Forms::new(lowered, request.devices, request.cost).choose(plan);
            let Prefill { chunk, chunks_in_flight: together, .. } = plan.prefill;
            if together < 2
                || options.policy.is_some()
                || plan.all_rules().any(|rule| rule.experts().is_some())
            {
                return Ok(());
            }
            let chunks = [together, together + together / 2, 2 * together];
            let longest = plan.context.saturating_sub(1);
            let mut prompts = chunks.map(|n| n.saturating_mul(chunk).min(longest)).to_vec();
            prompts.dedup();
            choose_policy(request, plan, &prompts)
        });
        ordered.map(|_| ())
    }

    /// What prices say: those of a profile, or of virtual devices' files. `None`: there are none.
    pub(crate) fn priced<T>(
        &self,
        lowered: &Arc<Lowered>,
        profile: Option<&Profile>,
        options: &OpenOptions,
        say: impl FnOnce(&PredictRequest<'_>) -> Result<T, PlanError>,
    ) -> Result<Option<T>, Error> {
        let (devices, soc) = (&self.facts(), self.soc(options)?);
        let modelled = soc.as_ref().map(|(soc, names)| SocCosts::named(soc, names));
        let profiled = profile.and_then(|p| ProfiledCosts::new(p, devices).ok());
        let modelled = modelled.as_ref().map(|cost| cost as &dyn CostModel);
        let Some(cost) = modelled.or(profiled.as_ref().map(|cost| cost as _)) else {
            return Ok(None);
        };
        match say(&PredictRequest { lowered, devices, cost, prompt: 1, generate: 0 }) {
            Err(PlanError::Unpriced(_)) => Ok(None),
            said => Ok(Some(said?)),
        }
    }

    /// The file of the devices, and their processors' names, if all are virtual and of one file.
    fn soc(&self, options: &OpenOptions) -> Result<Option<(Soc, Vec<String>)>, Error> {
        if virtual_clock(&self.devices).is_none() {
            return Ok(None);
        }
        Ok(soc_of(&options.devices)?.filter(|(_, names)| names.len() == self.devices.len()))
    }

    /// What the devices refuse of a plan, and what a new plan leaves to others: attention of NPUs,
    /// unless a profile has its price.
    fn refusals(
        &self,
        plan: &Plan,
        options: &OpenOptions,
        profile: Option<&Profile>,
    ) -> Result<Vec<Refusal>, Error> {
        let shapes = |key| self.store.shape(key);
        let mut refusals = troika_engine::examine(&self.spec, &shapes, plan, &self.devices)?;
        if options.plan.given().is_none() && !options.devices.npu.attention {
            let priced =
                |name: &str| profile.is_some_and(|p| p.has_price(name, SegmentKind::Attention));
            let others = self.devices.iter().map(|d| &**d).filter(|d| !priced(d.name()));
            leave_attention(others, &mut refusals);
        }
        Ok(refusals)
    }

    /// Moves refused ops of a plan to other devices, and says which.
    pub(crate) fn avoid(
        &self,
        plan: &mut Plan,
        refusals: &[Refusal],
    ) -> Result<Vec<String>, Error> {
        let met = plan.avoid(refusals, &self.names())?;
        Ok(describe_refusals(plan, &met))
    }

    /// A plan on the first device.
    ///
    /// # Errors
    /// Options out of range.
    pub fn one_device_plan(&self, options: &OpenOptions) -> Result<Plan, Error> {
        let strategy = Strategy::OneDevice;
        let kv_dtype = options.kv_dtype.or(self.solved_kv_dtype(options));
        let options = OpenOptions { strategy, kv_dtype, ..options.clone() };
        Ok(troika_plan::make(&self.spec, &self.facts(), &self.plan_request(&options))?)
    }

    /// Lowers the model for a plan's chunk and context.
    ///
    /// # Errors
    /// A description that cannot be lowered.
    pub fn lowered(&self, plan: &Plan) -> Result<Arc<Lowered>, Error> {
        let lowered = lower(&self.spec, &|key| self.store.shape(key), plan.lower_options());
        Ok(Arc::new(lowered.map_err(EngineError::from)?))
    }

    fn facts(&self) -> Vec<PlanDevice> {
        self.devices.iter().map(PlanDevice::of).collect()
    }

    fn names(&self) -> Vec<&str> {
        self.devices.iter().map(|d| d.name()).collect()
    }

    /// The devices as plans see them, with the options' limits of memory.
    fn plan_devices(&self, options: &OpenOptions) -> Result<Vec<PlanDevice>, Error> {
        let mut all = self.facts();
        for (name, most) in &options.devices.memory {
            // A GPU that might have been chosen, but was not.
            let is_open = options.devices.auto.is_some() && name.starts_with("gpu");
            let Some(device) = all.iter_mut().find(|d| d.name == *name) else {
                if is_open {
                    continue;
                }
                let (name, known) = (name.clone(), self.names().join(", "));
                return Err(Error::NoDeviceToLimit { name, known });
            };
            let own = device.caps.max_resident_bytes;
            device.caps.max_resident_bytes = Some(own.map_or(*most, |own| own.min(*most)));
        }
        Ok(all)
    }

    /// A given plan, if it fits the model and the devices.
    fn checked(&self, plan: &Plan) -> Result<Plan, Error> {
        plan.check(&self.spec, &self.names())?;
        let find = |name: &str| self.devices.iter().find(|d| d.name() == name);
        plan.check_shapes(&|name| find(name).is_some_and(|d| d.caps().static_shapes))?;
        plan.check_hosts(&|name| find(name).is_some_and(|d| d.caps().host_tasks))?;
        Ok(plan.clone())
    }

    /// Checks that devices hold the weights that the plan gives them.
    pub(crate) fn check_memory(&self, plan: &Plan, options: &OpenOptions) -> Result<(), Error> {
        let devices = self.plan_devices(options)?;
        if devices.iter().any(|d| d.caps.max_resident_bytes.is_some()) {
            check_memory(plan, &self.lowered(plan)?, &devices)?;
        }
        Ok(())
    }

    /// A new plan by the options, within the memory of devices.
    fn made(&self, options: &OpenOptions) -> Result<MadePlan, Error> {
        let devices = self.plan_devices(options)?;
        let mut base = self.plan_request(options);
        let mut plan = troika_plan::make(&self.spec, &devices, &base)?;
        // Groups of experts fill up in long chunks only.
        let groups = matches!(options.strategy, Strategy::Experts(_));
        if options.chunk.is_none() && !groups && self.on_npu(&plan) {
            base.chunk = NPU_CHUNK;
            plan = troika_plan::make(&self.spec, &devices, &base)?;
        }
        let is_limited = devices.iter().any(|d| d.caps.max_resident_bytes.is_some());
        if options.converted_format().is_none() && !is_limited {
            return Ok(MadePlan { plan, moved: Vec::new() });
        }
        let lowered = &self.lowered(&plan)?;
        base.calibrated = self.converted(&options.npu_numbers, lowered)?;
        base.calibrated_decode = self.converted(options.decode_numbers(), lowered)?;
        let refusals = if is_limited { self.refusals(&plan, options, None)? } else { Vec::new() };
        Ok(make_within_memory(&MakeRequest {
            spec: &self.spec,
            lowered,
            devices: &devices,
            refusals: &refusals,
            base: &base,
            attention_first: false,
        })?)
    }

    /// Whether an NPU computes prompts by a plan.
    fn on_npu(&self, plan: &Plan) -> bool {
        let npus = self.devices.iter().filter(|d| d.caps().static_shapes);
        let uses = |name: &str| plan.prefill.rules.iter().any(|r| r.devices().any(|n| n == name));
        npus.map(|d| d.name()).any(uses)
    }

    /// The products that NPUs convert weights for, and the devices that take their outliers.
    ///
    /// # Errors
    /// There are devices beside NPUs, none of which takes them.
    fn converted(
        &self,
        numbers: &NpuNumbers,
        lowered: &Lowered,
    ) -> Result<Option<CalibratedProducts>, Error> {
        let Some(mut products) = numbers.products(lowered) else { return Ok(None) };
        let mut exact =
            lowered.segments.iter().filter(|s| products.exact.contains(&(s.kind, s.layer)));
        if let Some(segment) = exact.next() {
            let graph = residual(&convert_products(&segment.graph, products.format));
            let has = |d: &&Arc<dyn Device>| d.caps().activation_formats.contains(&products.format);
            let mut refusal = None;
            for d in self.devices.iter().filter(|d| !has(d)) {
                let mut verdicts = graph.nodes.iter().zip(d.examine(&graph));
                let of =
                    |(n, why): (&Node, _)| matches!(n.op, Op::Outliers { .. }).then_some(why)?;
                let (device, op, segment) = (d.name().to_string(), "outliers".into(), segment.kind);
                match verdicts.find_map(of) {
                    Some(why) => refusal = Some(Refusal { device, segment, op, why }),
                    None => products.takers.push(device),
                }
            }
            if let Some(refusal) = refusal.filter(|_| products.takers.is_empty()) {
                return Err(PlanError::Refused(Box::new(refusal)).into());
            }
        }
        Ok(Some(products))
    }

    fn plan_request(&self, options: &OpenOptions) -> PlanRequest {
        plan_request(&self.spec, &self.store, options)
    }

    /// The cache type for plans chosen by price, if it differs from the devices' default. It is the
    /// same for all placements, since runs are measured with one type.
    fn solved_kv_dtype(&self, options: &OpenOptions) -> Option<DType> {
        let request = self.plan_request(options);
        let gains = |d: &Arc<dyn Device>| match &request.activations {
            Some(list) => list.contains(&ActivationFormat::Bf16),
            None => d.caps().activation_formats.contains(&ActivationFormat::Bf16),
        };
        // Other devices can read it too, but are not faster with it.
        (!request.single_precision && self.devices.iter().any(gains)).then_some(DType::BF16)
    }

    /// The best plan by a profile; `None` if there is no profile and none was required.
    fn solved(
        &self,
        options: &OpenOptions,
        wanted: &SolveOptions,
        changes: &mut Vec<String>,
    ) -> Result<Option<(Solved, Profile)>, Error> {
        let here = subject_of(self, &self.one_device_plan(options)?);
        let file = wanted.profile.file(&here);
        let Some(measured) = wanted.profile.read(&here, changes)? else { return Ok(None) };
        // Groups of experts fill up in long chunks only; shorter ones are looked at, too.
        let shares =
            self.devices.len() > 1 && self.spec.layers.iter().any(|layer| layer.moe().is_some());
        let length = |rows: usize| if shares { rows.max(CHUNK) } else { rows };
        let fast = measured.chunk_length().map(|(_, rows)| length(rows));
        let of =
            |device| measured.own_chunk_length(device).map(length).filter(|n| Some(*n) != fast);
        let own: Vec<Option<usize>> =
            (0..self.devices.len()).map(|d| of(d).filter(|_| options.chunk.is_none())).collect();
        let options = &OpenOptions { chunk: options.chunk.or(fast), ..options.clone() };
        let longest = own.iter().flatten().copied().chain(options.chunk).max();
        let one = self.one_device_plan(&OpenOptions { chunk: longest, ..options.clone() })?;
        let (prompt, generate) = wanted.lengths(one.context)?;
        // All ops that devices refuse, whichever plan is chosen.
        let refusals = self.refusals(&one, options, Some(&measured))?;
        let devices = self.plan_devices(options)?;
        let refuse = |error| Error::Profile { file: file.display().to_string(), error };
        let profiled = ProfiledCosts::new(&measured, &devices).map_err(refuse)?;
        let soc = self.soc(options)?;
        let modelled = soc.as_ref().map(|(soc, names)| SocCosts::named(soc, names));
        let cost: &dyn CostModel = modelled.as_ref().map_or(&profiled, |m| m);
        let (known, asked) = (measured.most_positions(), prompt + generate);
        if asked > known && modelled.is_none() {
            changes.push(format!(
                "{}: the profile was measured with up to {known} tokens, and the plan is for \
                 {asked}, so its predictions are extrapolated; measure with a larger context \
                 (troika profile -c)",
                file.display()
            ));
        }
        let (lowered, mut base) = (self.lowered(&one)?, self.plan_request(options));
        base.kv_dtype = Some(one.kv_dtype);
        base.calibrated = self.converted(&options.npu_numbers, &lowered)?;
        base.calibrated_decode = self.converted(options.decode_numbers(), &lowered)?;
        let groups = || Some(HostMemory::now(options.memory)?.groups(self.store.bytes()));
        base.experts.bytes = base.experts.bytes.or_else(groups);
        let alone = self.alone(&devices, &base, &own)?;
        let solved = solve(&SolveRequest {
            spec: &self.spec,
            lowered: &lowered,
            devices: &devices,
            cost,
            refusals: &refusals,
            goal: wanted.goal,
            base: &base,
            prompt,
            generate,
            lengths: &[],
            candidates: &alone,
        })?;
        Ok(Some((solved, measured)))
    }

    /// Plans on one device each, in chunks of its own length.
    fn alone(
        &self,
        devices: &[PlanDevice],
        base: &PlanRequest,
        lengths: &[Option<usize>],
    ) -> Result<Vec<(String, Plan)>, Error> {
        let own = devices.iter().zip(lengths).filter_map(|(d, rows)| Some((d, (*rows)?)));
        let plan = |(device, chunk): (&PlanDevice, usize)| {
            let strategy = Strategy::OneNamed(device.name.clone());
            let request = PlanRequest { strategy, chunk, ..base.clone() };
            let plan = troika_plan::make(&self.spec, devices, &request)?;
            Ok((format!("one device, {}, in chunks of {chunk}", device.name), plan))
        };
        own.map(plan).collect()
    }
}

/// The plan request that follows from the options.
pub(crate) fn plan_request(
    spec: &ModelSpec,
    store: &WeightStore,
    options: &OpenOptions,
) -> PlanRequest {
    // With an explicit type, activations stay in f32.
    let f32_only = (options.dtype != FloatType::Auto).then(Vec::new);
    let given = options.calibration().map(|c| &*c.calibration);
    PlanRequest {
        strategy: options.strategy.clone(),
        context: options.context,
        chunk: options.chunk.or_else(|| options.experts.chunk(&options.strategy)).unwrap_or(CHUNK),
        policy: options.policy,
        sync: options.sync,
        kv_dtype: options.kv_dtype,
        row_buckets: Some(options.devices.npu.row_buckets.clone()).filter(|n| !n.is_empty()),
        activations: options.activations.clone().or(f32_only),
        experts: ExpertSettings {
            attention: options.devices.npu.attention,
            ..options.experts.of_model(spec, store, given)
        },
        single_precision: options.dtype == FloatType::F32 || all_f32(store),
        ..PlanRequest::default()
    }
}

/// Whether all matrices are f32, so that f32 is the model's own precision.
fn all_f32(store: &WeightStore) -> bool {
    store.classes().iter().filter(|c| c.class != "norms").all(|c| c.dtype == DType::F32)
}
