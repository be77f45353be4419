//! Making plans.

use troika_device::size;
use troika_graph::{ActivationFormat, DType};
use troika_model::spec::ModelSpec;

use crate::calibrated::CalibratedProducts;
use crate::check::{MAX_CONTEXT, MAX_IN_FLIGHT};
use crate::device::PlanDevice;
use crate::elsewhere::Elsewhere;
use crate::error::PlanError;
use crate::expert_groups::ExpertSettings;
use crate::expert_rules::ExpertRules;
use crate::identity::{ModelId, PLAN_VERSION};
use crate::plan::{Decode, Phase, Plan, PlannedRules, Policy, Prefill, Rule, SyncMode};
use crate::rows::head_apart;
use crate::strategy::Strategy;

/// The user's wishes for a plan.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// How to divide the model over devices.
    pub strategy: Strategy,
    /// The longest sequence; `None`: the model's own limit.
    pub context: Option<usize>,
    /// Rows of a prompt chunk.
    pub chunk: usize,
    /// The most chunks in flight; `None`: 1 on one device, else 4.
    pub chunks_in_flight: Option<usize>,
    /// The order in which ready segments run; `None`: program order, or the fastest by prices.
    pub policy: Option<Policy>,
    /// How devices wait for each other.
    pub sync: SyncMode,
    /// Element type of the KV cache; `None`: F32 with `single_precision`, else BF16 if all devices
    /// multiply it, else F16.
    pub kv_dtype: Option<DType>,
    /// Type of the values between segments, except logits.
    pub values: DType,
    /// For devices with static shapes: the numbers of rows to compile for; `None`: each device's,
    /// or where each takes memory for weights of its own, those that are worth it.
    pub row_buckets: Option<Vec<usize>>,
    /// The formats, besides f32, that products may use for activations; `None`: those that make
    /// each device faster.
    pub activations: Option<Vec<ActivationFormat>>,
    /// Products in a format of a calibration, on devices that have it; `None`: nowhere.
    pub calibrated: Option<CalibratedProducts>,
    /// The same while decoding.
    pub calibrated_decode: Option<CalibratedProducts>,
    /// Segments that devices have no room for.
    pub elsewhere: Vec<Elsewhere>,
    /// Compute the model in f32.
    pub single_precision: bool,
    /// How [`Strategy::Experts`] groups experts.
    pub experts: ExpertSettings,
}

impl Default for PlanRequest {
    fn default() -> Self {
        PlanRequest {
            strategy: Strategy::default(),
            context: None,
            chunk: 512,
            chunks_in_flight: None,
            policy: None,
            sync: SyncMode::default(),
            kv_dtype: None,
            values: DType::F32,
            row_buckets: None,
            activations: None,
            calibrated: None,
            calibrated_decode: None,
            elsewhere: Vec::new(),
            single_precision: false,
            experts: ExpertSettings::default(),
        }
    }
}

/// Chunks in flight where several devices share the work.
const CHUNKS_IN_FLIGHT: usize = 4;
/// Rows of chunks in flight that go through the model layer by layer: enough to fill the buffers of
/// many experts.
const GATHERED_ROWS: usize = 2048;

/// Positions of a page, if devices can bind that many.
const PAGE_LEN: usize = 32;

/// Positions of a page, for caches with `position_bytes` per position: as many as every limited
/// device can bind. A device that cannot bind one position refuses attention and is ignored.
pub fn page_len(position_bytes: usize, limits: impl Iterator<Item = u64>) -> usize {
    let positions = limits.map(|most| most / position_bytes.max(1) as u64);
    let fit = positions.filter(|n| *n > 0).min().unwrap_or(u64::MAX);
    1 << fit.min(PAGE_LEN as u64).ilog2()
}

/// Bytes of a position in the widest cache of a model.
fn widest_position(spec: &ModelSpec, kv_dtype: DType) -> usize {
    let widths = spec.layers.iter().filter_map(|l| Some(l.attention()?.cache_widths()));
    let widest = widths.map(|(k, v)| k.max(v.unwrap_or(0))).max().unwrap_or(0);
    kv_dtype.row_size(widest)
}

