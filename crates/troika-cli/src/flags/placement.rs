//! Flags that say which devices there are and how a model is divided over them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::{RangedU64ValueParser, TypedValueParser};
use troika::plan::{Dispatch, ExpertSettings, Goal, Plan, PlanError, Policy, Strategy, SyncMode};
use troika::{
    AutoDevices, DeviceSpec, ExpertOptions, OpenOptions, PlanSource, ProfileAt, SolveOptions,
    on_battery,
};

use crate::error::CliError;
use crate::file::read_file;
use crate::flags::calibration::{CalibrationArgs, read_calibration};
use crate::flags::npu::needs_npu;
use crate::flags::quant::QuantArgs;
use crate::flags::types::named;
use crate::interrupt::Interrupt;
use crate::progress::OpeningBars;
use crate::{gpu, output};

/// Makes the names of devices distinct. Devices without a name get a free one. Devices that share a
/// core get a warning.
pub fn named_apart(devices: &[DeviceSpec]) -> Result<Vec<DeviceSpec>, CliError> {
    if let Some(core) = shared_core(devices) {
        output::note_line(&format!(
            "warning: --device: two devices have core {core}, and slow each other down; give each \
             one cores of its own"
        ));
    }
    let mut names = HashSet::new();
    match devices.iter().filter_map(|d| d.name.as_ref()).find(|name| !names.insert(*name)) {
        Some(name) => Err(CliError::Usage(format!(
            "--device: two devices are named {name}; give each one a name of its own"
        ))),
        None => Ok(devices.to_vec()),
    }
}

/// A core that several devices are pinned to.
fn shared_core(devices: &[DeviceSpec]) -> Option<usize> {
    let mut taken = HashSet::new();
    devices.iter().find_map(|device| {
        let cores: HashSet<usize> = device.cores.iter().flatten().copied().collect();
        cores.into_iter().filter(|core| !taken.insert(*core)).min()
    })
}

pub(super) fn device(text: &str) -> Result<DeviceSpec, String> {
    text.parse().map_err(|e: troika::DeviceSpecError| e.to_string())
}

/// A device, or that devices are chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceArg {
    Auto,
    Named(DeviceSpec),
}

fn device_or_auto(text: &str) -> Result<DeviceArg, String> {
    if text == "auto" { Ok(DeviceArg::Auto) } else { device(text).map(DeviceArg::Named) }
}

/// A number of layers; `all` and `auto` are -1.
fn layers(text: &str) -> Result<i64, &'static str> {
    let number = if matches!(text, "all" | "auto") { Ok(-1) } else { text.parse() };
    number.map_err(|_| "it is neither a number of layers nor all or auto")
}

/// `NAME=MIB`, in bytes.
fn memory(text: &str) -> Result<(String, u64), String> {
    let mib = |text: &str| text.parse::<u64>().ok()?.checked_mul(1 << 20);
    let both = text.split_once('=').and_then(|(name, n)| Some((name.to_string(), mib(n)?)));
    both.filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
        format!("{text:?} is not a device's name and a number of MiB, as in npu=4096")
    })
}

/// Lengths of a prompt and of its answer, in tokens.
#[derive(Clone, Copy, Debug)]
pub struct WantedLengths {
    pub prompt: usize,
    /// `None`: the default.
    pub answer: Option<usize>,
}

fn lengths(text: &str) -> Result<WantedLengths, String> {
    let (prompt, answer) =
        text.split_once(',').map_or((text, None), |(prompt, answer)| (prompt, Some(answer)));
    let read = |text: &str| {
        let wrong = |_| format!("{text:?} is no number of tokens, as in 512 or 512,128");
        text.parse::<usize>().map_err(wrong)
    };
    Ok(WantedLengths { prompt: read(prompt)?, answer: answer.map(read).transpose()? })
}

pub(super) fn sync_modes() -> impl TypedValueParser<Value = SyncMode> {
    named(SyncMode::ALL.map(SyncMode::name), SyncMode::parse)
}

