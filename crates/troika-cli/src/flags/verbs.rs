//! The verbs with their flags.
//!
//! Groups of flags under a heading come last: clap puts what follows one under its heading.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, Args, Parser, Subcommand, ValueEnum};
use troika::ExpertFunctions;
use troika::graph::DType;
use troika::npu::Rewrite;
use troika::npu::mil::PackageWeights;
use troika::weights::Quant;
use troika_lab::Ablation;

use super::calibration::share;
use super::doctor::DoctorArgs;
use super::export::{expert_groups, rows, weights};
use super::models::{CacheArgs, PullArgs, RmArgs};
use super::npu::NpuProfilingArgs;
use super::open::{ComputeArgs, OpenArgs};
use super::placement::{self, PlanFileArgs};
use super::sampling::SamplingArgs;
use super::serve::{PsArgs, ServeArgs};
use super::sharing::SharingArgs;
use super::simulate::{ReproduceArgs, SimulateArgs};
use super::types::{CACHE_TYPES, QUANTS, one_of, sequence_count, thread_count};

/// What `--version` says, which a report of a fault should hold. `-V` says its first line.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("TROIKA_COMMIT"),
    "\nfeatures: ",
    env!("TROIKA_FEATURES"),
    "\ntarget: ",
    env!("TROIKA_TARGET"),
);

/// Runs large language models on the processors of this machine.
#[derive(Parser)]
#[command(name = "troika", version, long_version = LONG_VERSION, max_term_width = 100, propagate_version = true)]
#[command(after_help = "Without a MODEL, commands use the small built-in model.\n\
    Exit codes: 0 success, 1 failure, 2 wrong usage, 130 ended by Ctrl-C.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Verbs.
#[derive(Subcommand)]
pub enum Command {
    /// Generate text, or chat when there is no prompt and a terminal
    Run(Box<RunArgs>),
    /// Serve models to programs that speak OpenAI's, Anthropic's or Ollama's interface, and a page
    Serve(Box<ServeArgs>),
    /// Say what a model is: architecture, parameters, bytes
    Show(ShowArgs),
    /// Turn text into token ids
    Tokenize(TokenizeArgs),
    /// Measure prefill and decode speed, as llama-bench does
    Bench(BenchArgs),
    /// Say how fast a model would be on a phone or another system on a chip, in virtual time
    Simulate(SimulateArgs),
    /// Make the tables of papers again on virtual systems on a chip
    Reproduce(ReproduceArgs),
    /// Measure how well a model predicts a text, as llama-perplexity does
    Perplexity(PerplexityArgs),
    /// Say how long devices worked and waited in a trace, as tables
    Report {
        /// A Chrome trace, such as troika run --trace writes, or a calibration or routing trace of
        /// troika calibrate: how often experts were chosen
        #[arg(value_name = "FILE")]
        trace: PathBuf,
    },
    /// Find the ranges and outliers of a model's values on a text, for products of whole numbers
    Calibrate(Box<CalibrateArgs>),
    /// Train what predicts a token's experts in time to load them
    TrainPredictor(Box<TrainPredictorArgs>),
    /// Write a model as a package of another runtime: Core ML's
    Export(ExportArgs),
    /// Say which device would run what, and write it to a file that can be edited
    Plan(Box<PlanArgs>),
    /// Measure a model's parts on the devices, for plans that --profile chooses
    Profile(Box<ProfileArgs>),
    /// List the devices of this machine
    Devices(DevicesArgs),
    /// Say what of this machine can be used, and what is missing, with the command that mends it
    Doctor(DoctorArgs),
    /// Fetch models of the Hugging Face Hub
    Pull(PullArgs),
    /// List the models in the Hub's cache
    #[command(visible_alias = "list")]
    Ls {
        /// Print one JSON object
        #[arg(long, env = "TROIKA_JSON")]
        json: bool,
    },
    /// Remove models from the Hub's cache
    Rm(RmArgs),
    /// Say which models a server has, and how busy it is
    Ps(PsArgs),
    /// List, check or remove what is kept: quantized weights, hashes and profiles
    Cache(CacheArgs),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the manual's pages into a folder; archives of releases hold them
    #[command(hide = true)]
    Man {
        /// The folder
        dir: PathBuf,
    },
}

/// Which model.
#[derive(Args)]
pub struct ModelArgs {
    /// A folder (config.json + safetensors), a .gguf file, or a Hub id such as Qwen/Qwen3-0.6B or
    /// owner/name:Q4_K_M [default: the built-in model]
    #[arg(value_name = "MODEL")]
    pub positional: Option<OsString>,
    /// The same, as llama.cpp spells it
    #[arg(short, long, env = "TROIKA_MODEL", conflicts_with = "positional")]
    pub model: Option<OsString>,
    /// Do not ask the Hub: use what is in its cache (as HF_HUB_OFFLINE=1)
    #[arg(long, env = "TROIKA_OFFLINE")]
    pub offline: bool,
}

