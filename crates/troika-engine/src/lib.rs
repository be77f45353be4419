//! Runs a plan: sessions, KV cache, scheduler, sampling.