/// How the model is divided over them.
#[derive(Args, Clone)]
#[command(next_help_heading = "Placement")]
pub struct PlacementArgs {
    /// The devices.
    #[arg(
        help = "Devices to use, such as cpu:0-3, gpu, npu:openvino or npu=virtual:phone.toml:npu \
        [default: one CPU device]"
    )]
    #[arg(long_help = "Devices to use, as [NAME=]cpu[:CORES][@ISA], such as a=cpu:0-3+8, as \
        [NAME=]gpu[:NUMBER|:ADAPTER], such as gpu:1 or gpu:radeon (docs/gpu.md), as \
        [NAME=]npu[:PROVIDER[:DEVICE]], such as npu:openvino:cpu (docs/npu.md), or as \
        [NAME=]virtual:FILE.toml[:PROCESSOR], a processor that the file describes (socs/README.md); \
        may be repeated, or be a list with commas [default: auto; cpu for commands that measure or \
        record, and with --strategy or --profile]")]
    #[arg(long, value_name = "SPEC", value_delimiter = ',', env = "TROIKA_DEVICE")]
    #[arg(value_parser = device_or_auto, conflicts_with_all = ["threads", "cores", "isa"])]
    pub device: Vec<DeviceArg>,
    /// The most layers on a GPU, the last ones, as far as its memory takes them: 0 is the CPU alone,
    /// all or more than there are has the head on the GPU, too
    #[arg(long, visible_alias = "gpu-layers", value_name = "N", value_parser = layers)]
    #[arg(allow_negative_numbers = true, conflicts_with_all = ["device", "strategy"])]
    pub n_gpu_layers: Option<i64>,
    /// The most MiB of weights that devices may hold, such as npu=4096 [default: no limit]
    ///
    /// Other devices compute what does not fit. Feed-forwards stay longest.
    #[arg(long, value_name = "NAME=MIB", value_delimiter = ',', value_parser = memory)]
    #[arg(env = "TROIKA_DEVICE_MEMORY")]
    pub device_memory: Vec<(String, u64)>,
    /// How the model is divided over the devices [default: one-device]
    ///
    /// One of one-device, alternate, split-columns or split-columns=RATIO (the
    /// first device's share), split-rows or split-rows=N (rows of a standard part), split-hybrid,
    /// prefill-decode or prefill-decode=PREFILL:DECODE (names of devices), experts or
    /// experts=POLICY (base, t, tg, all or cache: see docs/moe.md); also one-device=NAME. troika bench
    /// takes several.
    #[arg(long, value_name = "NAME", value_parser = Strategy::parse, env = "TROIKA_STRATEGY")]
    #[arg(value_delimiter = ',')]
    pub strategy: Vec<Strategy>,
    /// Choose the division by a profile that troika profile measured
    ///
    /// Without a file, by the one that it keeps for this model on these devices. troika plan does
    /// so if there is one.
    #[arg(long, value_name = "FILE", env = "TROIKA_PROFILE", conflicts_with = "strategy")]
    #[arg(num_args = 0..=1, default_missing_value = OWN_PROFILE)]
    pub profile: Option<PathBuf>,
    /// What the chosen plan is to be best at
    ///
    /// ttft is the time to the first token, tps tokens per second, energy is modelled and not
    /// measured.
    #[arg(long, value_name = "GOAL", value_parser = named(Goal::ALL.map(Goal::name), Goal::parse))]
    #[arg(default_value = "ttft")]
    pub goal: Goal,
    /// Lengths of prompt and answer that the chosen plan is best for, as 512 or 512,128 [default: 512
    /// and 128, or what the context holds]
    #[arg(long = "for", value_name = "P[,G]", value_parser = lengths)]
    pub lengths: Option<WantedLengths>,
    /// Numbers of rows to compile for on devices with static shapes [default: each device's own]
    ///
    /// Each takes memory of its own where weights are part of the code.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    pub row_buckets: Vec<usize>,
    #[command(flatten)]
    pub calibration: CalibrationArgs,
    /// The most MiB of experts that a device holds at once [default: what it takes]
    #[arg(long, value_name = "MIB")]
    pub expert_group_mib: Option<u64>,
    /// When groups run [default: per-chunk]
    ///
    /// per-chunk: once for each chunk of a prompt. layer-major: chunks go through the model layer
    /// by layer, and a group runs as soon as the rows of one of its experts are full.
    #[arg(long, value_name = "WAY")]
    #[arg(value_parser = named(Dispatch::ALL.map(Dispatch::name), Dispatch::parse))]
    pub expert_dispatch: Option<Dispatch>,
    /// Which of a prompt's segments a free device takes first [default: as the plan says]
    ///
    /// One of chunk-at-a-time, in-order, out-of-order or critical-path: see docs/plans.md.
    #[arg(long, value_name = "ORDER", value_parser = named(Policy::ALL.map(Policy::name), Policy::parse))]
    #[arg(env = "TROIKA_POLICY")]
    pub policy: Option<Policy>,
    /// How devices wait for each other [default: predicted]
    ///
    /// predicted: sleep for about as long as the wait before took, then look again and again.
    /// blocking: sleep until woken.
    #[arg(long, value_name = "MODE", value_parser = sync_modes(), env = "TROIKA_SYNC")]
    pub sync: Option<SyncMode>,
}

