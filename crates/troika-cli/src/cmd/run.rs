//! `troika run`.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use troika::trace::Tracer;
use troika::{CpuMeter, EnergyMeter, Model, OpenOptions, Output, Source};

use crate::error::CliError;
use crate::file::{self, is_stdin, read_input};
use crate::flags::{OpenArgs, RunArgs, chat_helper};
use crate::generate::{generate, system, tokenize};
use crate::interrupt::Interrupt;
use crate::{chat, expert_groups, output, parallel, resolve, stats};

/// Generates text for one prompt, or opens a chat.
pub fn run(args: &RunArgs) -> Result<(), CliError> {
    file::check("trace", args.trace.as_deref())?;
    // Before threads are started, whose cycles count.
    let cpu = CpuMeter::open();
    let source = resolve::model(&args.model)?;
    let prompt = match args.parallel {
        Some(_) => Prompt::Lines(lines(args)?),
        None => prompt(args)?,
    };
    let tracer = if args.trace.is_some() { Tracer::on() } else { Tracer::off() };
    let mut options = open_options(&args.open, tracer.clone())?;
    options.devices.auto = args.open.compute.placement.auto_or_open(&args.open.compute.quant);
    let interrupt = Interrupt::listen();
    args.plan.apply(&mut options, Some(&interrupt))?;
    args.npu_profiling.apply(&mut options)?;
    options.sharing = args.sharing.sharing(args.parallel.unwrap_or(1));
    // A text's tokens are known when the model is open.
    if let Prompt::Ids(ids) = &prompt {
        options.experts.prompt.get_or_insert(ids.len());
    }
    let model = Model::open_with_helper(&source, &options, chat_helper())?;
    tell(&model, args, &prompt)?;
    let chats = matches!(prompt, Prompt::Chat);
    let result = match prompt {
        Prompt::Chat => chat::run(&model, args, &interrupt),
        Prompt::Lines(lines) => parallel::run(&model, &source, args, &lines, &interrupt),
        Prompt::Ids(ids) => once(&model, args, &ids, &interrupt, &cpu, &tracer)
            .and_then(|out| print_answer(&model, &source, args, &out, None)),
        Prompt::Text(text) => {
            let (ids, time) = tokenize(&model, args, &mut system(args), &text)?;
            once(&model, args, &ids, &interrupt, &cpu, &tracer)
                .and_then(|out| print_answer(&model, &source, args, &out, Some(time)))
        }
    };
    if args.verbose {
        output::note(&stats::memory(&model)?);
    }
    let result = result.map_err(|e| e.in_plan(args.plan.plan.is_some()));
    // NPUs' profilers report when the model closes.
    drop(model);
    tracer.notes().iter().filter(|_| !args.quiet).for_each(|note| output::note_line(note));
    let saved = file::write_trace(&tracer, args.trace.as_deref());
    // A chat continues after Ctrl-C until the user leaves.
    match result.and(saved) {
        Ok(()) if interrupt.pressed() && !chats => {
            Err(CliError::Interrupted("generation was ended by Ctrl-C".into()))
        }
        result => result,
    }
}

/// Says what there is to know of an open model.
fn tell(model: &Model, args: &RunArgs, prompt: &Prompt) -> Result<(), CliError> {
    output::warn(model.warnings());
    if let Some(why) = no_system(model, args, prompt) {
        output::note_line(&format!("warning: the system prompt is not used: {why}"));
    }
    if model.is_modelled() && !args.quiet {
        output::note_line("all devices are virtual: times are modelled");
    }
    if args.verbose {
        output::warn(model.scan());
        output::note(&verbose(model)?);
    }
    Ok(())
}

enum Prompt {
    Text(String),
    /// Prompts that are answered at the same time.
    Lines(Vec<String>),
    Ids(Vec<u32>),
    Chat,
}

/// The source of the prompt: a flag, a file, piped input, or the terminal.
fn prompt(args: &RunArgs) -> Result<Prompt, CliError> {
    if let Some(ids) = &args.prompt_ids {
        return Ok(Prompt::Ids(ids.clone()));
    }
    let text = match (args.prompt.as_ref().or(args.text.as_ref()), args.file.as_deref()) {
        (Some(p), _) => p.clone(),
        (None, Some(file)) if !is_stdin(file) => read_input(Some(file))?,
        (None, None) if std::io::stdin().is_terminal() && args.json => {
            let why = "--json needs a prompt (-p, -f, --prompt-ids or piped text)";
            return Err(CliError::Usage(why.to_string()));
        }
        (None, None) if std::io::stdin().is_terminal() => return Ok(Prompt::Chat),
        (None, _) => {
            let text = read_input(None)?;
            // The last newline of piped text comes from the shell, not from the prompt.
            text.strip_suffix('\n').unwrap_or(&text).to_string()
        }
    };
    if text.is_empty() {
        return Err(troika::Error::EmptyPrompt.into());
    }
    Ok(Prompt::Text(text))
}

