//! `cargo xtask load`: clients by the dozen against a server on this machine, and requests that are
//! wrong. Any server with OpenAI's interface can be measured; what leaves something behind is found
//! by Troika's own status.

mod address;
mod chat;
mod churn;
mod figures;
mod http;
mod idle;
mod malformed;
mod mutate;
mod process;
mod prompt;
pub mod server;
mod stream;

use std::time::Duration;

use crate::command::Result;
use address::Address;

/// The longest wait for anything from a server that works.
const WAIT: Duration = Duration::from_secs(60);

/// Send a server on this machine many requests at once, and print what they got
#[derive(clap::Args)]
pub struct Options {
    /// The server, as http://127.0.0.1:PORT
    url: String,
    #[command(subcommand)]
    kind: Option<Kind>,
}

/// What is sent.
#[derive(clap::Subcommand)]
enum Kind {
    Chat(chat::Options),
    Churn(churn::Options),
    Idle(idle::Options),
    Malformed(malformed::Options),
}

/// Sends it, and prints a summary.
///
/// # Errors
/// The server is not on this machine, or did something that it should not.
pub fn run(options: &Options) -> Result<()> {
    let address = Address::parse(&options.url)?;
    let text = match &options.kind {
        None => chat::run(&address, &chat::Options::default()),
        Some(Kind::Chat(options)) => chat::run(&address, options),
        Some(Kind::Churn(options)) => churn::run(&address, options),
        Some(Kind::Idle(options)) => idle::run(&address, options),
        Some(Kind::Malformed(options)) => malformed::run(&address, options),
    }?;
    println!("{text}");
    Ok(())
}
