//! `troika bench`: prefill and decode speed in llama-bench's format, beside the machine's limits,
//! measured in the same invocation.

mod ablation;
mod answers;
mod overhead;
mod predicted;
mod print;
mod row;

use std::ops::RangeInclusive;
use std::path::Path;

use troika::device::ExpertStats;
use troika::engine::WantedLogits;
use troika::engine::sample::SampleParams;
use troika::plan::{Phase, PlanError, Strategy};
use troika::trace::Tracer;
use troika::{
    CpuMeter, DeviceOptions, EnergyMeter, Model, OpenOptions, Request, Session, TokenUse,
    measure_limits,
};
use troika_lab::Subject;

use crate::error::CliError;
use crate::flags::{BenchArgs, TableFlag, chat_helper};
use crate::stats::counted;
use crate::{expert_groups, output, resolve};

use print::BenchRows;
use row::{Facts, Row, Test};

/// Runs all tests and prints the table.
pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    // Before threads are started, whose cycles count.
    let cpu = CpuMeter::open();
    let tests = tests(args);
    let nothing = tests.is_empty() && args.answers.is_empty() && !args.overhead;
    if args.repetitions == 0 || nothing {
        return Err(CliError::Usage(
            "nothing to measure: give -p, -n or --pg, and -r of at least 1".into(),
        ));
    }
    let subject = resolve::subject(&args.subject)?;
    if args.overhead {
        if args.compute.placement.devices().iter().any(|d| d.processor.is_some()) {
            let why = "--overhead measures real time, which virtual devices do not take";
            return Err(CliError::Usage(why.into()));
        }
        return overhead::run(args, &subject);
    }
    if !args.answers.is_empty() {
        let tokens = args.answers.iter().map(|(prompt, generate)| prompt + generate).max();
        let all = all_options(args, &subject, tokens.unwrap_or(1))?;
        return answers::run(args, &subject, all);
    }
    let all = all_options(args, &subject, context(&tests))?;
    if let Some(paper) = args.ablation {
        return ablation::run(args, paper, &subject, all);
    }
    let mut errors = Vec::new();
    BenchRows::print(args.output, |rows| {
        for options in all {
            errors.extend(print_tests(args, &subject, &cpu, &tests, options, rows)?);
        }
        Ok(())
    })?;
    args.soc.as_deref().map_or(Ok(()), |soc| predicted::summary(soc, &errors, args.output))
}

/// Measures all tests with some options and prints their rows. Returns how far off predictions were.
fn print_tests(
    args: &BenchArgs,
    subject: &Subject,
    cpu: &CpuMeter,
    tests: &[Test],
    options: OpenOptions,
    rows: &mut BenchRows,
) -> Result<Vec<f64>, CliError> {
    // Before the model is opened, while its memory is not in use.
    let options = subject.chosen(&options)?;
    let devices = limiting(&options);
    let limits = is_real(&devices).then(|| measure_limits(&devices)).transpose()?;
    let model = open(subject, options.clone(), Tracer::off())?;
    let soc = args.soc.as_deref();
    let modelled = soc.map(|file| predicted::open(subject, options, file, &model)).transpose()?;
    // Virtual devices do not use the energy that they model.
    let meter = is_real(&devices).then(|| EnergyMeter::find(Path::new("/sys")));
    let source = meter.as_ref().map(|m| m.as_ref().map(EnergyMeter::source).map_err(Clone::clone));
    let source = source.or(model.joules().map(|_| Ok("modelled".into())));
    let meter = meter.and_then(Result::ok);
    let of_cpu = cpu.source(&model);
    let facts = Facts::of(subject.to_string(), &devices, &model, limits, source, of_cpu)?;
    if args.output == TableFlag::Md {
        output::write(&print::markdown_head(&facts, rows.first, soc.is_some()))?;
    }
    let (mut lines, mut errors) = (Vec::new(), Vec::new());
    for &test in tests {
        let measured = measure(&model, test, args.repetitions, cpu, meter.as_ref())?;
        let predicted = modelled.as_ref().map(|m| measure(m, test, 1, cpu, None)).transpose()?;
        let predicted_ns = predicted.and_then(|m| m.samples_ns.first().copied());
        let Measured { samples_ns, used, experts, device_experts, .. } = measured;
        let (used, facts) = (used.unwrap_or_default(), &facts);
        let row = Row { test, samples_ns, used, experts, device_experts, predicted_ns, facts };
        rows.add("", &print::markdown(&row), &print::fields(&row))?;
        lines.extend(print::experts_lines(&row));
        errors.extend(row.prediction_error());
    }
    if args.output == TableFlag::Md && !lines.is_empty() {
        output::write(&format!("\n{}\n", lines.join("\n")))?;
    }
    output::note(&expert_groups::text(&model.engine()?.group_stats()));
    Ok(errors)
}

