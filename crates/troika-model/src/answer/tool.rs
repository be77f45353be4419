//! A tool that the model may call.

use serde_json::Value;

/// A tool: what the model is told of it, and what its calls must hold.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolSpec {
    /// The name in calls.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON schema of the arguments. Null means that there are none.
    pub parameters: Value,
}
