//! Middles and tails of times.

use std::time::Duration;

/// Times in order.
pub struct Times(Vec<Duration>);

impl Times {
    /// Sorts them.
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// The time that this share of them does not exceed, in milliseconds; 0 where there are none.
    pub fn at(&self, share: f64) -> f64 {
        let rank = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).map_or(0.0, |t| t.as_secs_f64() * 1e3)
    }

    /// The middle and the tail as text.
    pub fn text(&self) -> String {
        format!("p50 {:.1} ms, p95 {:.1} ms", self.at(0.5), self.at(0.95))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let times = Times::new((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!((times.at(0.5), times.at(0.95), times.at(1.0)), (50.0, 95.0, 100.0));
        assert_eq!(Times::new(Vec::new()).at(0.5), 0.0);
        assert_eq!(Times::new(vec![Duration::from_millis(7)]).at(0.01), 7.0);
    }
}