/// What a model is opened with to run: a plan in place of flags, and the time to compile it.
#[derive(Args)]
#[command(next_help_heading = "Placement")]
pub struct PlanFileArgs {
    /// Run by a plan that troika plan wrote
    ///
    /// It takes the place of the flags for placement, context, chunks and the KV cache.
    #[arg(long, value_name = "FILE", env = "TROIKA_PLAN")]
    pub plan: Option<PathBuf>,
    /// Run by this plan instead where a battery feeds the machine when the command starts
    ///
    /// A server goes on looking: a request that finds the model idle gets the plan that counts by
    /// then. Tokens may be others: each device rounds in its own way.
    #[arg(long, value_name = "FILE", requires = "plan", env = "TROIKA_BATTERY_PLAN")]
    pub battery_plan: Option<PathBuf>,
    /// Go on with other devices, instead of failing
    ///
    /// Others compute what the devices of a plan (--plan) refuse. When a GPU or NPU is lost, the CPU
    /// computes all sequences anew and goes on.
    #[arg(long)]
    pub fallback: bool,
    /// Seconds that compiling the model for its devices may take; 0: as long as it takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0, env = "TROIKA_COMPILE_TIMEOUT")]
    pub compile_timeout: u64,
}

/// The value that stands for the stored profile of the model and devices.
pub(super) const OWN_PROFILE: &str = "own";

/// A profile file, or the profile of the model and devices that is stored in the cache's folder.
///
/// # Errors
/// The system has no folder for it.
pub fn profile_at(file: Option<&Path>, cache: &QuantArgs) -> Result<ProfileAt, CliError> {
    let kept = || {
        let why = "the system has no folder to keep profiles in (HOME is not set); name a file";
        cache.profiles().map(ProfileAt::Folder).ok_or_else(|| CliError::Usage(why.into()))
    };
    file.map_or_else(kept, |file| Ok(ProfileAt::File(file.to_path_buf())))
}

impl PlacementArgs {
    /// The devices that are named; none: the CPU, or those that are chosen.
    pub fn devices(&self) -> Vec<DeviceSpec> {
        let named = |arg: &DeviceArg| match arg {
            DeviceArg::Named(spec) => Some(spec.clone()),
            DeviceArg::Auto => None,
        };
        self.device.iter().filter_map(named).collect()
    }

    /// How devices are chosen, if the flags ask for it.
    pub fn auto(&self) -> Option<AutoDevices> {
        let layers = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
        match self.n_gpu_layers {
            Some(0) => None,
            Some(n) => Some(gpu::auto(Some(layers(n)))),
            None if !self.strategy.is_empty() => None,
            None => self.device.contains(&DeviceArg::Auto).then(|| gpu::auto(None)),
        }
    }

    /// The same where flags leave open what computes, and how the model is divided: a profile that is
    /// kept may name an NPU.
    pub fn auto_or_open(&self, cache: &QuantArgs) -> Option<AutoDevices> {
        let is_named = !self.device.is_empty() || self.n_gpu_layers.is_some();
        if is_named || !self.strategy.is_empty() || self.profile.is_some() {
            return self.auto();
        }
        let profiles = cache.profiles().filter(|folder| folder.is_dir());
        // An NPU's libraries may print.
        profiles.iter().for_each(|_| output::keep_apart());
        Some(AutoDevices { profiles, ..gpu::auto(None) })
    }

    /// What the solver is asked for.
    fn solve(&self, profile: ProfileAt) -> SolveOptions {
        let (goal, prompt) = (self.goal, self.lengths.map(|of| of.prompt));
        SolveOptions { profile, goal, prompt, generate: self.lengths.and_then(|of| of.answer) }
    }

    /// Uses the stored profile of the model and devices, unless a flag or file says how to divide
    /// the model.
    pub fn use_own_profile(&self, cache: &QuantArgs, options: &mut OpenOptions) {
        if let (PlanSource::Strategy, true, Some(folder)) =
            (&options.plan, self.strategy.is_empty(), cache.profiles())
        {
            options.plan = PlanSource::Profile(self.solve(ProfileAt::IfIn(folder)));
        }
    }

