//! Dividing the experts of groups between two devices, or between runs (HeteroInfer, section 4.1).

use std::str::FromStr;

use crate::experts::ExpertGroupPlan;
use crate::ratio::{Ratio, Share};

/// Divided capacities are rounded up to a multiple of so many rows.
const MULTIPLE: usize = 16;
/// The most runs that a group is divided into.
const MAX_LAUNCHES: usize = 64;

/// How the work of experts in groups is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertDivision {
    /// By rows between two devices, of which the groups' device gets this share (activation-centric).
    Rows(Ratio),
    /// By columns of the weights between two devices (weight-centric).
    Columns(Ratio),
    /// By rows between so many runs of a smaller graph on the groups' device. Runs that nobody needs
    /// are left out.
    Launches(usize),
}

impl ExpertDivision {
    /// The groups that a whole one becomes, with a second device.
    pub(crate) fn groups(self, whole: ExpertGroupPlan, other: &str) -> Vec<ExpertGroupPlan> {
        let of_rows = |capacity: usize| ExpertGroupPlan { capacity, ..whole.clone() };
        let rounded = |rows: usize| rows.next_multiple_of(MULTIPLE).min(whole.capacity);
        match self {
            ExpertDivision::Rows(ratio) => {
                let share = whole.capacity * ratio.shares()[0] as usize;
                let first = rounded(share.div_ceil(1000));
                let rest = of_rows(whole.capacity - first);
                let second = ExpertGroupPlan { device: other.into(), ..rest };
                [of_rows(first), second].into_iter().filter(|g| g.capacity > 0).collect()
            }
            ExpertDivision::Columns(ratio) => {
                let shares = ratio.shares();
                let device = if shares[0] < shares[1] { other } else { &whole.device }.to_string();
                let names = [whole.device.as_str(), other];
                let parts = names.into_iter().zip(shares);
                let parts = parts.map(|(device, share)| Share { device: device.into(), share });
                vec![ExpertGroupPlan { device, parts: parts.collect(), ..whole }]
            }
            ExpertDivision::Launches(launches) => {
                let capacity = rounded(whole.capacity.div_ceil(launches.max(1)));
                let launches = whole.capacity.div_ceil(capacity.max(1));
                vec![of_rows(capacity); launches]
            }
        }
    }
}

impl FromStr for ExpertDivision {
    type Err = String;

    /// `rows=RATIO`, `columns=RATIO` or `launches=N`.
    fn from_str(text: &str) -> Result<ExpertDivision, String> {
        match text.split_once('=') {
            Some(("rows", ratio)) => Ratio::parse(ratio).map(ExpertDivision::Rows),
            Some(("columns", ratio)) => Ratio::parse(ratio).map(ExpertDivision::Columns),
            Some(("launches", n)) => {
                let n = n.parse().ok().filter(|n| (2..=MAX_LAUNCHES).contains(n));
                let refused = || format!("give 2 to {MAX_LAUNCHES} launches");
                n.map(ExpertDivision::Launches).ok_or_else(refused)
            }
            _ => Err(format!("{text:?} is none of rows=RATIO, columns=RATIO and launches=N")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(how: &str, capacity: usize) -> Vec<(String, usize, Vec<u32>)> {
        let whole = ExpertGroupPlan::new("npu", vec![4], capacity);
        let groups = how.parse::<ExpertDivision>().unwrap().groups(whole, "cpu");
        let told = |g: ExpertGroupPlan| {
            assert_eq!(g.experts, [4]);
            (g.device, g.capacity, g.parts.iter().map(|p| p.share).collect())
        };
        groups.into_iter().map(told).collect()
    }

    #[test]
    fn groups_are_divided_as_asked_for() {
        let rows = |all: &[(&str, usize)]| -> Vec<(String, usize, Vec<u32>)> {
            all.iter().map(|(device, rows)| ((*device).into(), *rows, Vec::new())).collect()
        };
        assert_eq!(divided("rows=0.75", 256), rows(&[("npu", 192), ("cpu", 64)]));
        assert_eq!(divided("rows=0.5", 37), rows(&[("npu", 32), ("cpu", 5)]));
        assert_eq!(divided("rows=0.9", 12), rows(&[("npu", 12)]));
        assert_eq!(divided("launches=4", 256), rows(&[("npu", 64); 4]));
        assert_eq!(divided("launches=4", 40), rows(&[("npu", 16); 3]));
        assert_eq!(divided("columns=0.75", 64), [("npu".into(), 64, vec![750, 250])]);
        assert_eq!(divided("columns=0.25", 64), [("cpu".into(), 64, vec![250, 750])]);
        for (text, told) in [
            ("rows", "none of rows=RATIO"),
            ("rows=1", "0.001 to 0.999"),
            ("columns=x", "0.001 to 0.999"),
            ("launches=1", "2 to 64"),
        ] {
            assert!(text.parse::<ExpertDivision>().unwrap_err().contains(told), "{text}");
        }
    }
}