/// The formats that make all devices of a rule faster, so that a split computes the same numbers. A
/// group of experts takes the ones among them that its own device has.
fn gained_by_all(rule: &Rule, devices: &[PlanDevice]) -> Vec<ActivationFormat> {
    let of = |name: &str| {
        devices.iter().find(|d| d.name == name).map(|d| d.caps.activation_formats.as_slice())
    };
    let mut formats = of(&rule.device).unwrap_or_default().to_vec();
    formats.retain(|f| {
        // Those are for who asks for them.
        let all = || rule.devices().all(|d| of(d).is_some_and(|list| list.contains(f)));
        !f.converts_weights() && (rule.experts().is_some() || all())
    });
    formats
}

/// Makes a plan by the request's strategy.
///
/// # Errors
/// A chunk or context of zero, a context beyond the model's, or too few devices for the strategy.
pub fn make(
    spec: &ModelSpec,
    devices: &[PlanDevice],
    request: &PlanRequest,
) -> Result<Plan, PlanError> {
    request.strategy.check(devices.len())?;
    request.strategy.check_names(devices)?;
    let chunk = chunk_of(spec, request);
    let placed = |phase| request.strategy.rules(spec, devices, phase, chunk);
    let (rules, expert_caches) = match request.strategy {
        Strategy::Experts(policy) => {
            let halves = request.calibrated.as_ref().is_some_and(|c| c.format.is_halves());
            let settings = &request.experts;
            let chunks = if settings.gathers() { in_flight(request, chunk, true) } else { 1 };
            let gathered = chunks.saturating_mul(chunk);
            let of = ExpertRules { spec, devices, policy, settings, rows: chunk, gathered, halves };
            of.rules()?
        }
        _ => {
            let (prefill, decode) = (placed(Phase::Prefill), placed(Phase::Decode));
            (PlannedRules { prefill, lengths: Vec::new(), decode }, Vec::new())
        }
    };
    let mut plan = assemble(spec, devices, request, request.strategy.to_string(), rules);
    plan.expert_caches = expert_caches;
    let names: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
    plan.check(spec, &names)?;
    Ok(plan)
}

/// A sentence on experts that a plan leaves to the device that shares them out, because their device
/// has limits: without these, more of them would be in groups.
///
/// # Errors
/// Those of [`make`].
pub fn experts_left_out(
    spec: &ModelSpec,
    devices: &[PlanDevice],
    request: &PlanRequest,
) -> Result<Option<String>, PlanError> {
    let (mut free, mut unlimited) = (devices.to_vec(), request.clone());
    unlimited.experts.bytes = None;
    let caps = free.iter_mut().map(|device| &mut device.caps);
    caps.for_each(|caps| (caps.max_graphs, caps.max_resident_bytes) = (None, None));
    let (plan, all) = (make(spec, devices, request)?, make(spec, &free, &unlimited)?);
    let in_groups = |plan: &Plan| {
        let splits = plan.prefill.rules.iter().filter_map(Rule::experts);
        splits.flat_map(|split| &split.groups).map(|group| group.experts.len()).sum::<usize>()
    };
    let (held, of) = (in_groups(&plan), in_groups(&all));
    let shares = |rule: &&Rule| rule.experts().is_some();
    let Some(rule) = all.prefill.rules.iter().find(shares).filter(|_| held < of) else {
        return Ok(None);
    };
    let other = rule.devices().find(|name| *name != rule.device);
    let Some(PlanDevice { name, caps }) = devices.iter().find(|d| Some(&*d.name) == other) else {
        return Ok(None);
    };
    let bytes = request.experts.bytes.into_iter().chain(caps.max_resident_bytes).min().map(size);
    let graphs = caps.max_graphs.map(|graphs| format!("{graphs} graphs"));
    let limits: Vec<String> = bytes.into_iter().chain(graphs).collect();
    let (limits, host) = (limits.join(", "), &rule.device);
    Ok(Some(format!(
        "device {name} has room for groups of {held} of {of} experts ({limits} at most): {host} \
         computes the others"
    )))
}

fn context_of(spec: &ModelSpec, request: &PlanRequest) -> usize {
    request.context.unwrap_or(spec.context.min(MAX_CONTEXT))
}

/// Chunks in flight, on one device or `several`.
pub fn in_flight(request: &PlanRequest, chunk: usize, several: bool) -> usize {
    if request.policy == Some(Policy::ChunkAtATime) {
        return 1;
    }
    let gathers = matches!(request.strategy, Strategy::Experts(_)) && request.experts.gathers();
    let chosen = match (several, gathers) {
        (false, _) => 1,
        (true, false) => CHUNKS_IN_FLIGHT,
        (true, true) => GATHERED_ROWS.div_ceil(chunk.max(1)).clamp(CHUNKS_IN_FLIGHT, MAX_IN_FLIGHT),
    };
    request.chunks_in_flight.unwrap_or(chosen)
}

