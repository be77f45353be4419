//! Reads the command line, which wins over the environment: a variable counts as unset if its flag
//! conflicts with one on the command line.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::builder::{BoolishValueParser, Resettable};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::help::with_short_help;
use super::{Cli, effect, one_dash, overwrite};
use crate::error::CliError;
use crate::output;

/// Parses this process's command line. Ends the process after what clap refuses and after `--help`.
pub fn parse() -> Result<Cli, CliError> {
    let command = with_short_help(with_boolish_variables(Cli::command()));
    let words = one_dash::translate(&command, std::env::args_os().collect())?;
    let mut command = typed_first(command, &words);
    let read = command.clone().try_get_matches_from(&words);
    let matches = read.unwrap_or_else(|e| match e.kind() {
        ErrorKind::InvalidUtf8 => not_text(&mut command, &words).exit(),
        _ => e.exit(),
    });
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.format(&mut command).exit());
    if let Some((name, given)) = matches.subcommand()
        && let Some(verb) = command.find_subcommand(name)
    {
        effect::check(verb, given)?;
        overwrite::check(verb, given)?;
    }
    Ok(cli)
}

/// Lets variables of flags without a value accept 1, yes and on as true, as other programs do.
fn with_boolish_variables(command: Command) -> Command {
    let boolish = |arg: Arg| match (arg.get_action(), arg.get_env()) {
        (ArgAction::SetTrue, Some(_)) => arg.value_parser(BoolishValueParser::new()),
        _ => arg,
    };
    command.mut_subcommands(|verb| verb.mut_args(boolish))
}

fn without_variable(arg: Arg) -> Arg {
    arg.env(Resettable::Reset)
}

/// Removes the variables of flags that conflict with typed ones.
fn typed_first(command: Command, words: &[OsString]) -> Command {
    let names: Vec<String> =
        command.get_subcommands().map(|verb| verb.get_name().to_string()).collect();
    let bare = names.iter().fold(command.clone(), |command, name| {
        command.mut_subcommand(name, |verb| verb.mut_args(without_variable))
    });
    // Wrong usage is reported when the full command parses the same words.
    let Ok(matches) = bare.try_get_matches_from(words) else { return command };
    let Some((name, typed)) = matches.subcommand() else { return command };
    let Some(verb) = command.find_subcommand(name) else { return command };
    let mut beaten = beaten(verb, typed);
    for (arg, by) in effect::beaten(verb, typed) {
        if let Some(variable) = arg.get_env().filter(|name| std::env::var_os(name).is_some()) {
            let (variable, by) = (variable.to_string_lossy(), by.get_long().unwrap_or_default());
            output::note_line(&format!("note: {variable} is not used: --{by} is given"));
        }
        beaten.insert(arg.get_id().to_string());
    }
    command.mut_subcommand(name, |verb| {
        verb.mut_args(|arg| match beaten.contains(arg.get_id().as_str()) {
            true => without_variable(arg),
            false => arg,
        })
    })
}

/// Flags that conflict with a typed one and were not typed themselves.
fn beaten(verb: &Command, typed: &ArgMatches) -> BTreeSet<String> {
    let is_typed = |arg: &Arg| effect::is_typed(arg, typed);
    let mut beaten = BTreeSet::new();
    for arg in verb.get_arguments() {
        for rival in verb.get_arg_conflicts_with(arg) {
            match (is_typed(arg), is_typed(rival)) {
                (true, false) => beaten.insert(rival.get_id().to_string()),
                (false, true) => beaten.insert(arg.get_id().to_string()),
                _ => false,
            };
        }
    }
    beaten
}

/// What is wrong where a value should be text and is not UTF-8: with the flag, which clap's own
/// message does not name.
fn not_text(command: &mut Command, words: &[OsString]) -> clap::Error {
    let mut pairs = words.windows(2);
    let what = match pairs.find(|pair| pair[1].to_str().is_none()) {
        None => "a variable TROIKA_* of the environment".to_string(),
        Some(pair) => place(&pair[0].to_string_lossy(), &pair[1].to_string_lossy()),
    };
    let why = format!("{what} is not UTF-8 text; write it, or name the file, in UTF-8");
    command.error(ErrorKind::InvalidUtf8, why)
}

/// Where a word of the command line stands.
fn place(before: &str, word: &str) -> String {
    let flag = match word.split_once('=') {
        Some((flag, _)) if flag.starts_with("--") => flag,
        _ if before.starts_with('-') => before,
        _ => return "an argument".into(),
    };
    format!("the value of {flag}")
}
