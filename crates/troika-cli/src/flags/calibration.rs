//! Flags that say how NPUs compute products of whole numbers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use troika::graph::ScaleOrigin;
use troika::plan::{Calibration, PlanError, Strategy};
use troika::weights::Quant;
use troika::{CalibrationOptions, Error, NpuNumbers, OpenOptions, Outliers};

use crate::error::CliError;
use crate::input::read_file;

/// A calibration and its use.
#[derive(Args, Clone)]
pub struct CalibrationArgs {
    /// Compute products of NPUs with whole numbers, by a file that troika calibrate wrote
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Bits of weights and activations of NPUs' products [default: w8a8 with a calibration, else
    /// f32]
    ///
    /// f16 needs no calibration. w4a16 also gives float weights four bits (--quant q4).
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub npu_format: Option<NpuFormat>,
    /// Have NPUs compute attention, too, although another device can
    ///
    /// Their graphs have fixed shapes: there is one for each of several numbers of positions.
    #[arg(long)]
    pub npu_attention: bool,
    /// What is done with activations that are much larger than most [default: what troika calibrate
    /// found to be best]
    ///
    /// shadow: another device computes what is clipped of them (llm.npu); shadow=0.85 leaves that to
    /// all but 85 % of the segments, the least important ones. kept: they decide the scale. smooth:
    /// weights take over a part of their range (SmoothQuant). smooth-shadow: the same, and what
    /// still stands out is as with shadow. rows: each row has a scale, and those above 6 are
    /// multiplied as floats, as in LLM.int8(). troika perplexity takes several.
    #[arg(long, value_name = "WAY", value_delimiter = ',')]
    pub outliers: Vec<Outliers>,
}

/// Bits of weights and activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, ValueEnum)]
pub enum NpuFormat {
    #[default]
    W8a8,
    W8a16,
    W4a16,
    F16,
}

/// A calibration's file.
///
/// # Errors
/// The file cannot be read or is not a calibration.
pub(super) fn read_calibration(file: &Path) -> Result<Arc<Calibration>, CliError> {
    let read = Calibration::from_json(&read_file(file)?);
    Ok(Arc::new(read.map_err(|e| of_file(file, e))?))
}

fn of_file(file: &Path, error: PlanError) -> Error {
    Error::Calibration { file: file.display().to_string(), error }
}

/// A share from 0 to 1.
///
/// # Errors
/// Another text.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|s| (0.0..=1.0).contains(s));
    share.ok_or_else(|| format!("{text:?} is no share from 0 to 1"))
}

impl CalibrationArgs {
    /// The same without a calibration: NPUs compute with floats.
    pub fn without(&self) -> CalibrationArgs {
        CalibrationArgs { calibration: None, npu_format: None, ..self.clone() }
    }

    /// Sets the calibration from its file.
    ///
    /// # Errors
    /// The file cannot be read or is not a calibration, or the format does not go with it.
    pub fn apply(&self, options: &mut OpenOptions) -> Result<(), CliError> {
        let refuse = |why: &str| Err(CliError::Usage(why.into()));
        options.devices.npu.attention = self.npu_attention;
        let halves = self.npu_format == Some(NpuFormat::F16);
        options.npu_numbers = if halves { NpuNumbers::Halves } else { NpuNumbers::Floats };
        let is_float = halves || self.npu_format.is_none();
        let Some(file) = &self.calibration else {
            let why = "--npu-format of whole numbers needs --calibration, a file that troika \
                       calibrate wrote";
            return if is_float { Ok(()) } else { refuse(why) };
        };
        // Experts are shared out by what the file says of them, whatever the format.
        if matches!(options.strategy, Strategy::Experts(_)) && is_float {
            return Ok(());
        }
        if halves {
            return refuse("--npu-format f16 needs no --calibration; leave one of them out");
        }
        let calibration = read_calibration(file)?;
        let format = self.npu_format.unwrap_or_default();
        let outliers = match self.outliers[..] {
            [] => Outliers::best(&calibration).map_err(|e| of_file(file, e))?,
            [one] => one,
            _ => return refuse("--outliers: only troika perplexity takes several; give one"),
        };
        if outliers.scales == ScaleOrigin::Dynamic && format != NpuFormat::W8a8 {
            return refuse("--outliers rows has eight bits only; leave --npu-format out");
        }
        if format == NpuFormat::W4a16 && options.quant == Quant::None {
            options.quant = Quant::Q4;
        }
        options.npu_numbers = NpuNumbers::Calibrated(CalibrationOptions {
            calibration,
            file: file.clone(),
            bits: if format == NpuFormat::W8a8 { 8 } else { 16 },
            groups: false,
            outliers,
        });
        Ok(())
    }

    /// The same flags for one of several ways.
    pub fn with(&self, way: Outliers) -> CalibrationArgs {
        CalibrationArgs { outliers: vec![way], ..self.clone() }
    }
}
