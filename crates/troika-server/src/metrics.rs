//! Figures for Prometheus.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use troika::Stats;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfModel {
    pub model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfDevice {
    pub model: String,
    pub device: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfStatus {
    pub code: u16,
}

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub requests: Family<OfStatus, Counter>,
    pub queued: Gauge,
    pub running: Gauge,
    ttft: Histogram,
    tpot: Histogram,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generated_tokens: Counter,
    pub kv_used: Family<OfModel, Gauge>,
    pub kv_budget: Family<OfModel, Gauge>,
    pub pages: Family<OfModel, Gauge>,
    pub sequences: Family<OfModel, Gauge>,
    pub busy: Family<OfDevice, Counter<f64, AtomicU64>>,
    pub expert_hits: Family<OfModel, Gauge<f64, AtomicU64>>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let seconds = |buckets: &[f64]| Histogram::new(buckets.iter().copied());
        let mut metrics = Metrics {
            registry: Registry::with_prefix("troika"),
            requests: Family::default(),
            queued: Gauge::default(),
            running: Gauge::default(),
            ttft: seconds(&[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1., 2.5, 5., 10., 30., 60.]),
            tpot: seconds(&[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.]),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            kv_used: Family::default(),
            kv_budget: Family::default(),
            pages: Family::default(),
            sequences: Family::default(),
            busy: Family::default(),
            expert_hits: Family::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("requests", "Requests by status code", self.requests.clone());
        r.register("queue_requests", "Requests that wait for a place", self.queued.clone());
        r.register("running_requests", "Answers that are computed", self.running.clone());
        let ttft = "Time from the request with its prompt tokenized to the first token";
        r.register_with_unit("ttft", ttft, Unit::Seconds, self.ttft.clone());
        let tpot = "Mean time of an answer's tokens after the first";
        r.register_with_unit("tpot", tpot, Unit::Seconds, self.tpot.clone());
        r.register("prompt_tokens", "Tokens of prompts", self.prompt_tokens.clone());
        let hits = "Tokens of prompts whose prefix was cached";
        r.register("prefix_hit_tokens", hits, self.cached_tokens.clone());
        r.register("generated_tokens", "Tokens of answers", self.generated_tokens.clone());
        let used = "KV cache in use, kept prefixes included";
        r.register_with_unit("kv_cache_used", used, Unit::Bytes, self.kv_used.clone());
        let budget = "KV cache that may be in use";
        r.register_with_unit("kv_cache_budget", budget, Unit::Bytes, self.kv_budget.clone());
        r.register("kv_pages", "Pages that sequences hold", self.pages.clone());
        r.register("sequences", "Open sequences", self.sequences.clone());
        let busy = "Time that devices computed";
        r.register_with_unit("device_busy", busy, Unit::Seconds, self.busy.clone());
        let hits = "Part of the chosen experts that was in memory";
        r.register("expert_hit_ratio", hits, self.expert_hits.clone());
    }

    pub fn finished(&self, stats: &Stats) {
        self.prompt_tokens.inc_by(stats.prompt_tokens as u64);
        self.cached_tokens.inc_by(stats.cached_tokens as u64);
        self.generated_tokens.inc_by(stats.generated_tokens as u64);
        if stats.generated_tokens > 0 {
            self.ttft.observe(stats.ttft.as_secs_f64());
        }
        if let Some(tpot) = stats.tpot() {
            self.tpot.observe(tpot.as_secs_f64());
        }
    }

    pub fn computed(&self, model: &str, device: &str, time: Duration) {
        let of = OfDevice { model: model.into(), device: device.into() };
        self.busy.get_or_create(&of).inc_by(time.as_secs_f64());
    }

    /// Removes the figures of a model that was closed, but for its counters.
    pub fn closed(&self, model: &str) {
        let of = OfModel { model: model.into() };
        for family in [&self.kv_used, &self.kv_budget, &self.pages, &self.sequences] {
            family.remove(&of);
        }
        self.expert_hits.remove(&of);
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