/// The lines of the file, or of what is piped in.
fn lines(args: &RunArgs) -> Result<Vec<String>, CliError> {
    if args.file.is_none() && std::io::stdin().is_terminal() {
        let why = "--parallel needs a file of prompts, one a line (-f), or piped text";
        return Err(CliError::Usage(why.to_string()));
    }
    let text = read_input(args.file.as_deref())?;
    let lines: Vec<String> = text.lines().map(str::to_string).collect();
    if lines.is_empty() { Err(troika::Error::EmptyPrompt.into()) } else { Ok(lines) }
}

/// Why a given system prompt cannot be used, if so.
fn no_system(model: &Model, args: &RunArgs, prompt: &Prompt) -> Option<&'static str> {
    args.system_prompt.as_ref()?;
    if matches!(prompt, Prompt::Ids(_)) {
        Some("--prompt-ids gives the model these tokens and no others")
    } else if args.raw {
        Some("--raw gives the model the prompt as it is")
    } else {
        (!model.has_template()).then_some("the model has no chat template")
    }
}

/// The options for opening a model that follow from the flags.
pub(super) fn open_options(open: &OpenArgs, tracer: Tracer) -> Result<OpenOptions, CliError> {
    Ok(OpenOptions {
        context: open.ctx_size.filter(|&c| c > 0),
        kv_dtype: open.cache_type,
        tracer,
        ..open.compute.options(open.threads)?
    })
}

/// Generates once. A trace has what the prompt and the later tokens used.
fn once(
    model: &Model,
    args: &RunArgs,
    ids: &[u32],
    interrupt: &Interrupt,
    cpu: &CpuMeter,
    tracer: &Tracer,
) -> Result<Output, CliError> {
    let metered = tracer.enabled() && !model.is_modelled();
    let meter = metered.then(|| EnergyMeter::find(Path::new("/sys"))).and_then(Result::ok);
    let start = || cpu.start(model, meter.as_ref().and_then(|meter| meter.start(stats::LOOK)));
    let (mut running, mut prompt) = (start(), None);
    let mut first = || prompt = Some(std::mem::replace(&mut running, start()).stop(ids.len()));
    let out = generate(model, &mut model.session()?, args, ids, interrupt, &mut first)?;
    let later = running.stop(out.stats.generated_tokens.saturating_sub(1));
    tracer.note(cpu.source(model));
    prompt.iter().for_each(|used| tracer.note(format!("prefill, {used}")));
    tracer.note(format!("decode, {later}"));
    Ok(out)
}

/// Prints what there is to know of an answer.
fn print_answer(
    model: &Model,
    source: &Source,
    args: &RunArgs,
    out: &Output,
    tokenizer: Option<Duration>,
) -> Result<(), CliError> {
    if args.json {
        let mut all = stats::json(model, source, out, tokenizer);
        let shared = model.engine()?.group_stats();
        if !shared.layers.is_empty() {
            all["expert_groups"] = expert_groups::json(&shared);
        }
        return output::json(&all);
    }
    output::write("\n")?;
    if !args.quiet {
        output::note(&stats::text(model, out, tokenizer));
        output::note(&expert_groups::text(&model.engine()?.group_stats()));
    }
    Ok(())
}

/// What was opened.
///
/// # Errors
/// This thread holds the engine.
fn verbose(model: &Model) -> Result<String, CliError> {
    let load = model.load_time().as_secs_f64() * 1e3;
    let engine = model.engine()?;
    let plan = engine.plan();
    let (strategy, context, kv) = (&plan.strategy, plan.context, plan.kv_dtype);
    let (devices, chunk) = (plan.devices.join("+"), plan.prefill.chunk);
    Ok(format!(
        "plan: {strategy} on {devices}, chunk {chunk}, context {context}, KV cache {kv}\n\
         load: {load:.1} ms\n"
    ))
}
