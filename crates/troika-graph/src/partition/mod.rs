//! Partition: turns a subgraph into several that compute the same together.
//!
//! [`cut_at`] cuts between ops, [`expert_group`] gives some experts rows of their own,
//! [`expert_products`] makes products of one, [`residual`] takes outliers out of products, [`split_columns`]
//! gives each device some columns of the results, and [`Partition`] says which rows go where. This
//! module knows no devices, costs or models. See the README beside this file.

mod around;
mod axes;
mod columns;
mod cut;
mod piece;
mod residual;
mod rows;
mod split;
mod stages;
mod take;

pub use around::{AroundExperts, around_experts, single_choices};
pub use columns::split_columns;
pub use cut::{cut_at, expert_group, expert_products};
pub use piece::{Columns, Piece};
pub use residual::residual;
pub use rows::{Area, Computed, Partition};
pub use split::{ColumnSplit, PartitionError, Partitioned, Stage, kv_heads};
