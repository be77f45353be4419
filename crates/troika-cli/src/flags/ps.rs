//! Flags of `troika ps`.

use clap::Args;

/// `troika ps`.
#[derive(Args)]
pub struct PsArgs {
    /// Where the server listens
    #[arg(long, value_name = "NAME", default_value = "127.0.0.1", env = "TROIKA_HOST")]
    pub host: String,
    /// Its port
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PORT, env = "TROIKA_PORT")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Its key, if it was started with one
    #[arg(long, value_name = "KEY", env = "TROIKA_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Print what the server says as JSON
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
}

/// The port of servers.
pub const DEFAULT_PORT: u16 = 8080;
