//! A bar while weights are quantized.

use std::sync::{Arc, OnceLock};

use indicatif::{ProgressBar, ProgressStyle};
use troika::LoadProgress;

/// Draws a bar on a terminal; indicatif draws nothing elsewhere.
pub fn quantizing() -> LoadProgress {
    let bar: OnceLock<ProgressBar> = OnceLock::new();
    LoadProgress(Arc::new(move |done, all| {
        let bar = bar.get_or_init(|| ProgressBar::new(all).with_style(style()));
        bar.set_position(done);
        if done >= all {
            bar.finish_and_clear();
        }
    }))
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("quantizing [{bar:30}] {percent} % {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
