//! A file per verb.

pub mod bench;
pub mod cache;
pub mod calibrate;
pub mod completions;
pub mod devices;
pub mod doctor;
pub mod export;
pub mod ls;
pub mod man;
mod op_times;
pub mod outliers;
pub mod perplexity;
pub mod plan;
pub mod profile;
pub mod ps;
pub mod pull;
pub mod report;
pub mod reproduce;
pub mod rm;
pub mod routing;
pub mod run;
pub mod serve;
pub mod show;
pub mod simulate;
pub mod tokenize;
pub mod train_predictor;
