//! The host's memory: what is free, and what weights, KV cache and experts get of it.

use crate::free_memory::free_memory;

/// Left for what is not known beforehand: values between segments, scratch memory, the tokenizer,
/// the system's cache of files.
const RESERVE: u64 = 512 << 20;
/// The least share of free memory that the KV cache gets; weights get the others at most.
const LEAST_SHARE: u64 = 16;
/// The share of what the weights leave that the KV cache gets.
const CACHE_SHARE: u64 = 4;

/// Limits of the memory that opening a model shares out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    /// The most bytes of the host's memory for weights and KV cache; `None`: what is free.
    pub host: Option<u64>,
    /// The most bytes of experts in memory: the others are read from the folder of the cache when
    /// tokens choose them. `None`: all of them, if they fit.
    pub experts: Option<u64>,
}

/// What is free of the host's memory, and how it is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Bytes that are free.
    pub free: u64,
}

impl HostMemory {
    /// What the system has free, at most what the limits say; `None` if neither is known.
    pub fn now(limits: MemoryLimits) -> Option<HostMemory> {
        let free = free_memory().into_iter().chain(limits.host).min()?;
        Some(HostMemory { free })
    }

    /// The most bytes of weights: the rest is the least that the KV cache gets.
    pub fn weights(self) -> u64 {
        self.free - self.free / LEAST_SHARE
    }

    /// The most bytes of the KV cache beside weights of so many bytes: a quarter of what they leave.
    pub fn cache(self, weights: u64) -> u64 {
        (self.free.saturating_sub(weights) / CACHE_SHARE).max(self.free / LEAST_SHARE)
    }

    /// What is left for experts beside other weights and the KV cache.
    pub fn experts(self, other_weights: u64, cache: u64) -> u64 {
        self.free.saturating_sub(other_weights.saturating_add(cache).saturating_add(RESERVE))
    }

    /// The most bytes of groups of experts beside the model: half of what it leaves.
    pub fn groups(self, weights: u64) -> u64 {
        self.free.saturating_sub(weights) / 2
    }

    /// The most bytes of a GPU that works in the host's memory: two thirds.
    pub fn gpu(self) -> u64 {
        self.free / 3 * 2
    }

    /// Whether so little is free that what can be computed again makes way.
    pub fn is_short(self) -> bool {
        self.free < RESERVE / 2
    }
}

#[cfg(test)]
mod tests {
    use super::HostMemory;

    #[test]
    fn shares_are_no_more_than_there_is() {
        let gib = 1u64 << 30;
        for free in [0, 1 << 20, gib, 16 * gib, u64::MAX] {
            let host = HostMemory { free };
            assert!(host.weights().checked_add(free / 16).unwrap() <= free);
            for weights in [0, gib, 8 * gib, u64::MAX] {
                let cache = host.cache(weights);
                assert!(cache <= free / 4, "{free} {weights}");
                assert!(weights > host.weights() || weights + cache <= free, "{free} {weights}");
                assert!(host.experts(weights, cache) <= free.saturating_sub(weights));
                assert!(host.groups(weights) <= free);
            }
        }
        // An 8B model in 4 bits on a laptop of 16 GiB: 2.6 GiB of cache.
        assert_eq!(HostMemory { free: 15 * gib }.cache(5 * gib) >> 20, 2560);
        assert!(HostMemory { free: 1 << 20 }.is_short() && !HostMemory { free: gib }.is_short());
    }
}
