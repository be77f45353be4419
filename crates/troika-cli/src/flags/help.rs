//! What `-h` shows: the flags that most commands are written with, and the flags of placement,
//! which have a heading. `--help` shows all.

use clap::Command;

/// Flags that verbs of many flags show with `--help` only, with spaces between.
const RARE: &str = "model offline prompt_ids raw parse_special ubatch_size dtype cache_dir cache_mib \
    no_cache cache_type cores isa top_k top_p min_p repeat_penalty repeat_last_n \
    presence_penalty frequency_penalty logit_bias ignore_eos stop batch_size kv_size trace \
    calibration npu_format npu_attention outliers row_buckets npu_profiling n_gpu_layers policy \
    device_memory expert_cache_mib predictor predictor_experts expert_group_mib expert_dispatch battery_plan";

/// Flags that fit a screen.
const FEW: usize = 20;

/// The command with a short `-h`, in which nothing is said of variables either.
pub fn with_short_help(command: Command) -> Command {
    let is_asked_for = std::env::args_os().any(|word| word == "-h");
    command.mut_subcommands(|verb| {
        let is_long = verb.get_arguments().count() > FEW;
        verb.mut_args(|arg| {
            let is_rare = is_long && RARE.split(' ').any(|id| arg.get_id() == id);
            arg.hide_short_help(is_rare).hide_env(is_asked_for)
        })
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{RARE, with_short_help};
    use crate::flags::Cli;

    #[test]
    fn short_help_shows_what_is_usual_and_placement() {
        let command = with_short_help(Cli::command());
        let run = command.find_subcommand("run").unwrap();
        for id in RARE.split(' ') {
            assert!(run.get_arguments().any(|arg| arg.get_id() == id), "{id}");
        }
        let shown = run.get_arguments().filter(|arg| !arg.is_hide_short_help_set());
        let (placement, usual): (Vec<_>, Vec<_>) =
            shown.partition(|arg| arg.get_help_heading() == Some("Placement"));
        assert_eq!(placement.len(), 9);
        assert!((10..=15).contains(&usual.len()), "{}", usual.len());
        // A line or two each.
        for arg in placement.iter().chain(&usual) {
            let help = arg.get_help().unwrap().to_string();
            assert!(help.len() <= 150, "{}: {help}", arg.get_id());
        }
    }
}
