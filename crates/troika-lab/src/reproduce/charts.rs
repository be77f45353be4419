//! Curves of the paper's figures. The paper does not print their values; values in its text are
//! drawn as points.

use super::lab::{Case, Lab, Phone};
use super::prefill::lengths;
use super::presets::B8;
use crate::LabError;

/// A line, or points.
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
    /// Whether the paper printed it.
    pub printed: bool,
}

/// A figure.
pub struct Chart {
    /// Its title.
    pub title: &'static str,
    /// The names of the x and y axes.
    pub axes: [&'static str; 2],
    /// Its lines and points.
    pub series: Vec<Series>,
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.into(), points, printed: false }
}

fn printed(name: &str, points: &[(f64, f64)]) -> Series {
    Series { name: format!("{name}, printed"), points: points.to_vec(), printed: true }
}

/// All figures, if all targets are run.
///
/// # Errors
/// A failing simulation.
pub fn all(lab: &mut Lab, wanted: bool) -> Result<Vec<Chart>, LabError> {
    if !wanted {
        return Ok(Vec::new());
    }
    Ok(vec![gpu(lab)?, npu(lab)?, order(lab)?, lengths_chart(lab)?])
}

fn gpu(lab: &mut Lab) -> Result<Chart, LabError> {
    let mut rates = Vec::new();
    for rows in (16..=512).step_by(16) {
        let time = lab.product(Phone::Gen3, "gpu", [4096, 4096, rows], false)?;
        rates.push((rows as f64, tflops(rows) / time.latency_us));
    }
    let at = |rows: usize, us: f64| (rows as f64, tflops(rows) / us);
    let known = printed("Table 3", &[at(128, 7306.0), at(256, 10_841.0)]);
    Ok(Chart {
        title: "GPU: [4096,4096] x [4096,K] (figure 1)",
        axes: ["K", "TFLOPS"],
        series: vec![line("ours", rates), known],
    })
}

/// Operations of a product of 4096 by 4096, in 10^6.
fn tflops(rows: usize) -> f64 {
    2.0 * 4096.0 * 4096.0 * rows as f64 * 1e-6
}

fn npu(lab: &mut Lab) -> Result<Chart, LabError> {
    let mut times = Vec::new();
    for rows in 1..=288 {
        let time = lab.product(Phone::Gen3, "npu", [4096, 4096, rows], false)?;
        times.push((rows as f64, time.run_us));
    }
    Ok(Chart {
        title: "NPU: [4096,4096] x [4096,K] (figure 3)",
        axes: ["K", "us"],
        series: vec![line("ours", times), printed("Table 3", &[(128.0, 912.0), (256.0, 1884.0)])],
    })
}

fn order(lab: &mut Lab) -> Result<Chart, LabError> {
    let mut series = Vec::new();
    for (name, phone, shape) in [
        ("[14336,4096] x [4096,K]", Phone::Gen3, [14_336, 4096]),
        ("[K,4096] x [4096,14336]", Phone::Gen3InOrder, [14_336, 4096]),
        ("[4096,14336] x [14336,K]", Phone::Gen3, [4096, 14_336]),
    ] {
        let mut times = Vec::new();
        for rows in (32..=512).step_by(32) {
            let time = lab.product(phone, "npu", [shape[0], shape[1], rows], false)?;
            times.push((rows as f64, time.run_us * 1e-3));
        }
        series.push(line(name, times));
    }
    series.push(printed("Table 3", &[(256.0, 23.445)]));
    Ok(Chart { title: "NPU: order and shape of operands (figure 4)", axes: ["K", "ms"], series })
}

fn lengths_chart(lab: &mut Lab) -> Result<Chart, LabError> {
    let mut series = Vec::new();
    for strategy in ["hetero-tensor", "npu-pipe", "padding", "online-prepare"] {
        let mut times = Vec::new();
        for prompt in lengths() {
            let ms = lab.ttft(Case::prefill(B8, strategy, prompt))?;
            times.push((prompt as f64, ms * 1e-3));
        }
        series.push(line(strategy, times));
    }
    let ours = lab.ttft(Case::prefill(B8, "hetero-tensor", 525))? * 1e-3;
    let ratios = [2.24, 2.21, 1.35].map(|r| (525.0, r * ours));
    series.push(printed("2.24, 2.21 and 1.35 times hetero-tensor at 525", &ratios));
    Ok(Chart {
        title: "Prompts of all lengths, the 8B model (figure 14)",
        axes: ["tokens", "s"],
        series,
    })
}
