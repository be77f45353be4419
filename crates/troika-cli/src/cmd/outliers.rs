//! Chooses the outliers to prune by the perplexity of a text that chose nothing else.

use std::path::Path;
use std::sync::Arc;

use troika::plan::{Calibration, MeasuredOutliers, MeasuredWay, Strategy};
use troika::{
    CalibrationOptions, DeviceSpec, Model, NpuNumbers, OpenOptions, Outliers, Scored, Source,
};

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::progress;

/// What pruning may cost of the perplexity with nothing pruned.
const MOST_COST: f64 = 0.01;
/// A larger cost of bytes than this calls for activations of 16 bits.
const MOST_BYTES_COST: f64 = 0.03;
/// Shares that are pruned are multiples of one by this number.
const STEPS: i32 = 20;

/// A calibration's ways, which the CPU computes as an NPU would.
pub struct Measuring<'a> {
    pub source: &'a Source,
    pub options: &'a OpenOptions,
    pub calibration: Arc<Calibration>,
    /// The calibration's file, named in errors.
    pub file: &'a Path,
    /// The text.
    pub tokens: &'a [u32],
    pub interrupt: &'a Interrupt,
}

impl Measuring<'_> {
    /// Measures ways until the best is known: SmoothQuant if it costs no more than pruning may, as
    /// no device has to wait for another; else the one that prunes most at that cost. `None`
    /// without a window of text.
    ///
    /// # Errors
    /// Those of opening the model and of its devices, or Ctrl-C.
    pub fn all(&self) -> Result<Option<MeasuredOutliers>, CliError> {
        if self.tokens.len() < self.options.context.unwrap_or(usize::MAX) {
            return Ok(None);
        }
        let bar = progress::unknown("measuring what outliers cost");
        let (floats, tokens) = self.perplexity(NpuNumbers::Floats)?;
        let mut measured = MeasuredOutliers { tokens, floats, ..MeasuredOutliers::default() };
        let (mut best, mut pruned) = (Outliers::Shadow(0.0), 0);
        let mut least = self.way(best, &mut measured)?;
        let most = least * (1.0 + MOST_COST);
        if self.way(Outliers::Smoothed, &mut measured)? <= most {
            (best, pruned) = (Outliers::Smoothed, STEPS);
        }
        let forms: [(fn(f64) -> Outliers, i32); 2] =
            [(Outliers::SmoothShadow, STEPS), (Outliers::Shadow, STEPS + 1)];
        for (form, mut bad) in forms {
            // The largest share that is good, and the smallest that is not: all of SmoothQuant's.
            let mut good = pruned - 1;
            while good + 1 < bad && pruned < STEPS {
                let steps = i32::midpoint(good, bad);
                let way = form(f64::from(steps) / f64::from(STEPS));
                let perplexity = self.way(way, &mut measured)?;
                if perplexity > most {
                    bad = steps;
                    continue;
                }
                good = steps;
                if steps > pruned || perplexity < least {
                    (best, pruned, least) = (way, steps, perplexity);
                }
            }
        }
        bar.finish_and_clear();
        measured.best = best.to_string();
        Ok(Some(measured))
    }

    /// The perplexity of a way, which is noted.
    fn way(&self, outliers: Outliers, measured: &mut MeasuredOutliers) -> Result<f64, CliError> {
        let (calibration, file) = (self.calibration.clone(), self.file.to_path_buf());
        let options = CalibrationOptions { calibration, file, bits: 8, outliers };
        let (perplexity, _) = self.perplexity(NpuNumbers::Calibrated(options))?;
        measured.ways.push(MeasuredWay { way: outliers.to_string(), perplexity });
        Ok(perplexity)
    }

    /// The perplexity with some numbers, and the tokens that were scored.
    fn perplexity(&self, npu_numbers: NpuNumbers) -> Result<(f64, usize), CliError> {
        let mut options = OpenOptions {
            npu_numbers,
            activations: Some(Vec::new()),
            strategy: Strategy::OneDevice,
            ..self.options.clone()
        };
        let npu = DeviceSpec { as_npu: true, name: Some("npu".into()), ..DeviceSpec::default() };
        options.devices.devices = vec![npu, DeviceSpec::default()];
        let model = Model::open(self.source, &options)?;
        let mut going_on = |_: &_| !self.interrupt.pressed();
        let (window, scored) = (model.context(), Scored::SecondHalf);
        let found = model.perplexity(self.tokens, window, scored, &mut going_on)?;
        if self.interrupt.pressed() {
            let why = "measuring was ended; nothing is written";
            return Err(CliError::Interrupted(why.into()));
        }
        Ok((found.value(), found.tokens))
    }
}

/// What was measured, as text.
pub fn described(measured: Option<&MeasuredOutliers>) -> String {
    let Some(MeasuredOutliers { best, tokens, floats, ways }) = measured else {
        return "The text is too short to hold a part of it out, so it was not measured which \
                outliers may be pruned: none are. A longer text or --heldout FILE chooses.\n"
            .into();
    };
    let over = |perplexity: f64| 100.0 * (perplexity / floats - 1.0);
    let mut text = format!(
        "On {tokens} tokens held out, floats have a perplexity of {floats:.3}. --outliers {best} is \
         the default, which costs at most {:.0} % of that with nothing pruned.\n\n\
         | outliers | perplexity | over floats |\n| --- | ---: | ---: |\n",
        100.0 * MOST_COST
    );
    for MeasuredWay { way, perplexity } in ways {
        let over = over(*perplexity);
        text.push_str(&format!("| {way} | {perplexity:.3} | {over:+.2} % |\n"));
    }
    let cost = ways.iter().find(|w| w.way == *best).map_or(0.0, |w| over(w.perplexity));
    if cost > 100.0 * MOST_BYTES_COST {
        text.push_str(&format!(
            "Activations in bytes cost {cost:.1} %; --npu-format w8a16 costs less.\n"
        ));
    }
    text
}
