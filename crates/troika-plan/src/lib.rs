//! Plans: which device runs which segment, at which shape, with which activation formats.
//!
//! This is the only place that decides placement and precision. A plan is a JSON file: `troika
//! plan` writes it, people edit it, and [`Plan::check`] checks it before it runs. The README of
//! this crate has a worked example.

mod avoid;
mod calibrated;
mod calibration;
mod check;
mod check_experts;
mod describe;
mod device;
mod divide;
mod elsewhere;
mod error;
mod expert_groups;
mod expert_rules;
mod experts;
mod identity;
mod json;
mod layers;
mod make;
mod median;
mod plan;
mod predicted;
mod ratio;
mod refusal;
mod routing;
mod rows;
mod share;
mod strategy;

pub use avoid::describe_refusals;
pub use calibrated::CalibratedProducts;
pub use calibration::{Calibration, LayerOutliers, MeasuredOutliers, OutlierSummary};
pub use describe::RuleText;
pub use device::PlanDevice;
pub use divide::SegmentAt;
pub use elsewhere::Elsewhere;
pub use error::PlanError;
pub use expert_groups::{
    ExpertGroupShape, ExpertPolicy, ExpertSettings, GroupLimits, LayerLoad, Tiers, WorthALaunch,
    expert_chunk, group, group_size, resident,
};
pub use experts::{Dispatch, ExpertCachePlan, ExpertGroupPlan, ExpertSplit, KeptBy, Overflow};
pub use identity::{ModelId, PLAN_VERSION};
pub use json::fault;
pub use layers::LayerRun;
pub use make::{PlanRequest, assemble, chunk_of, experts_left_out, in_flight, make, page_len};
pub use median::median;
pub use plan::{
    Decode, Layers, LengthRules, Phase, Plan, PlannedRules, Policy, Prefill, RefusedOps, Rule,
    Split, Stage, SyncMode,
};
pub use predicted::{Goal, Predicted, PredictedLength};
pub use ratio::{Ratio, Share};
pub use refusal::{EXPERT_GROUP, Refusal, leave_attention};
pub use routing::{
    ExpertUse, LayerPredictor, LayerRouting, Prediction, PredictorSource, RoutingFileError,
    RoutingPredictor, RoutingTrace, Transitions, median_overlap,
};
pub use share::{TILE, compiled_rows, own_space, stage_borders};
pub use strategy::{StandardLength, Strategy};
