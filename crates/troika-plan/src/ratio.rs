//! Shares of devices.

use serde::{Deserialize, Serialize};

/// A device's share of the columns, in any unit: with shares of 3 and 1 the first device computes
/// three quarters, rounded to tiles and heads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Name of the device.
    pub device: String,
    /// Its share.
    pub share: u32,
}

/// The first device's share, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio(u32);

impl Ratio {
    /// Half of all.
    pub const HALF: Ratio = Ratio(500);

    /// Parses a ratio from 0.001 to 0.999.
    pub(crate) fn parse(text: &str) -> Result<Ratio, String> {
        let ratio = text.parse::<f64>().ok().map(|r| (r * 1000.0).round());
        let inside = ratio.filter(|r| (1.0..=999.0).contains(r));
        let refused = || format!("a ratio of {text:?} is not one from 0.001 to 0.999");
        inside.map(|ratio| Ratio(ratio as u32)).ok_or_else(refused)
    }

    /// The shares of the first device and of the second.
    pub(crate) const fn shares(self) -> [u32; 2] {
        [self.0, 1000 - self.0]
    }
}