/// The devices whose limits count: a GPU alone, where it was chosen for the whole model.
fn limiting(options: &OpenOptions) -> DeviceOptions {
    let mut devices = options.devices.clone();
    if matches!(options.strategy, Strategy::OneNamed(_)) && devices.auto.is_some() {
        devices.devices.truncate(1);
    }
    devices
}

/// Whether all devices work in real time, so that this machine's limits apply.
fn is_real(options: &DeviceOptions) -> bool {
    options.devices.is_empty() || options.devices.iter().any(|d| d.processor.is_none())
}

fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut all = Vec::new();
    for &depth in &args.n_depth {
        for &sequences in &args.sequences {
            let prompts = args.n_prompt.iter().filter(|&&n| n > 0);
            all.extend(prompts.map(|&prompt| Test { prompt, generate: 0, depth, sequences }));
            let gens = args.n_gen.iter().filter(|&&n| n > 0);
            all.extend(gens.map(|&generate| Test { prompt: 0, generate, depth, sequences }));
        }
    }
    all
}

/// The context that all tests need.
fn context(tests: &[Test]) -> usize {
    // Sequences computed together begin with a separate token.
    let first = |t: &Test| usize::from(t.generate > 0 && t.sequences > 1);
    let tokens = |t: &Test| t.depth.saturating_add(t.tokens()).saturating_add(first(t));
    tests.iter().map(tokens).max().unwrap_or(1)
}

/// The options for each strategy and number of threads. Refuses invalid ones before anything is
/// measured, since a partial table would be useless.
fn all_options(
    args: &BenchArgs,
    subject: &Subject,
    context: usize,
) -> Result<Vec<OpenOptions>, CliError> {
    // Without the flag, each device has its own default.
    let threads = match &args.threads[..] {
        [] => vec![None],
        some => some.iter().copied().map(Some).collect(),
    };
    let strategies = match &args.compute.placement.strategy[..] {
        [] => vec![Strategy::default()],
        some => some.to_vec(),
    };
    let high = subject.spec()?.longest();
    let pairs = strategies.iter().flat_map(|s| threads.iter().map(move |&t| (t, s.clone())));
    let all = pairs.map(|(t, s)| options(args, t, s, context..=high));
    let all = all.collect::<Result<Vec<_>, CliError>>()?;
    if context > high {
        let (what, got, low) = ("the context", context, 1);
        return Err(troika::Error::from(PlanError::Range { what, got, low, high }).into());
    }
    Ok(all)
}

fn options(
    args: &BenchArgs,
    threads: Option<usize>,
    strategy: Strategy,
    contexts: RangeInclusive<usize>,
) -> Result<OpenOptions, CliError> {
    let (context, high) = contexts.into_inner();
    let sequences = args.sequences.iter().copied().max().unwrap_or(1);
    let mut sharing = args.sharing.sharing(sequences);
    // Sequences are measured together: none may wait for the room of another.
    sharing.kv_bytes.get_or_insert(u64::MAX);
    let mut options = OpenOptions {
        // A forward batch has no more rows than the context: each sequence is to have its row.
        context: Some(context.max(sequences.min(high))),
        kv_dtype: args.cache_type,
        sharing,
        ..args.compute.options_by(threads, strategy)?
    };
    args.plan.apply(&mut options, None)?;
    // A virtual system on a chip predicts what the CPU does.
    options.devices.auto =
        args.compute.placement.auto_or_open(&args.compute.quant).filter(|_| args.soc.is_none());
    // Chunks of experts' groups follow the length of prompts.
    let lengths = args.n_prompt.iter().chain(args.answers.iter().map(|(prompt, _)| prompt));
    let longest = lengths.copied().max().filter(|n| *n > 0);
    options.experts.prompt = options.experts.prompt.or(longest);
    if let (Some(plan), Some(file)) = (options.plan.given(), &args.plan.plan)
        && context > plan.context
    {
        return Err(CliError::Usage(format!(
            "{}: the plan's context is {}, and {context} tokens are to be measured (-d with -p or \
             -n); measure fewer, or make a plan with a larger context (troika plan -c)",
            file.display(),
            plan.context
        )));
    }
    Ok(options)
}

