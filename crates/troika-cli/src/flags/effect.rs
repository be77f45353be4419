//! Flags that have no effect where they stand. What is typed is refused with the reason. A variable
//! is a default for many commands: where a plan takes its place a note says so, and where nothing
//! needs its flag it is passed over.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::error::CliError;

/// Where flags have no effect.
enum Idle {
    /// In a verb.
    In { verb: &'static str },
    /// Beside another flag: either is given, or the other.
    Beside { rival: &'static str },
    /// Without another flag.
    Without { needed: &'static str },
}

/// Some flags of verbs that have them, and where they have no effect.
struct Rule {
    /// Their names, with spaces between.
    flags: &'static str,
    idle: Idle,
    why: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        flags: "strategy profile goal lengths sync \
            expert_group_mib expert_dispatch",
        idle: Idle::In { verb: "profile" },
        why: "it measures each device by itself; give the flag to the command that uses the profile",
    },
    Rule {
        flags: "strategy profile sync ubatch_size ctx_size \
            cache_type dtype npu_format npu_attention outliers row_buckets \
            expert_group_mib expert_dispatch",
        idle: Idle::Beside { rival: "plan" },
        why: "the plan says it",
    },
    Rule {
        flags: "goal",
        idle: Idle::Without { needed: "profile" },
        why: "only a profile leaves a plan to choose",
    },
    Rule {
        flags: "expert_group_mib expert_dispatch",
        idle: Idle::Without { needed: "strategy" },
        why: "only --strategy experts groups experts",
    },
    Rule {
        flags: "outliers",
        idle: Idle::Without { needed: "calibration" },
        why: "NPUs compute with floats without one",
    },
    Rule {
        flags: "npu_profiling",
        idle: Idle::Without { needed: "trace" },
        why: "what it says goes to the trace",
    },
    Rule {
        flags: "batch_size",
        idle: Idle::Without { needed: "parallel" },
        why: "a prompt alone delays no other; --ubatch-size is the length of its chunks",
    },
    Rule {
        flags: "parse_special",
        idle: Idle::Beside { rival: "prompt_ids" },
        why: "token ids are not parsed",
    },
    Rule { flags: "cache_mib", idle: Idle::Beside { rival: "no_cache" }, why: "nothing is kept" },
    Rule {
        flags: "n_prompt",
        idle: Idle::Beside { rival: "overhead" },
        why: "the overhead is that of decoding",
    },
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

fn is_typed(arg: &Arg, given: &ArgMatches) -> bool {
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
    let pairs = move |rule: &'static Rule| {
        let rival = match rule.idle {
            Idle::Beside { rival } => find(verb, rival),
            _ => None,
        };
        let flags = rule.flags.split(' ').filter_map(move |flag| find(verb, flag));
        flags.filter_map(move |flag| Some((flag, rival?, rule.why)))
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
///
/// # Errors
/// The first of them, with the reason.
pub(super) fn check(verb: &Command, given: &ArgMatches) -> Result<(), CliError> {
    let any = |arg: &Arg| is_typed(arg, given) || is_given(arg, given, ValueSource::EnvVariable);
    if let Some((flag, rival, why)) = rivals(verb).find(|(flag, rival, _)| any(flag) && any(rival))
    {
        let (flag, rival) = (name(flag, given), name(rival, given));
        return Err(CliError::Usage(format!("{flag} cannot be used with {rival}: {why}")));
    }
    for rule in RULES {
        let place = match rule.idle {
            Idle::In { verb: idle } if idle == verb.get_name() => format!("in troika {idle}"),
            Idle::Without { needed } => match find(verb, needed) {
                Some(arg) if !any(arg) => format!("without {}", name(arg, given)),
                _ => continue,
            },
            _ => continue,
        };
        let flags = rule.flags.split(' ').filter_map(|flag| find(verb, flag));
        let idle: Vec<String> =
            flags.filter(|arg| is_typed(arg, given)).map(|arg| name(arg, given)).collect();
        if !idle.is_empty() {
            let have = if idle.len() == 1 { "has" } else { "have" };
            let (flags, why) = (idle.join(" and "), rule.why);
            return Err(CliError::Usage(format!("{flags} {have} no effect {place}: {why}")));
        }
    }
    Ok(())
}
