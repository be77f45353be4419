//! Ways to write a graph with the same meaning that some compilers take better than others.

use std::fmt;
use std::str::FromStr;

/// A rewrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rewrite {
    /// None of the others: graphs as exporters write them.
    None,
    /// Squares in norms are products and no powers, which Apple's NPU computes with large errors
    /// (Yetter, "Don't let the pow in").
    PowToMul,
    /// A norm is one operator, with its epsilon inside (Yetter, the same section).
    FoldEpsilon,
    /// Norms divide by the largest number of a row first, if it is above 1, so that no half overflows as
    /// a square.
    ScaleNorms,
    /// The sum of all layers' results is a sixteenth of itself between them, so that no half overflows:
    /// norms do not see it. For packages of whole models.
    ScaleResidual,
    /// Attention of many queries goes in slices of them, which need less memory (Yetter, "Break
    /// down SDPA for long sequences").
    SliceQueries {
        /// The least number of queries that are sliced.
        min_rows: usize,
        /// The number of slices.
        divider: usize,
    },
    /// Heads and positions of cached keys and values are padded to powers of two (Yetter, "Make
    /// state dimension sizes powers of two").
    PadCache,
    /// A number so small that it changes no other is added to the cached values of a prompt's
    /// graphs (Yetter, "Update states with care").
    GuardValues,
    /// Products of floats are convolutions of one by one (NPUMoE, appendix A).
    LinearAsConv,
    /// Products of floats have multiples of 16 columns and rows of weights.
    MultiplesOf16,
}

/// The slices of the coremltools pass that Yetter uses.
const SLICES: Rewrite = Rewrite::SliceQueries { min_rows: 1280, divider: 16 };

impl Rewrite {
    const NAMED: [(&str, Rewrite); 10] = [
        ("none", Rewrite::None),
        ("pow-to-mul", Rewrite::PowToMul),
        ("fold-epsilon", Rewrite::FoldEpsilon),
        ("scale-norms", Rewrite::ScaleNorms),
        ("scale-residual", Rewrite::ScaleResidual),
        ("slice-q", SLICES),
        ("pad-cache", Rewrite::PadCache),
        ("guard-values", Rewrite::GuardValues),
        ("linear-as-conv", Rewrite::LinearAsConv),
        ("multiples-of-16", Rewrite::MultiplesOf16),
    ];
}

impl fmt::Display for Rewrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = |r: &Rewrite| std::mem::discriminant(r) == std::mem::discriminant(self);
        let named = Rewrite::NAMED.iter().find(|(_, r)| same(r));
        f.write_str(named.map_or("", |(name, _)| name))?;
        match self {
            Rewrite::SliceQueries { min_rows, divider } => write!(f, "={min_rows}:{divider}"),
            _ => Ok(()),
        }
    }
}

impl FromStr for Rewrite {
    type Err = String;

    fn from_str(text: &str) -> Result<Rewrite, String> {
        let both = text.split_once('=').map(|(name, how)| (name, Some(how)));
        let (name, how) = both.unwrap_or((text, None));
        let found = Rewrite::NAMED.iter().find(|(known, _)| *known == name).map(|(_, r)| *r);
        let sliced = |how: &str| {
            let (min_rows, divider) = how.split_once(':')?;
            let (min_rows, divider) = (min_rows.parse().ok()?, divider.parse().ok()?);
            (min_rows > 0 && divider > 1).then_some(Rewrite::SliceQueries { min_rows, divider })
        };
        match (found, how) {
            (Some(rewrite), None) => Ok(rewrite),
            (Some(Rewrite::SliceQueries { .. }), Some(how)) => sliced(how).ok_or_else(|| {
                format!(
                    "{how:?} must be the least number of queries and of how many slices, as in \
                     {SLICES}"
                )
            }),
            _ => {
                let all = Rewrite::NAMED.map(|(name, _)| name).join(", ");
                Err(format!("there is no rewrite {text:?}; the rewrites are {all}"))
            }
        }
    }
}

/// The rewrites of a device's graphs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrites(pub Vec<Rewrite>);

impl Default for Rewrites {
    fn default() -> Rewrites {
        Rewrites(vec![Rewrite::PowToMul])
    }
}

impl Rewrites {
    /// Those of Core ML's packages: what it is known to need, and what keeps halves from overflowing.
    pub fn of_core_ml() -> Rewrites {
        use Rewrite as R;
        let scales = [R::ScaleNorms, R::ScaleResidual];
        Rewrites([R::PowToMul, R::PadCache, R::GuardValues].into_iter().chain(scales).collect())
    }

    /// Whether products are written with floats, whatever their weights are stored as.
    pub(crate) fn take_floats(&self) -> bool {
        self.has(Rewrite::LinearAsConv) || self.has(Rewrite::MultiplesOf16)
    }

    pub(crate) fn has(&self, rewrite: Rewrite) -> bool {
        self.0.contains(&rewrite)
    }

    /// The numbers of queries of an attention's slices.
    pub(crate) fn slices(&self, rows: usize) -> Vec<usize> {
        let sliced = self.0.iter().find_map(|r| match *r {
            Rewrite::SliceQueries { min_rows, divider } if rows >= min_rows => Some(divider),
            _ => None,
        });
        let each = rows.div_ceil(sliced.unwrap_or(1)).max(1);
        (0..rows).step_by(each).map(|from| each.min(rows - from)).collect()
    }

    /// The width of a cached head or the number of cached positions in a graph.
    pub fn padded(&self, size: usize) -> usize {
        if self.has(Rewrite::PadCache) { size.next_power_of_two() } else { size }
    }
}

#[cfg(test)]
mod tests {
    use super::{Rewrite, Rewrites};

    #[test]
    fn rewrites_are_read_as_they_are_written() {
        for (name, rewrite) in Rewrite::NAMED {
            assert_eq!(name.parse(), Ok(rewrite));
            assert_eq!(rewrite.to_string().parse(), Ok(rewrite));
        }
        let sliced = Rewrite::SliceQueries { min_rows: 64, divider: 4 };
        assert_eq!("slice-q=64:4".parse(), Ok(sliced));
        for (wrong, says) in [
            ("", "the rewrites are none, pow-to-mul, "),
            ("pow", "no rewrite \"pow\""),
            ("pad-cache=2", "no rewrite"),
            ("slice-q=", "as in slice-q=1280:16"),
            ("slice-q=4:1", "as in"),
            ("slice-q=0:2", "as in"),
        ] {
            let why = wrong.parse::<Rewrite>().unwrap_err();
            assert!(why.contains(says), "{wrong}: {why}");
        }
    }

    #[test]
    fn slices_have_all_queries() {
        let of = |rows| Rewrites(vec!["slice-q=16:4".parse().unwrap()]).slices(rows);
        assert_eq!(of(15), [15]);
        assert_eq!(of(16), [4, 4, 4, 4]);
        assert_eq!(of(18), [5, 5, 5, 3]);
        assert_eq!(Rewrites::default().slices(40), [40]);
    }
}