/// Rows of a prompt chunk: no more than the context.
pub fn chunk_of(spec: &ModelSpec, request: &PlanRequest) -> usize {
    request.chunk.min(context_of(spec, request).max(1))
}

/// Rules with what the request says of activation formats, value types and moved segments.
fn filled(
    spec: &ModelSpec,
    devices: &[PlanDevice],
    request: &PlanRequest,
    rules: PlannedRules,
) -> PlannedRules {
    let PlannedRules { mut prefill, mut lengths, mut decode } = rules;
    let prompts = lengths.iter_mut().map(|l| &mut l.rules).chain([&mut prefill]);
    let prompts = prompts.map(|list| (list, &request.calibrated));
    for (list, calibrated) in prompts.chain([(&mut decode, &request.calibrated_decode)]) {
        for moved in &request.elsewhere {
            *list = moved.applied(list, spec);
        }
        if let Some(products) = calibrated {
            *list = products.applied(list, spec, devices, request.activations.as_deref());
        }
        if request.row_buckets.is_none() {
            *list = head_apart(std::mem::take(list), spec, devices);
        }
    }
    let short = lengths.iter_mut().flat_map(|l| &mut l.rules);
    for rule in prefill.iter_mut().chain(&mut decode).chain(short) {
        rule.values = request.values;
        let is_static = |d: &PlanDevice| !d.caps.row_buckets.is_empty();
        let fixed = devices.iter().any(|d| is_static(d) && rule.devices().any(|n| n == d.name));
        if fixed && rule.row_buckets.is_none() && rule.experts().is_none() {
            rule.row_buckets.clone_from(&request.row_buckets);
        }
        // Those of a calibration stand there already.
        if rule.activations.is_empty() {
            let gained = || gained_by_all(rule, devices);
            rule.activations = request.activations.clone().unwrap_or_else(gained);
        }
    }
    PlannedRules { prefill, lengths, decode }
}

/// A plan of some rules and the request's other settings. It is not checked.
pub fn assemble(
    spec: &ModelSpec,
    devices: &[PlanDevice],
    request: &PlanRequest,
    strategy: String,
    rules: PlannedRules,
) -> Plan {
    let PlannedRules { prefill, lengths, decode } = filled(spec, devices, request, rules);
    let all = || prefill.iter().chain(&decode).chain(lengths.iter().flat_map(|l| &l.rules));
    let used = |d: &&PlanDevice| all().any(|r| r.devices().any(|n| n == d.name));
    let used: Vec<String> = devices.iter().filter(used).map(|d| d.name.clone()).collect();
    let bf16 = all().all(|r| r.activations.contains(&ActivationFormat::Bf16));
    let default_kv = match request.single_precision {
        true => DType::F32,
        // Attention uses bf16 with a bf16 cache, where the device is faster with it.
        false if bf16 => DType::BF16,
        false => DType::F16,
    };
    let kv_dtype = request.kv_dtype.unwrap_or(default_kv);
    // Includes devices without rules, since other devices' refused ops may move to them.
    let limits = devices.iter().filter_map(|d| d.caps.max_binding_bytes);
    let chunk = chunk_of(spec, request);
    let chunks_in_flight = in_flight(request, chunk, used.len() > 1);
    let needs = all().flat_map(|r| &r.activations).any(ActivationFormat::is_calibrated);
    let mut calibrated = request.calibrated.iter().chain(&request.calibrated_decode);
    let calibration = calibrated.find_map(|c| c.digest.clone()).filter(|_| needs);
    let mut plan = Plan {
        version: PLAN_VERSION,
        model: ModelId::of(spec),
        strategy,
        context: context_of(spec, request),
        page_len: page_len(widest_position(spec, kv_dtype), limits),
        kv_dtype,
        devices: used,
        calibration,
        sync: request.sync,
        npu_rewrites: Vec::new(),
        expert_caches: Vec::new(),
        prefill: Prefill {
            chunk,
            chunks_in_flight,
            policy: request.policy.unwrap_or_default(),
            critical_device: None,
            rules: prefill,
            lengths,
        },
        decode: Decode { rules: decode },
        predicted: None,
    };
    plan.choose_rows(devices);
    plan
}
