//! Flags of `troika ps`.

use clap::Args;

use super::keys::KeyArgs;

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
    /// Its keys, of which the first is sent
    #[command(flatten)]
    pub keys: KeyArgs,
    /// Print what the server says as JSON
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
}

/// The port of servers.
pub const DEFAULT_PORT: u16 = 8080;