    /// The strategy, where there can be only one.
    pub fn one_strategy(&self) -> Result<Strategy, CliError> {
        match &self.strategy[..] {
            [] => Ok(Strategy::default()),
            [one] => Ok(one.clone()),
            _ => {
                let why = "--strategy: only troika bench takes several; give one";
                Err(CliError::Usage(why.into()))
            }
        }
    }

    /// Sets the options by the flags.
    pub fn apply(
        &self,
        cache: &QuantArgs,
        strategy: Strategy,
        options: &mut OpenOptions,
    ) -> Result<(), CliError> {
        if self.device.len() > 1 && self.device.contains(&DeviceArg::Auto) {
            let why = "--device: auto stands alone, since it chooses among all devices";
            return Err(CliError::Usage(why.into()));
        }
        options.devices.devices = named_apart(&self.devices())?;
        options.strategy = strategy;
        if let Some(file) = &self.profile {
            let file = (file.to_str() != Some(OWN_PROFILE)).then_some(file.as_path());
            options.plan = PlanSource::Profile(self.solve(profile_at(file, cache)?));
        }
        let shares = matches!(options.strategy, Strategy::Experts(_));
        if self.lengths.is_some() && self.profile.is_none() && !shares {
            let why = "--for has no effect without --profile: only a profile leaves a plan \
                       to choose";
            return Err(CliError::Usage(why.into()));
        }
        let counts = self.calibration.calibration.as_deref().filter(|_| shares);
        let read = |file: &Path| Ok::<_, CliError>((read_calibration(file)?, file.to_path_buf()));
        options.experts = ExpertOptions {
            settings: ExpertSettings {
                dispatch: self.expert_dispatch.unwrap_or_default(),
                bytes: self.expert_group_mib.map(|mib| mib.saturating_mul(1 << 20)),
                ..ExpertSettings::default()
            },
            calibration: counts.map(read).transpose()?,
            prompt: self.lengths.map(|of| of.prompt),
        };
        self.calibration.apply(options)?;
        let flags = &self.calibration;
        let of_npus = [
            ("--npu-format", flags.npu_format.is_some()),
            ("--npu-attention", flags.npu_attention),
            ("--row-buckets", !self.row_buckets.is_empty()),
        ];
        if let Some((flag, _)) = of_npus.iter().find(|(_, is_given)| *is_given) {
            needs_npu(flag, &options.devices.devices)?;
        }
        (options.policy, options.sync) = (self.policy, self.sync.unwrap_or_default());
        Ok(())
    }
}

impl PlanFileArgs {
    /// Sets the plan that counts now from its file, and what ends compiling.
    pub fn apply(
        &self,
        options: &mut OpenOptions,
        until: Option<&Interrupt>,
    ) -> Result<(), CliError> {
        self.apply_on_mains(options, until)?;
        let of_battery = self.battery_plan.as_ref().filter(|_| on_battery(Path::new("/sys")));
        if let Some(file) = of_battery {
            output::note_line(&format!("on battery: plan {}", file.display()));
            options.plan = given(file)?;
        }
        Ok(())
    }

    /// The same where no battery feeds the machine.
    pub fn apply_on_mains(
        &self,
        options: &mut OpenOptions,
        until: Option<&Interrupt>,
    ) -> Result<(), CliError> {
        let limit = Duration::from_secs(self.compile_timeout);
        let limit = (!limit.is_zero()).then_some(limit);
        let cancel = until.map(Interrupt::flag);
        let mut bars = OpeningBars::default();
        (bars.cancel, bars.limit) = (cancel, limit);
        options.observer = Some(Arc::new(bars));
        options.fallback = self.fallback;
        if let Some(file) = &self.plan {
            options.plan = given(file)?;
        }
        Ok(())
    }

    /// The plan for batteries.
    pub fn for_battery(&self) -> Result<Option<PlanSource>, CliError> {
        self.battery_plan.as_deref().map(given).transpose()
    }
}

fn given(file: &Path) -> Result<PlanSource, CliError> {
    let (plan, file) = (Box::new(read_plan(file)?), Some(file.to_path_buf()));
    Ok(PlanSource::Given { plan, file })
}

/// A plan file.
pub fn read_plan(file: &Path) -> Result<Plan, CliError> {
    let plan = Plan::from_json(&read_file(file)?);
    let failed = |e: PlanError| troika::Error::PlanFile {
        file: file.display().to_string(),
        error: Box::new(e.into()),
    };
    Ok(plan.map_err(failed)?)
}