/// Which model, or what stands for one.
#[derive(Args)]
pub struct SubjectArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Random weights of a known shape instead of a model: qwen3-0.6b, llama-3.2-1b:Q4_K_M, ...
    #[arg(long, value_name = "SHAPE", conflicts_with_all = ["positional", "model"])]
    pub synthetic: Option<String>,
}

/// Texts to try on what another text showed.
#[derive(Args)]
pub struct UnseenArgs {
    /// A text to try the result on, for models with experts; may be repeated [default: the last
    /// quarter of the text, for what the first three show]
    #[arg(long, value_name = "FILE")]
    pub unseen: Vec<PathBuf>,
}

/// `troika run`.
#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The prompt, as Ollama takes it
    #[arg(value_name = "PROMPT")]
    #[arg(conflicts_with_all = ["model", "prompt", "file", "prompt_ids", "parallel"])]
    pub text: Option<String>,
    /// The prompt; read from standard input when that is not a terminal
    #[arg(short, long, conflicts_with_all = ["file", "prompt_ids"])]
    #[arg(allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Read the prompt from a file; -: from standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt_ids")]
    pub file: Option<PathBuf>,
    /// The prompt as token ids, for instance 5,6,7; needs no tokenizer
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    #[arg(allow_negative_numbers = true)]
    pub prompt_ids: Option<Vec<u32>>,
    /// System message of the conversation
    #[arg(long, alias = "sys", value_name = "TEXT")]
    #[arg(allow_hyphen_values = true)]
    pub system_prompt: Option<String>,
    /// Give the prompt to the model as it is, without its chat template
    #[arg(long, alias = "no-conversation")]
    pub raw: bool,
    /// Read control tokens such as <|im_end|> in messages as such
    ///
    /// By default they are plain text there, so that nobody who writes a message can write as
    /// somebody else. With --raw, and in the model's own answers, they are always read.
    #[arg(long)]
    pub parse_special: bool,
    /// Tokens to generate; -1: until the model stops or the context is full
    #[arg(short, long = "n-predict", visible_alias = "predict", value_name = "N")]
    #[arg(default_value_t = -1, allow_negative_numbers = true, env = "TROIKA_N_PREDICT")]
    #[arg(value_parser = clap::value_parser!(i64).range(-2..))]
    pub n_predict: i64,
    /// Answer each line of the file or of standard input as a prompt of its own, N at a time
    ///
    /// Answers come in the prompts' order, with --json one object a line.
    #[arg(long, visible_alias = "np", value_name = "N", value_parser = sequence_count())]
    #[arg(env = "TROIKA_PARALLEL", conflicts_with_all = ["prompt", "prompt_ids"])]
    pub parallel: Option<usize>,
    #[command(flatten)]
    pub sharing: SharingArgs,
    /// Print one JSON object instead of the text
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
    /// Write a Chrome trace of the run (opens in Perfetto)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub npu_profiling: NpuProfilingArgs,
    /// Print what is loaded and how memory is used; check weights (up to 4 GiB) for NaN
    #[arg(short, long, env = "TROIKA_VERBOSE")]
    pub verbose: bool,
    /// Do not print the figures at the end
    #[arg(short, long, env = "TROIKA_QUIET")]
    pub quiet: bool,
    #[command(flatten)]
    pub open: OpenArgs,
    #[command(flatten)]
    pub plan: PlanFileArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// `troika show`.
#[derive(Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Quantize as --quant of other commands does and print the error by class of weights
    #[arg(long, value_parser = one_of(QUANTS), default_value = "none")]
    pub quant: Quant,
    /// Print one JSON object
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
}

/// `troika tokenize`.
#[derive(Args)]
pub struct TokenizeArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The text; read from standard input when absent
    #[arg(short, long, allow_hyphen_values = true)]
    #[arg(conflicts_with = "file")]
    pub prompt: Option<String>,
    /// Read the text from a file; -: from standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Do not add BOS
    #[arg(long)]
    pub no_bos: bool,
    /// Read special tokens in the text as plain text
    #[arg(long)]
    pub no_parse_special: bool,
    /// Print only the ids, as a list
    #[arg(long, conflicts_with = "json")]
    pub ids: bool,
    /// Print one JSON object
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
}

/// Form of a table.
#[derive(Clone, Copy, ValueEnum, PartialEq, Eq)]
pub enum TableFlag {
    /// Markdown
    Md,
    /// Comma-separated values
    Csv,
    /// One JSON array
    Json,
    /// One JSON object a line
    Jsonl,
}