fn open(subject: &Subject, mut options: OpenOptions, tracer: Tracer) -> Result<Model, CliError> {
    options.tracer = tracer;
    let model = match subject {
        // Answers go through the chat template.
        Subject::Files(source) => Model::open_with_helper(source, &options, chat_helper())?,
        Subject::Synthetic(_) => subject.open(&options)?,
    };
    output::warn(model.warnings());
    Ok(model)
}

/// Tokens that vary with their position, so that experts vary too.
pub(super) fn ids(n: usize, from: usize, vocab: usize) -> Vec<u32> {
    let token = |i: usize| ((i.wrapping_mul(2_654_435_761) >> 7) % vocab) as u32;
    (from..from + n).map(token).collect()
}

/// Computes tokens and takes the last one's logits, like llama-bench, without sampling.
fn feed(
    session: &mut Session,
    phase: Phase,
    tokens: &[u32],
    logits: &mut Vec<f32>,
) -> Result<(), CliError> {
    Ok(session.feed_as(phase, tokens, WantedLogits::Last, &mut |_, row| {
        logits.clear();
        logits.extend_from_slice(row);
    })?)
}

/// What a test's repetitions took.
struct Measured<'a> {
    cpu: &'a CpuMeter,
    meter: Option<&'a EnergyMeter>,
    /// Tokens of a repetition.
    tokens: usize,
    samples_ns: Vec<u64>,
    used: Option<TokenUse>,
    /// What became of experts that are not all in memory: while measuring, before the first
    /// repetition that counts; then since.
    experts: Option<ExpertStats>,
    /// The same of experts that devices load.
    device_experts: Vec<(String, ExpertStats)>,
}

impl Measured<'_> {
    /// Times a call. Counts it unless it is the first one.
    fn time(
        &mut self,
        model: &Model,
        counts: bool,
        run: impl FnOnce() -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        if counts && self.samples_ns.is_empty() {
            self.experts = model.expert_stats();
            self.device_experts = model.device_experts()?;
        }
        let metering = self.meter.filter(|_| counts).and_then(|m| m.start(crate::stats::LOOK));
        let measuring = self.cpu.start(model, metering);
        let start = model.clock().now();
        run()?;
        let took = model.clock().now() - start;
        if counts {
            self.samples_ns.push(took.as_nanos() as u64);
            let used = measuring.stop(self.tokens);
            self.used = Some(self.used.as_ref().map_or(used.clone(), |sum| sum.plus(&used, 1.0)));
        }
        Ok(())
    }
}

/// Measures the repetitions of a test.
fn measure<'a>(
    model: &Model,
    test: Test,
    repetitions: usize,
    cpu: &'a CpuMeter,
    meter: Option<&'a EnergyMeter>,
) -> Result<Measured<'a>, CliError> {
    let tokens = test.tokens() * test.sequences;
    let (samples_ns, device_experts, experts) = (Vec::new(), Vec::new(), None);
    let mut measured =
        Measured { cpu, meter, tokens, samples_ns, used: None, experts, device_experts };
    if test.sequences > 1 {
        check_cache(model, test)?;
    }
    // The first run warms up the caches and does not count.
    for i in 0..=repetitions {
        match test.sequences {
            1 => measure_one(model, test, i, &mut measured)?,
            _ => measure_together(model, test, i, &mut measured)?,
        }
    }
    let both = model.expert_stats().zip(measured.experts);
    measured.experts = both.map(|(now, before)| now.since(&before));
    let now = model.device_experts()?.into_iter();
    let since = |((device, now), (_, before)): ((String, ExpertStats), (String, ExpertStats))| {
        (device, now.since(&before))
    };
    measured.device_experts =
        now.zip(std::mem::take(&mut measured.device_experts)).map(since).collect();
    Ok(measured)
}

