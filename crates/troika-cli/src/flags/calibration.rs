//! Flags that say how NPUs compute products of whole numbers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use troika::graph::ScaleOrigin;
use troika::plan::{Calibration, PlanError, Strategy};
use troika::weights::Quant;
use troika::{CalibrationOptions, Error, NpuNumbers, OpenOptions, Outliers};

use crate::error::CliError;
use crate::file::read_file;

/// A calibration and its use.
#[derive(Args, Clone)]
pub struct CalibrationArgs {
    /// Compute products of NPUs with whole numbers, by a file that troika calibrate wrote
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Bits of weights and activations of NPUs' products [default: w8a8 with a calibration, else
    /// f32]
    ///
    /// One of w8a8, w8a16, w4a16, w4f16, f16 and f32, or one for each phase: prefill=f16,decode=w8a8.
    /// Activations in floats (the last three) need no calibration. w4f16 gives weights four bits with
    /// a scale for each row; w4a16 also gives float weights four bits (--quant q4).
    #[arg(long, value_parser = formats, value_name = "FORMAT")]
    pub npu_format: Option<[NpuFormat; 2]>,
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
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum NpuFormat {
    W8a8,
    W8a16,
    W4a16,
    W4f16,
    F16,
    F32,
}

/// That of prompts and that of decoding.
fn formats(text: &str) -> Result<[NpuFormat; 2], String> {
    let phases = text.strip_prefix("prefill=").and_then(|rest| rest.split_once(",decode="));
    let (prefill, decode) = phases.unwrap_or((text, text));
    let of = |name| NpuFormat::from_str(name, false).ok();
    let both = of(prefill).zip(of(decode));
    both.map(<[NpuFormat; 2]>::from).ok_or_else(|| {
        "it is none of w8a8, w8a16, w4a16, w4f16, f16 and f32, nor one for each phase, as in \
         prefill=f16,decode=w8a8"
            .into()
    })
}

/// A calibration's file.
pub(super) fn read_calibration(file: &Path) -> Result<Arc<Calibration>, CliError> {
    let read = Calibration::from_json(&read_file(file)?);
    Ok(Arc::new(read.map_err(|e| of_file(file, e))?))
}

fn of_file(file: &Path, error: PlanError) -> Error {
    Error::Calibration { file: file.display().to_string(), error }
}

/// A share from 0 to 1.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|s| (0.0..=1.0).contains(s));
    share.ok_or_else(|| format!("{text:?} is no share from 0 to 1"))
}

impl CalibrationArgs {
    /// Sets the calibration from its file.
    pub fn apply(&self, options: &mut OpenOptions) -> Result<(), CliError> {
        options.devices.npu.attention = self.npu_attention;
        // Experts are shared out by what the file says of them, whatever the format.
        let experts = matches!(options.strategy, Strategy::Experts(_));
        let is_of_use = self.calibration.is_some() && !experts;
        let own = if is_of_use { NpuFormat::W8a8 } else { NpuFormat::F32 };
        let [prefill, decode] = self.npu_format.unwrap_or([own; 2]);
        options.npu_numbers = self.numbers(prefill, options)?;
        let other = Some(decode).filter(|format| *format != prefill);
        options.npu_decode = other.map(|format| self.numbers(format, options)).transpose()?;
        if is_of_use && options.calibration().is_none() {
            let why = "--npu-format of floats needs no --calibration; leave one of them out";
            return Err(CliError::Usage(why.into()));
        }
        Ok(())
    }

    /// What NPUs multiply in a format.
    fn numbers(
        &self,
        format: NpuFormat,
        options: &mut OpenOptions,
    ) -> Result<NpuNumbers, CliError> {
        let refuse = |why: &str| Err(CliError::Usage(why.into()));
        let bits = match format {
            NpuFormat::F32 => return Ok(NpuNumbers::Floats),
            NpuFormat::F16 => return Ok(NpuNumbers::Halves),
            NpuFormat::W4f16 => return Ok(NpuNumbers::HalvesByInt4),
            NpuFormat::W8a8 => 8,
            NpuFormat::W8a16 | NpuFormat::W4a16 => 16,
        };
        let Some(file) = &self.calibration else {
            return refuse(
                "--npu-format of whole numbers needs --calibration, a file that troika calibrate \
                 wrote",
            );
        };
        let calibration = read_calibration(file)?;
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
        let (file, groups) = (file.clone(), false);
        let options = CalibrationOptions { calibration, file, bits, groups, outliers };
        Ok(NpuNumbers::Calibrated(options))
    }
}