/// Lengths of a prompt and an answer.
fn lengths(text: &str) -> Result<(usize, usize), String> {
    let number = |text: &str| text.parse().ok().filter(|n| *n > 0);
    let both = text.split_once(',').and_then(|(p, g)| Some((number(p)?, number(g)?)));
    both.ok_or_else(|| format!("{text:?} is not two lengths, as in 448,64"))
}

/// `troika bench`.
#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Prompt lengths to measure; 0: none
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', default_value = "512")]
    #[arg(allow_negative_numbers = true)]
    pub n_prompt: Vec<usize>,
    /// Numbers of tokens to decode; 0: none
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_value = "128")]
    #[arg(allow_negative_numbers = true)]
    pub n_gen: Vec<usize>,
    /// Tokens in the context before the measurement
    #[arg(short = 'd', long, value_name = "N", value_delimiter = ',', default_value = "0")]
    #[arg(allow_negative_numbers = true)]
    pub n_depth: Vec<usize>,
    /// Sequences that are computed together, as llama-batched-bench does
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    #[arg(value_parser = sequence_count())]
    pub sequences: Vec<usize>,
    #[command(flatten)]
    pub sharing: SharingArgs,
    /// Answer prompts of P tokens, chat template included, with G tokens, and print the time to the
    /// first token, per token and to the end, as P,G; may be repeated
    #[arg(long = "pg", value_name = "P,G", value_parser = lengths)]
    #[arg(conflicts_with_all = ["sequences", "n_depth", "overhead"])]
    pub answers: Vec<(usize, usize)>,
    /// Threads [default: one per physical performance core]
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = thread_count())]
    #[arg(env = "TROIKA_THREADS")]
    pub threads: Vec<usize>,
    /// Type of the KV cache [default: as run has it]
    #[arg(long, value_parser = one_of(CACHE_TYPES), env = "TROIKA_CACHE_TYPE")]
    pub cache_type: Option<DType>,
    /// Repetitions
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    pub repetitions: usize,
    /// Measure what scheduler, queues and completions cost per decoded token instead
    #[arg(long, conflicts_with_all = ["sequences", "n_depth"])]
    pub overhead: bool,
    /// Measure a paper's ablation instead, each step with what the one before it has: llm.npu (with a
    /// calibration) or heteroinfer, with the NPU as the first device of two
    #[arg(long, value_name = "PAPER", value_parser = Ablation::parse)]
    #[arg(conflicts_with_all = ["sequences", "n_depth", "overhead", "answers", "soc"])]
    pub ablation: Option<Ablation>,
    /// Run the same plans on a virtual system on a chip, too, as profile --soc-out writes it, and say
    /// how far off its times are from the fastest repetition
    #[arg(long, value_name = "FILE.toml", conflicts_with_all = ["answers", "overhead"])]
    pub soc: Option<PathBuf>,
    /// Form of the result
    #[arg(short, long, value_enum, default_value = "md")]
    pub output: TableFlag,
    #[command(flatten)]
    pub compute: ComputeArgs,
    #[command(flatten)]
    pub plan: PlanFileArgs,
}

fn of_windows(context: Arg) -> Arg {
    let help = "Length of the windows in tokens [default: 512, or the model's context if shorter]";
    context.help(help)
}

/// `troika perplexity`.
#[derive(Args)]
#[command(mut_arg("ctx_size", of_windows))]
pub struct PerplexityArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The file of the text; -, or when absent: standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Score all tokens of a window, not only those of its second half
    #[arg(long)]
    pub all: bool,
    /// Print one JSON object
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
    #[command(flatten)]
    pub open: OpenArgs,
    #[command(flatten)]
    pub plan: PlanFileArgs,
}

/// `troika calibrate`.
#[derive(Args)]
#[command(mut_arg("ctx_size", of_windows))]
pub struct CalibrateArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// The file of the text; -, or when absent: standard input. Random weights read tokens of no
    /// meaning
    #[arg(short, long, alias = "text", value_name = "FILE")]
    #[arg(conflicts_with = "synthetic")]
    pub file: Option<PathBuf>,
    /// Share of the inputs that are outliers, such as 0.003 [default: those far above the others]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub outlier_share: Option<f64>,
    /// A text that chooses which outliers to prune, by its perplexity [default: the last part of the
    /// text, which is then not calibrated with]
    #[arg(long, value_name = "FILE", conflicts_with = "synthetic")]
    pub heldout: Option<PathBuf>,
    #[command(flatten)]
    pub unseen: UnseenArgs,
    /// Write the chosen experts of each token, too, for troika report
    #[arg(long, value_name = "FILE")]
    pub routing_trace: Option<PathBuf>,
    /// The calibration to write
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Print one JSON object
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
    #[command(flatten)]
    pub open: OpenArgs,
}

