//! What DRY knows of the tokens so far: repetitions of the last ones, up to a breaker.

use std::collections::BTreeMap;

use super::chain::Chain;

/// Says how a token is spelled.
pub type Spelling = Box<dyn Fn(u32) -> Vec<u8> + Send>;

/// Texts that break repetitions, looked for as the text grows.
pub(super) struct History {
    breakers: Vec<Vec<u8>>,
    /// `None`: nothing breaks them.
    pub spelling: Option<Spelling>,
    /// The last bytes of the text, as many as a breaker may begin with.
    end: Vec<u8>,
    /// How many tokens came after the last one that ended a breaker.
    unbroken: usize,
    /// Of each recent token, the last one first: how many tokens up to it are the last tokens.
    repeats: Vec<usize>,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").field("unbroken", &self.unbroken).finish_non_exhaustive()
    }
}

impl History {
    pub fn new(chain: &Chain) -> History {
        let breakers = chain.dry_sequence_breakers.iter().filter(|text| !text.is_empty());
        let breakers = breakers.map(|text| text.as_bytes().to_vec()).collect();
        let (end, repeats) = (Vec::new(), Vec::new());
        History { breakers, spelling: None, end, unbroken: 0, repeats }
    }

    /// A token follows.
    pub fn accept(&mut self, token: u32) {
        self.unbroken += 1;
        let Some(spelling) = &self.spelling else { return };
        let old = self.end.len();
        self.end.extend(spelling(token));
        let ends_here = |breaker: &Vec<u8>| {
            let from = old.saturating_sub(breaker.len() - 1);
            self.end[from..].windows(breaker.len()).any(|text| text == breaker)
        };
        if self.breakers.iter().any(ends_here) {
            self.unbroken = 0;
        }
        let longest = self.breakers.iter().map(Vec::len).max().unwrap_or(0);
        self.end.drain(..self.end.len().saturating_sub(longest));
    }

    /// What is taken from the logits of tokens that would go on with a repetition.
    pub fn penalties(&mut self, recent: &[u32], chain: &Chain) -> BTreeMap<u32, f64> {
        let recent = &recent[recent.len().saturating_sub(chain.window())..];
        let allowed = chain.dry_allowed_length as usize;
        let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
        if recent.len() > allowed && self.unbroken >= allowed {
            count_repeats(recent, &mut self.repeats);
            // The token behind the one at `back` from the end is the one after the repetition.
            for (back, count) in self.repeats.iter().enumerate().skip(1) {
                let count = (*count).min(self.unbroken);
                if count >= allowed {
                    let most = longest.entry(recent[recent.len() - back]).or_default();
                    *most = count.max(*most);
                }
            }
        }
        longest.retain(|token, _| !self.breaks(*token));
        let penalty = |count: usize| {
            let power = f64::from(chain.dry_base).powf((count - allowed) as f64);
            // As llama.cpp, up to the largest f32.
            f64::from(chain.dry_multiplier) * power.min(f64::from(f32::MAX))
        };
        longest.into_iter().map(|(token, count)| (token, penalty(count))).collect()
    }

    /// Whether a token has a whole breaker.
    fn breaks(&self, token: u32) -> bool {
        let Some(spelling) = &self.spelling else { return false };
        let text = spelling(token);
        self.breakers.iter().any(|b| text.windows(b.len()).any(|text| text == b))
    }
}

/// The Z-algorithm (Gusfield 1997, section 1.4) from the end: of each place, how many tokens up to it
/// are the same as the last ones. Linear in time.
fn count_repeats(recent: &[u32], repeats: &mut Vec<usize>) {
    let back = |i: usize| recent[recent.len() - 1 - i];
    repeats.clear();
    repeats.resize(recent.len(), 0);
    let (mut left, mut right) = (0, 0);
    for i in 1..recent.len() {
        let mut same = if i < right { repeats[i - left].min(right - i) } else { 0 };
        while i + same < recent.len() && back(same) == back(i + same) {
            same += 1;
        }
        if i + same > right {
            (left, right) = (i, i + same);
        }
        repeats[i] = same;
    }
}
