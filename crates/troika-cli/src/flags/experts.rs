//! Flags that say how the experts strategy groups experts.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use troika::plan::{
    BaseCapacity, Calibration, CapacityRounding, CapacityRule, Dispatch, ExpertDivision,
    ExpertSettings, Overflow, Tiers,
};
use troika::{Error, ExpertOptions};

use super::types::named;
use crate::error::CliError;
use crate::input::read_file;

/// How experts are grouped.
#[derive(Args, Clone)]
#[command(next_help_heading = "Placement")]
pub struct ExpertArgs {
    /// Experts in a group at most [default: 16, 8 or 4, what the device takes; 1
    /// with layer-major]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    #[arg(env = "TROIKA_EXPERT_GROUP")]
    pub expert_group: Option<u64>,
    /// Rows that a group has for each expert [default: quartile]
    ///
    /// quartile: the quarter of a layer's experts that is chosen most gets four times the base
    /// capacity, the mean over all; the others half of it, all of it or twice as much, as needed;
    /// with layer-major each gets a quarter of its expected rows, 64 at least. 0.5:1:2:4: the least
    /// multiple that the expected rows fit, for all. rows=N: as many for each. chunk: as many as a
    /// chunk has.
    #[arg(long, value_name = "TIERS", env = "TROIKA_EXPERT_TIERS")]
    pub expert_tiers: Option<Tiers>,
    /// Take the rows of a chunk over experts as base capacity, without the experts of a row
    #[arg(long)]
    pub expert_base_rows: bool,
    /// Round capacities up to powers of two, in place of multiples of 16
    #[arg(long)]
    pub expert_powers_of_two: bool,
    /// The most MiB of experts that groups hold [default: what the device takes]
    #[arg(long, value_name = "MIB", env = "TROIKA_EXPERT_GROUP_MIB")]
    pub expert_group_mib: Option<u64>,
    /// Divide the experts of groups between two devices, or their rows between runs
    ///
    /// rows=RATIO: this share of each capacity on the groups' device, the rest on a third one or else
    /// the CPU. columns=RATIO: the same by columns of the weights, each expert by itself.
    /// launches=N: N runs of a smaller graph, of which those with rows run.
    #[arg(long, value_name = "WAY", env = "TROIKA_EXPERT_DIVIDE")]
    pub expert_divide: Option<ExpertDivision>,
    /// Whether groups come to their device and leave it while the model runs [default: static]
    ///
    /// static: they stay where they are, so that a seed gives the same tokens in every run.
    /// adaptive: those whose experts the text chooses most are there. Where devices round
    /// differently, tokens then depend on earlier prompts.
    #[arg(long, value_name = "HOW", env = "TROIKA_EXPERT_RESIDENCY")]
    #[arg(value_parser = named(["static", "adaptive"], |how| Some(how == "adaptive")))]
    pub expert_residency: Option<bool>,
    /// What becomes of rows beyond an expert's capacity [default: cpu]
    ///
    /// cpu: the CPU computes them, nothing is lost. pad: there are none, each expert has room for
    /// all rows of a chunk. prune: those to which attention added least are left out.
    #[arg(long, value_name = "POLICY", env = "TROIKA_OVERFLOW")]
    #[arg(value_parser = named(Overflow::ALL.map(Overflow::name), Overflow::parse))]
    pub overflow: Option<Overflow>,
    /// When groups run [default: per-chunk]
    ///
    /// per-chunk: once for each chunk of a prompt. layer-major: chunks go through the model layer
    /// by layer, and a group runs as soon as the rows of one of its experts are full.
    #[arg(long, value_name = "WAY", env = "TROIKA_EXPERT_DISPATCH")]
    #[arg(value_parser = named(Dispatch::ALL.map(Dispatch::name), Dispatch::parse))]
    pub expert_dispatch: Option<Dispatch>,
}

impl ExpertArgs {
    /// How to group experts, by a calibration's file if there is one.
    ///
    /// # Errors
    /// The file cannot be read or is no calibration.
    pub fn options(
        &self,
        calibration: Option<&Path>,
        prompt: Option<usize>,
    ) -> Result<ExpertOptions, CliError> {
        let read = |file: &Path| {
            let failed = |error| Error::Calibration { file: file.display().to_string(), error };
            let read = Calibration::from_json(&read_file(file)?).map_err(failed)?;
            Ok::<_, CliError>((Arc::new(read), file.to_path_buf()))
        };
        let capacity = CapacityRule {
            tiers: self.expert_tiers.clone().unwrap_or_default(),
            base: match self.expert_base_rows {
                true => BaseCapacity::PerRow,
                false => BaseCapacity::PerChoice,
            },
            rounding: match self.expert_powers_of_two {
                true => CapacityRounding::PowersOfTwo,
                false => CapacityRounding::Multiples,
            },
        };
        let by_columns = matches!(self.expert_divide, Some(ExpertDivision::Columns(_)));
        if by_columns && self.expert_group.is_some() {
            let why = "--expert-divide columns has each expert by itself; leave out --expert-group";
            return Err(CliError::Usage(why.into()));
        }
        let settings = ExpertSettings {
            capacity,
            divide: self.expert_divide,
            group: self.expert_group.map(|n| n as usize),
            overflow: self.overflow.unwrap_or_default(),
            dispatch: self.expert_dispatch.unwrap_or_default(),
            bytes: self.expert_group_mib.map(|mib| mib.saturating_mul(1 << 20)),
            adaptive: self.expert_residency.unwrap_or_default(),
            ..ExpertSettings::default()
        };
        let calibration = calibration.map(read).transpose()?;
        Ok(ExpertOptions { settings, calibration, prompt })
    }
}