/// `troika profile`. What is done when it is interrupted is kept, and gone on with.
#[derive(Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// The file to write; one that is there and not complete is gone on with [default: one that is
    /// kept for this model on these devices, in the folder of --cache-dir]
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Write the devices as a virtual system on a chip, too, for simulate --soc and bench --soc
    #[arg(long, value_name = "FILE.toml")]
    pub soc_out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
    #[command(flatten)]
    pub open: OpenArgs,
}

/// `troika plan`.
#[derive(Args)]
pub struct PlanArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Write the plan to a file [default: print it]
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print tables of what runs where, of what is copied between memories, and with --profile of
    /// the plans that were not chosen, instead of the plan
    #[arg(long)]
    pub explain: bool,
    /// Compile the model for its devices first: only that tells for certain what they take
    #[arg(long)]
    pub compile: bool,
    #[command(flatten)]
    pub npu_profiling: NpuProfilingArgs,
    #[command(flatten)]
    pub open: OpenArgs,
}

/// `troika devices`.
#[derive(Args)]
pub struct DevicesArgs {
    /// The devices.
    #[arg(help = "Devices to list, as [NAME=]cpu[:CORES][@ISA], \
        [NAME=]gpu[:NUMBER|:ADAPTER] or \
        [NAME=]virtual:FILE.toml[:PROCESSOR]; may be repeated, or be a list with commas \
        [default: one CPU device]")]
    #[arg(long, value_name = "SPEC", value_delimiter = ',', env = "TROIKA_DEVICE")]
    #[arg(value_parser = placement::device, conflicts_with = "threads")]
    pub device: Vec<troika::DeviceSpec>,
    /// Compare the kernels of the devices with the CPU's, on seeded values
    #[arg(long, requires = "device")]
    pub check: bool,
    /// Folder where what --check finds of GPUs is kept [default: troika in the system's folder for
    /// caches]
    #[arg(long, value_name = "DIR", env = "TROIKA_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Threads to measure with [default: one per core]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = thread_count(), env = "TROIKA_THREADS")]
    pub threads: Option<usize>,
    /// Print a JSON list, an object for each device
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
}

/// `troika train-predictor`.
#[derive(Args)]
#[command(mut_arg("ctx_size", of_windows))]
pub struct TrainPredictorArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The file of the text; -, or when absent: standard input
    #[arg(short, long, alias = "text", value_name = "FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub unseen: UnseenArgs,
    /// The predictor to write
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// Print one JSON object
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
    #[command(flatten)]
    pub open: OpenArgs,
}

/// `troika export`.
#[derive(Args)]
pub struct ExportArgs {
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Write a Core ML package
    #[arg(long, alias = "core-ml", required = true)]
    pub coreml: bool,
    /// The package, a folder that does not exist: NAME.mlpackage
    #[arg(short, long, value_name = "PACKAGE")]
    pub out: PathBuf,
    /// Positions of the caches [default: the model's context, at most 2048]
    #[arg(short, long, alias = "context", value_name = "N", value_parser = rows())]
    pub ctx_size: Option<usize>,
    /// Rows of the functions for prompts: one function prefill_N for each [default: 512, or as many
    /// as there are positions]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = rows())]
    pub prefill: Vec<usize>,
    /// Where keys and values are
    ///
    /// stateful: states of the package, for the Neural Engine alone. stateless: inputs, and new ones
    /// outputs, so that another device can decode.
    #[arg(long, value_name = "KIND", value_parser = ["stateful", "stateless"])]
    #[arg(default_value = "stateful")]
    pub state: String,
    /// How products' weights are stored
    ///
    /// int4, int8: a scale for each output channel. int4-32, int4-64: for so many columns of it.
    /// stored: Q4_0 and Q8_0 as they are, all else f16.
    #[arg(long, value_name = "FORM", value_parser = weights, default_value = "f16")]
    pub weights: PackageWeights,
    /// Whether embeddings and head are inside, or left to the CPU, where Core ML would run them anyway
    #[arg(long, value_name = "WHERE", value_parser = ["inside", "cpu"], default_value = "inside")]
    pub head: String,
    /// Write experts, too: functions of so many, each with ROWS rows [default: left to another device]
    #[arg(long, value_name = "EXPERTS:ROWS", value_parser = expert_groups)]
    pub expert_groups: Option<ExpertFunctions>,
    /// Write experts as a plan of the strategy experts groups them for prompts
    #[arg(long, value_name = "FILE", conflicts_with = "expert_groups")]
    pub plan: Option<PathBuf>,
    /// The least number of queries whose attention goes in slices (coremltools' sliced_q)
    #[arg(long, value_name = "N", default_value_t = 1280, value_parser = rows())]
    pub min_seq_length: usize,
    /// The number of slices; 1: none
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = rows())]
    pub seq_length_divider: usize,
    /// How graphs are written [default: pow-to-mul,scale-norms,scale-residual,pad-cache,
    /// guard-values]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub npu_rewrites: Vec<Rewrite>,
    /// Print one JSON object
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
}
