//! Flags that say how the experts strategy groups experts.

use std::path::Path;

use clap::Args;
use troika::ExpertOptions;
use troika::plan::{Dispatch, ExpertSettings};

use super::calibration::read_calibration;
use super::types::named;
use crate::error::CliError;

/// How experts are grouped.
#[derive(Args, Clone)]
#[command(next_help_heading = "Placement")]
pub struct ExpertArgs {
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
}

impl ExpertArgs {
    /// How to group experts, by a calibration's file if there is one.
    pub fn options(
        &self,
        calibration: Option<&Path>,
        prompt: Option<usize>,
    ) -> Result<ExpertOptions, CliError> {
        let read = |file: &Path| Ok::<_, CliError>((read_calibration(file)?, file.to_path_buf()));
        let settings = ExpertSettings {
            dispatch: self.expert_dispatch.unwrap_or_default(),
            bytes: self.expert_group_mib.map(|mib| mib.saturating_mul(1 << 20)),
            ..ExpertSettings::default()
        };
        let calibration = calibration.map(read).transpose()?;
        Ok(ExpertOptions { settings, calibration, prompt })
    }
}
