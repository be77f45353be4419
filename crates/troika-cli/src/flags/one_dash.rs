//! Commands and flags of llama.cpp and Ollama that Troika spells otherwise or has not. They are read
//! before the parser of flags, which would take `-ngl` for `-n gl`.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};

use crate::error::CliError;

/// The page whose table says what becomes of them: a flag of Troika, nothing where it is always so,
/// or a refusal that says what there is instead.
const PAGE: &str = include_str!("../../../../docs/running.md");

/// A word without a value behind its sign of equality, and that value.
fn apart(word: &OsStr) -> (&OsStr, Option<&str>) {
    let parts = word.to_str().filter(|text| text.starts_with("--")).and_then(|t| t.split_once('='));
    parts.map_or((word, None), |(flag, value)| (flag.as_ref(), Some(value)))
}

/// What becomes of a word, if it is a flag of the table.
fn meaning(word: &OsStr) -> Option<&'static str> {
    let (word, _) = apart(word);
    let rows = PAGE.lines().filter(|line| line.starts_with("| `-"));
    let mut cells = rows.filter_map(|row| row.trim_matches(['|', ' ']).split_once(" | "));
    let names = |flags: &str| flags.split(' ').any(|flag| word == flag.trim_matches('`'));
    cells.find(|(flags, _)| names(flags)).map(|(_, meaning)| meaning)
}

/// What is said of a first word that is no command, where more can be said than that.
fn refusal(word: &str) -> Option<String> {
    let theirs = |cell: &str| {
        let joined = cell.split_once('-').filter(|(engine, _)| !engine.is_empty());
        let verb = cell.strip_prefix("ollama ").or(joined.map(|(_, verb)| verb));
        verb.is_some_and(|verb| verb.split(' ').next() == Some(word))
    };
    let rows = PAGE.lines().filter_map(|row| row.trim_matches(['|', ' ']).rsplit_once(" | "));
    let mut all = rows.flat_map(|(cells, own)| cells.split('`').map(move |cell| (cell, own)));
    if let Some((cell, own)) = all.find(|(cell, _)| theirs(cell)) {
        let own = own.replace('`', "");
        return Some(format!("{word} is no command of Troika; for what {cell} does: {own}"));
    }
    let is_own = ["-h", "--help", "-V", "--version"].contains(&word);
    let is_flag = word.starts_with('-') && !is_own;
    let is_path = word.contains(['/', '\\']) || std::path::Path::new(word).exists();
    (is_path || is_flag).then(|| format!("name a command first, such as troika run {word}"))
}

/// The words of a command line with Troika's flags in place of llama.cpp's.
pub(super) fn translate(
    command: &Command,
    words: Vec<OsString>,
) -> Result<Vec<OsString>, CliError> {
    let first = words.get(1).map(|word| word.to_string_lossy()).unwrap_or_default();
    let Some(verb) = command.find_subcommand(&*first) else {
        return refusal(&first).map_or(Ok(words), |why| Err(CliError::Usage(why)));
    };
    let mut words = words.into_iter().peekable();
    let mut read: Vec<OsString> = Vec::new();
    while let Some(mut word) = words.next() {
        if let Some(meaning) = meaning(&word) {
            let refuse = |why: &str| {
                CliError::Usage(format!("{} is no flag of Troika: {why}", word.display()))
            };
            if let Some(why) = meaning.strip_prefix("always: ") {
                let said =
                    |value: &OsString| ["on", "auto", "1", "off", "0"].iter().any(|v| value == v);
                let joined = apart(&word).1.map(OsString::from);
                let value = joined.or_else(|| words.next_if(said));
                if value.is_some_and(|value| value == "off" || value == "0") {
                    return Err(refuse(&format!("it cannot be off, since {why}")));
                }
                continue;
            }
            let flag = meaning.strip_prefix('`').ok_or_else(|| refuse(meaning))?;
            let flag = flag.trim_end_matches('`');
            if !verb.get_arguments().any(|arg| is_long(arg, &flag[2..])) {
                return Err(refuse(&format!(
                    "it is {flag}, which troika {} does not have",
                    verb.get_name()
                )));
            }
            word = apart(&word).1.map_or(flag.into(), |value| format!("{flag}={value}").into());
            // Two of llama.cpp's flags may be one here, with one value.
            let before = read.iter().position(|other| *other == word);
            if before.is_some_and(|at| words.peek() == read.get(at + 1)) {
                words.next();
                continue;
            }
        }
        let values = match word.to_str() {
            Some("--") => usize::MAX,
            Some(flag) if takes_any(verb, flag) => 1,
            _ => 0,
        };
        read.push(word);
        read.extend(words.by_ref().take(values));
    }
    Ok(read)
}

/// Whether a flag has this name of two dashes.
fn is_long(arg: &Arg, name: &str) -> bool {
    let mut aliases = arg.get_all_aliases().into_iter().flatten();
    arg.get_long() == Some(name) || aliases.any(|alias| alias == name)
}

