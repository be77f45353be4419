//! Flags that have no effect where they stand. What is typed is refused with the reason. A variable
//! is a default for many commands: where a plan takes its place a note says so, and where nothing
//! needs its flag it is passed over.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::error::CliError;

/// Where flags have no effect.
enum Idle {
    /// In a verb.
    In(&'static str),
    /// Beside another flag: either is given, or the other.
    Beside(&'static str),
    /// Without any of some flags, of which the first is named.
    Without(&'static str),
    /// Where another flag's number is 0 or less.
    AtZero(&'static str),
}

use Idle::{AtZero, Beside, In, Without};

/// The names of some flags with spaces between, where they have no effect, and why.
type Rule = (&'static str, Idle, &'static str);

const RULES: &[Rule] = &[
    (
        "strategy profile goal lengths policy sync expert_group_mib expert_dispatch",
        In("profile"),
        "it measures each device by itself; give the flag to the command that uses the profile",
    ),
    (
        "strategy profile sync ubatch_size ctx_size cache_type dtype npu_format npu_attention \
            outliers row_buckets expert_group_mib expert_dispatch",
        Beside("plan"),
        "the plan says it",
    ),
    ("goal", Without("profile"), "only a profile leaves a plan to choose"),
    (
        "expert_group_mib",
        Without("strategy profile"),
        "only --strategy experts groups experts, and plans by a profile",
    ),
    ("expert_dispatch", Without("strategy"), "only --strategy experts groups experts"),
    ("outliers", Without("calibration"), "NPUs compute with floats without one"),
    ("npu_profiling", Without("trace"), "what it says goes to the trace"),
    ("npu_profiling", Without("compile"), "only compiled graphs run"),
    (
        "batch_size",
        Without("parallel"),
        "a prompt alone delays no other; --ubatch-size is the length of its chunks",
    ),
    ("top_k top_p min_p", AtZero("temp"), "the most likely token is always taken"),
    ("parse_special", Beside("prompt_ids"), "token ids are not parsed"),
    ("cache_mib", Beside("no_cache"), "nothing is kept"),
    ("n_prompt", Beside("overhead"), "the overhead is that of decoding"),
];

fn find<'c>(verb: &'c Command, id: &str) -> Option<&'c Arg> {
    verb.get_arguments().find(|arg| arg.get_id() == id)
}

/// Whether a flag is given: on the command line, or by its variable.
fn is_given(arg: &Arg, given: &ArgMatches, by: ValueSource) -> bool {
    let id = arg.get_id().as_str();
    let off = matches!(arg.get_action(), ArgAction::SetTrue) && !given.get_flag(id);
    given.value_source(id) == Some(by) && !off
}

pub(super) fn is_typed(arg: &Arg, given: &ArgMatches) -> bool {
    is_given(arg, given, ValueSource::CommandLine)
}

/// A flag as it was given.
fn name(arg: &Arg, given: &ArgMatches) -> String {
    match arg.get_env().filter(|_| is_given(arg, given, ValueSource::EnvVariable)) {
        Some(variable) => variable.to_string_lossy().into_owned(),
        None => format!("--{}", arg.get_long().unwrap_or(arg.get_id().as_str())),
    }
}

/// Pairs of a verb's flags where only one of the two has an effect.
fn rivals(verb: &Command) -> impl Iterator<Item = (&Arg, &Arg, &'static str)> {
    let pairs = move |(flags, idle, why): &'static Rule| {
        let rival = if let Beside(rival) = idle { find(verb, rival) } else { None };
        let flags = flags.split(' ').filter_map(move |flag| find(verb, flag));
        flags.filter_map(move |flag| Some((flag, rival?, *why)))
    };
    RULES.iter().flat_map(pairs)
}

/// Flags whose variable counts as not set, each with the one that was typed in its place.
pub(super) fn beaten<'c>(verb: &'c Command, typed: &ArgMatches) -> Vec<(&'c Arg, &'c Arg)> {
    let both = rivals(verb).filter_map(|(flag, rival, _)| {
        match (is_typed(flag, typed), is_typed(rival, typed)) {
            (true, false) => Some((rival, flag)),
            (false, true) => Some((flag, rival)),
            _ => None,
        }
    });
    both.collect()
}

/// Refuses flags that have no effect.
pub(super) fn check(verb: &Command, given: &ArgMatches) -> Result<(), CliError> {
    let any = |arg: &Arg| is_typed(arg, given) || is_given(arg, given, ValueSource::EnvVariable);
    if let Some((flag, rival, why)) = rivals(verb).find(|(flag, rival, _)| any(flag) && any(rival))
    {
        let (flag, rival) = (name(flag, given), name(rival, given));
        return Err(CliError::Usage(format!("{flag} cannot be used with {rival}: {why}")));
    }
    for (flags, idle, why) in RULES {
        let place = match idle {
            In(idle) if *idle == verb.get_name() => format!("in troika {idle}"),
            Without(needed) => {
                let mut needed = needed.split(' ').filter_map(|flag| find(verb, flag)).peekable();
                let Some(first) = needed.peek().copied() else { continue };
                if needed.any(any) {
                    continue;
                }
                format!("without {}", name(first, given))
            }
            AtZero(other) => match find(verb, other) {
                Some(arg) if any(arg) && given.get_one(other).is_some_and(|n: &f32| *n <= 0.0) => {
                    format!("with {} 0", name(arg, given))
                }
                _ => continue,
            },
            _ => continue,
        };
        let flags = flags.split(' ').filter_map(|flag| find(verb, flag));
        let idle: Vec<String> =
            flags.filter(|arg| is_typed(arg, given)).map(|arg| name(arg, given)).collect();
        if !idle.is_empty() {
            let have = if idle.len() == 1 { "has" } else { "have" };
            let flags = idle.join(" and ");
            return Err(CliError::Usage(format!("{flags} {have} no effect {place}: {why}")));
        }
    }
    Ok(())
}
