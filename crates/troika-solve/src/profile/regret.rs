//! How good choices by the fits are. For shapes outside the fits: the measured time of the choice
//! by the fits, relative to the best measured time.

use troika_model::lower::SegmentKind;
use troika_plan::median;

use super::measured::{Profile, Regret, RunSample};
use crate::segment_part::SegmentPart;

impl Regret {
    /// The regret of a profile's fits on its held-out runs.
    pub fn of(profile: &Profile) -> Regret {
        let price = |r: &RunSample| {
            profile.fits.get(r.device, r.segment, r.part).map(|f| f.time.ns(&r.work))
        };
        let held: Vec<&RunSample> = profile.runs.iter().filter(|r| r.held_out).collect();
        let error = |r: &&RunSample| price(r).map(|p| (p / r.undisturbed_ns() - 1.0).abs());
        let errors: Vec<f64> = held.iter().filter_map(error).collect();
        let mut shapes: Vec<(SegmentKind, usize, usize)> = Vec::new();
        for r in held.iter().filter(|r| r.is_whole()) {
            let shape = (r.segment, r.rows, r.cached);
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        let mut lost = Vec::new();
        for (segment, rows, cached) in shapes {
            let ways = ways(profile, segment, rows, cached, &price);
            let chosen = ways.iter().min_by(|a, b| a.1.total_cmp(&b.1));
            let best = ways.iter().map(|w| w.0).fold(f64::INFINITY, f64::min);
            lost.extend(chosen.filter(|_| ways.len() > 1).map(|c| c.0 / best - 1.0));
        }
        Regret {
            choices: lost.len(),
            worst: lost.iter().copied().fold(0.0, f64::max),
            median: median(lost).unwrap_or(0.0),
            runs: errors.len(),
            error: median(errors).unwrap_or(0.0),
        }
    }
}

/// The measured and the predicted time for a shape: of each device alone, and of each pair of
/// devices with measured shares.
fn ways(
    profile: &Profile,
    segment: SegmentKind,
    rows: usize,
    cached: usize,
    price: &dyn Fn(&RunSample) -> Option<f64>,
) -> Vec<(f64, f64)> {
    let of = |device: usize, share: u32| -> Vec<(f64, f64)> {
        let here = |r: &&RunSample| {
            (r.device, r.segment, r.rows, r.cached, r.share, r.part)
                == (device, segment, rows, cached, share, SegmentPart::Whole)
        };
        let runs = profile.runs.iter().filter(here);
        runs.filter_map(|r| Some((r.undisturbed_ns(), price(r)?))).collect()
    };
    let devices = profile.subject.devices.len();
    let mut ways = Vec::new();
    for a in 0..devices {
        // Layers of different shapes are all counted.
        let alone = of(a, 64);
        if !alone.is_empty() {
            ways.push(alone.iter().fold((0.0, 0.0), |sum, r| (sum.0 + r.0, sum.1 + r.1)));
        }
        for b in (0..devices).filter(|b| *b != a) {
            for share in [16, 32, 48] {
                let (x, y) = (of(a, share), of(b, 64 - share));
                if x.is_empty() || x.len() != y.len() {
                    continue;
                }
                let together = x.iter().zip(&y);
                let sum = |all: (f64, f64), (x, y): (&(f64, f64), &(f64, f64))| {
                    (all.0 + x.0.max(y.0), all.1 + x.1.max(y.1))
                };
                ways.push(together.fold((0.0, 0.0), sum));
            }
        }
    }
    ways
}