/// Whether the value of a flag may begin with a dash, such as a prompt's text.
fn takes_any(verb: &Command, word: &str) -> bool {
    let is_named = |arg: &Arg| match word.strip_prefix("--") {
        Some(name) => is_long(arg, name),
        // It may be the last one of several letters.
        None => word.starts_with('-') && arg.get_short().is_some_and(|s| word.ends_with(s)),
    };
    verb.get_arguments().any(|arg| arg.is_allow_hyphen_values_set() && is_named(arg))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::{CommandFactory, Parser};

    use super::{PAGE, is_long, translate};
    use crate::flags::Cli;

    /// Flags of one dash in llama.cpp's `common/arg.cpp`, `llama-bench` and `llama-batched-bench`
    /// that Troika does not spell so.
    const FLAGS: &str = "-C -Cb -Cbd -Cd -Cr -Crb -Crbd -Crd -ag -bf -bs -cb -cd -cl -cmoe -cmoed \
        -cms -cnv -co -cpent -cram -ctk -ctkd -ctv -ctvd -ctxcp -dev -devd -dio -dkvc -dr -dt -e \
        -embd -fa -fit -fitc -fitt -gan -gaw -hf -hfd -hff -hffv -hfr -hfrd -hfrv -hft -hfv -i -if \
        -j -jf -kvo -kvu -lcd -lcs -lm -lv -lzm -md -mg -mli -mm -mmdev -mmp -mmu -mu -mv -ncffn \
        -ncmoe -ncmoed -ndio -ngl -ngld -nkvo -no-ag -no-cnv -no-kvu -nocb -nopo -np -npl -npp -nr \
        -ns -ntg -oe -ofreq -ot -otd -pg -pps -ptc -rea -rpc -sm -sp -sps -st -sys -sysf -tb -tbd \
        -td -tgs -to -ts -ub \
        --jinja --no-jinja --mlock --mmap --no-mmap --slots --no-slots --props --metrics --webui \
        --no-webui --warmup --no-warmup --no-display-prompt --context-shift --no-context-shift \
        --keep --check-tensors --list-devices --perf --no-perf --numa --draft --draft-max \
        --chat-template --chat-template-file --chat-template-kwargs --reasoning-format \
        --reasoning-budget --lora --lora-scaled --control-vector --grammar --grammar-file \
        --mirostat --dry-multiplier --xtc-probability --typical --top-n-sigma --dynatemp-range \
        --samplers --rope-scaling --rope-freq-base --rope-freq-scale --yarn-orig-ctx \
        --override-kv --prompt-cache --slot-save-path --cache-reuse --swa-full --reranking \
        --rerank --threads-http --prio --poll --cpu-strict --log-disable --log-file \
        --simple-io --verbose-prompt";

    /// What becomes of a command line, in words.
    fn read(line: &[&str]) -> Result<Vec<String>, String> {
        let words = ["troika"].iter().chain(line).map(OsString::from).collect();
        let read = translate(&Cli::command(), words).map_err(|e| e.to_string())?;
        Ok(read[1..].iter().map(|word| word.to_str().unwrap().to_string()).collect())
    }

    /// Rows of a table with so many columns, as cells.
    fn rows(columns: usize) -> Vec<Vec<&'static str>> {
        let rows = PAGE.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
        let cells = rows.map(|row| row.trim_matches(['|', ' ']).split(" | ").collect::<Vec<_>>());
        cells.filter(|cells| cells.len() == columns).collect()
    }

    /// What stands between the signs of code in a cell.
    fn codes(cell: &'static str) -> impl Iterator<Item = &'static str> {
        cell.split('`').skip(1).step_by(2)
    }

    /// Whether a command line can be read, with something in place of words in capitals.
    fn parses(line: &str) -> Result<(), String> {
        let line = line.replace("OWNER/NAME", "a/b");
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        let words: Vec<String> = std::iter::once("troika".into()).chain(read(&words)?).collect();
        Cli::try_parse_from(words).map(drop).map_err(|e| e.to_string())
    }

    #[test]
    fn every_flag_of_the_table_becomes_one_of_troika_or_is_refused_in_a_line() {
        let command = Cli::command();
        let args = || command.get_subcommands().flat_map(|verb| verb.get_arguments());
        let is_known = |name: &str| {
            name.strip_prefix("--").is_some_and(|name| args().any(|arg| is_long(arg, name)))
        };
        let listed: Vec<(&str, &str)> = rows(2)
            .into_iter()
            .filter(|cells| cells[0].starts_with("`-"))
            .flat_map(|cells| codes(cells[0]).map(move |flag| (flag, cells[1])))
            .collect();
        for (at, (flag, said)) in listed.iter().enumerate() {
            assert!(listed[..at].iter().all(|(other, _)| other != flag), "{flag} stands twice");
            match (said.strip_prefix('`'), read(&["run", flag, "1"])) {
                (Some(own), Ok(words)) => {
                    assert_eq!(words, ["run", own.trim_end_matches('`'), "1"]);
                }
                (Some(own), Err(why)) => {
                    let own = own.trim_end_matches('`');
                    assert!(why.ends_with(&format!("it is {own}, which troika run does not have")));
                    assert!(is_known(own), "{flag}: {own}");
                }
                (None, Ok(words)) => {
                    assert!(said.starts_with("always: "), "{flag}");
                    assert_eq!(words, ["run"]);
                }
                (_, Err(why)) => assert_eq!(why, format!("{flag} is no flag of Troika: {said}")),
            }
            // Nothing is taken away from Troika's own flags.
            let letter = flag.strip_prefix('-').filter(|rest| rest.len() == 1);
            let is_taken =
                |arg: &clap::Arg| arg.get_short().is_some_and(|s| letter == Some(&s.to_string()));
            assert!(flag.starts_with('-') && !args().any(is_taken), "{flag}");
            assert!(!is_known(flag) || *flag == "--output-err", "{flag}");
        }
        for flag in FLAGS.split_whitespace() {
            assert!(listed.iter().any(|(other, _)| *other == flag), "{flag} is not in the table");
        }
    }

    #[test]
    fn every_command_of_the_table_is_answered_and_those_of_troika_are_read() {
        let table = rows(3);
        assert!(table.len() > 15);
        for cells in table {
            let own = codes(cells[2]).next().unwrap_or_else(|| panic!("{cells:?}"));
            parses(own).unwrap_or_else(|why| panic!("{own}: {why}"));
            let verb = own.split(' ').nth(1).unwrap();
            for theirs in codes(cells[0]).chain(codes(cells[1])) {
                let (first, rest) = theirs.split_once(' ').unwrap_or((theirs, ""));
                let (word, rest) = match first.strip_prefix("llama-") {
                    Some(word) => (word, rest),
                    None => rest.split_once(' ').unwrap_or((rest, "")),
                };
                match read(&[word]) {
                    Ok(_) => assert!(Cli::command().find_subcommand(word).is_some(), "{theirs}"),
                    Err(why) => assert!(why.starts_with(&format!("{word} is no command")), "{why}"),
                }
                // Their flags behind Troika's command.
                if let Err(why) = parses(format!("troika {verb} {rest}").trim_end()) {
                    assert!(
                        why.contains("is no flag of Troika") || why.contains("not provided"),
                        "{theirs}: {why}"
                    );
                }
            }
        }
        assert!(read(&["frobnicate"]).is_ok(), "clap says what it thinks of it");
        for word in ["-p", "-hf", "./model.gguf"] {
            let why = read(&[word, "a"]).unwrap_err();
            assert_eq!(why, format!("name a command first, such as troika run {word}"));
        }
    }

    #[test]
    fn what_is_meant_as_text_stays_as_it_is() {
        let same: [&[&str]; 6] = [
            &["run", "-p", "-ngl", "-n", "1"],
            &["run", "--prompt", "-fa"],
            &["run", "-qp", "-md"],
            &["run", "--sys", "-hf"],
            &["run", "-r", "-st", "-p", "-ub"],
            &["run", "--", "-ngl", "-md"],
        ];
        for line in same {
            assert_eq!(read(line).unwrap(), line);
        }
        assert_eq!(
            read(&["run", "-sys", "-md", "-p", "a"]).unwrap()[1..3],
            ["--system-prompt", "-md"]
        );
        // A value that cannot begin with a dash is none.
        assert!(read(&["run", "-s", "-md"]).is_err());
        let why = read(&["show", "-ctk", "f16"]).unwrap_err();
        assert_eq!(
            why,
            "-ctk is no flag of Troika: it is --cache-type, which troika show does not have"
        );
    }

    #[test]
    fn values_of_llama_cpp_are_read() {
        let own = |line: &[&str]| read(line).unwrap().join(" ");
        assert_eq!(own(&["run", "-fa", "-c", "8"]), "run -c 8");
        assert_eq!(own(&["bench", "-fa", "1", "-p", "8"]), "bench -p 8");
        assert_eq!(own(&["run", "-ctk", "f16", "-ctv", "f16"]), "run --cache-type f16");
        let two = "run --cache-type f16 --cache-type bf16";
        assert_eq!(own(&["run", "-ctk", "f16", "-ctv", "bf16"]), two);
        assert_eq!(own(&["serve", "-hf", "a/b:Q4_K_M"]), "serve --model a/b:Q4_K_M");
        assert_eq!(own(&["run", "--cache-type-k=f16", "--jinja"]), "run --cache-type=f16");
        assert_eq!(own(&["run", "--flash-attn=on", "-c", "8"]), "run -c 8");
        assert!(read(&["run", "--flash-attn=off"]).unwrap_err().contains("cannot be off"));
        let why = read(&["run", "--mmproj=x"]).unwrap_err();
        assert!(why.starts_with("--mmproj=x is no flag of Troika"), "{why}");
        let off = read(&["run", "-fa", "off"]).unwrap_err();
        assert_eq!(
            off,
            "-fa is no flag of Troika: it cannot be off, since attention is computed in blocks"
        );
    }
}
