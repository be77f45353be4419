//! Chooses the outliers to prune by the perplexity of a text that chose nothing else.

use std::path::PathBuf;
use std::sync::Arc;

use troika::graph::ScaleOrigin;
use troika::model::lower::Lowered;
use troika::plan::{Calibration, MeasuredOutliers, Strategy};
use troika::{
    CalibrationOptions, DeviceSpec, Model, NpuNumbers, OpenOptions, Outliers, Scored, ShadowCost,
    Source,
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

/// What is measured, on the CPU, which computes as an NPU would.
pub struct Measuring<'a> {
    pub source: &'a Source,
    pub options: &'a OpenOptions,
    pub tokens: &'a [u32],
    pub lowered: &'a Lowered,
    pub interrupt: &'a Interrupt,
}

impl Measuring<'_> {
    /// Measures a calibration's ways until the best is known: that whose outliers take the fewest
    /// multiplications at the cost that pruning may have. SmoothQuant has none. Nothing without a
    /// window of text.
    ///
    /// # Errors
    /// Those of opening the model and of its devices, or Ctrl-C.
    pub fn choose(&self, of: &mut Calibration) -> Result<(), CliError> {
        if self.tokens.len() < self.options.context.unwrap_or(usize::MAX) {
            return Ok(());
        }
        let bar = progress::unknown("measuring what outliers cost");
        let calibration = Arc::new(of.clone());
        let (floats, tokens) = self.perplexity(NpuNumbers::Floats)?;
        let mut ways = Vec::new();
        let mut perplexity = |outliers: Outliers| {
            let (calibration, file) = (calibration.clone(), PathBuf::new());
            let options =
                CalibrationOptions { calibration, file, bits: 8, outliers, groups: false };
            let (perplexity, _) = self.perplexity(NpuNumbers::Calibrated(options))?;
            ways.push((outliers.to_string(), perplexity));
            Ok::<f64, CliError>(perplexity)
        };
        let form = |scales, steps| Outliers { scales, pruned: f64::from(steps) / f64::from(STEPS) };
        let work = |way| ShadowCost::of(&calibration, self.lowered, way).outliers;
        let mut best = form(ScaleOrigin::Static, 0);
        let most = perplexity(best)? * (1.0 + MOST_COST);
        let smooth = form(ScaleOrigin::Smoothed, STEPS);
        if perplexity(smooth)? <= most {
            best = smooth;
        }
        for (scales, mut bad) in [(ScaleOrigin::Smoothed, STEPS), (ScaleOrigin::Static, STEPS + 1)]
        {
            // The smallest share that is not good, and the largest that is, or that takes too much.
            let takes_less = |steps: &i32| work(form(scales, *steps)) < work(best);
            let mut good = (0..bad).find(takes_less).map_or(bad, |steps| steps - 1);
            while good + 1 < bad {
                let steps = i32::midpoint(good, bad);
                if perplexity(form(scales, steps))? > most {
                    bad = steps;
                    continue;
                }
                (good, best) = (steps, form(scales, steps));
            }
        }
        bar.finish_and_clear();
        of.measured = Some(MeasuredOutliers { best: best.to_string(), tokens, floats, ways });
        Ok(())
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
         the default: its outliers take the fewest multiplications of what costs at most {:.0} % more \
         than shadow=0.\n\n\
         | outliers | perplexity | over floats |\n| --- | ---: | ---: |\n",
        100.0 * MOST_COST
    );
    for (way, perplexity) in ways {
        text.push_str(&format!("| {way} | {perplexity:.3} | {:+.2} % |\n", over(*perplexity)));
    }
    let cost = ways.iter().find(|w| w.0 == *best).map_or(0.0, |w| over(w.1));
    if cost > 100.0 * MOST_BYTES_COST {
        text.push_str(&format!(
            "Activations in bytes cost {cost:.1} %; --npu-format w8a16 costs less.\n"
        ));
    }
    text
}