/// Tokens per second of a prompt or of decoding, and joules a token where they can be read.
pub fn rate(model: &Model, prompt: usize, generate: usize) -> Result<(f64, Option<f64>), CliError> {
    let test = Test { prompt, generate, depth: 0, sequences: 1 };
    let (cpu, meter) = (CpuMeter::open(), EnergyMeter::find(Path::new("/sys")).ok());
    let measured = measure(model, test, 2, &cpu, meter.as_ref())?;
    let all = (test.tokens() * measured.samples_ns.len()) as f64;
    let seconds = measured.samples_ns.iter().sum::<u64>() as f64 / 1e9;
    Ok((all / seconds, measured.used.and_then(|used| used.joules_per_token())))
}

/// Measures a repetition of a test of one sequence.
fn measure_one(
    model: &Model,
    test: Test,
    repetition: usize,
    measured: &mut Measured<'_>,
) -> Result<(), CliError> {
    let vocab = model.spec().vocab;
    let (mut session, mut logits) = (model.fresh_session()?, Vec::new());
    // Other tokens each time: what they read from memory or disk is not there already.
    let from = test.depth + repetition * test.tokens();
    let prompt = ids(test.prompt, from, vocab);
    if test.depth > 0 {
        feed(&mut session, Phase::Prefill, &ids(test.depth, 0, vocab), &mut logits)?;
    }
    measured.time(model, repetition > 0, || {
        if test.prompt > 0 {
            feed(&mut session, Phase::Prefill, &prompt, &mut logits)?;
        }
        for j in 0..test.generate {
            feed(&mut session, Phase::Decode, &ids(1, from + j, vocab), &mut logits)?;
        }
        Ok(())
    })
}

/// Whether the KV cache holds all sequences: others would wait, and not be computed together.
fn check_cache(model: &Model, test: Test) -> Result<(), CliError> {
    let (tokens, wanted) = (test.depth + test.prompt.max(1) + test.generate, test.sequences);
    let fit = model.engine()?.handle().most_sequences(tokens);
    if fit >= wanted {
        return Ok(());
    }
    Err(CliError::Failure(format!(
        "--sequences {wanted}: the KV cache holds {} of {} at once; measure fewer of them, or give \
         the cache more memory (--kv-size)",
        counted(fit, "sequence"),
        counted(tokens, "token")
    )))
}

/// As [`measure_one`], for several sequences at once, whose tokens are the most likely ones.
fn measure_together(
    model: &Model,
    test: Test,
    repetition: usize,
    measured: &mut Measured<'_>,
) -> Result<(), CliError> {
    let vocab = model.spec().vocab;
    let params = SampleParams { temperature: 0.0, ..SampleParams::default() };
    let max_tokens = Some(test.generate);
    let request = Request { params, max_tokens, ignore_eos: true, ..Request::default() };
    let mut sessions = Vec::new();
    for s in 0..test.sequences {
        let mut session = model.fresh_session()?;
        // Different tokens in each sequence; decoding starts from the last one of the prompt.
        let new = test.prompt.max(1);
        let prompt = ids(test.depth + new, s * 7919, vocab);
        if test.depth > 0 {
            session.feed(&prompt[..test.depth], WantedLogits::None, &mut |_, _| {})?;
        }
        sessions.push((session, prompt));
    }
    measured.time(model, repetition > 0, || {
        for (session, prompt) in &mut sessions {
            session.start(prompt, &request)?;
        }
        while model.step()? {}
        Ok(())
    })?;
    sessions.iter_mut().try_for_each(|(session, _)| Ok(session.finish(None).map(drop)?))
}
