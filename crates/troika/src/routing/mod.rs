//! Routing of models with experts: recorded on texts, predicted, and pruned.

mod evaluate;
mod low_rank;
mod observe;
mod prune;
mod record;
mod shuffle;
mod train;

pub use evaluate::{PredictedRecall, predictor_recall};
pub(crate) use observe::{observed, router_graph};
pub use prune::{PruneBy, Pruning, pruned_perplexity};
pub(crate) use record::RoutingLog;
pub use record::{RecordedRouting, record_routing};
pub use train::{PredictorTraining, router_weights, train_predictor};
