//! Why a grammar is refused, in one sentence.

/// No reason is longer.
const LONGEST: usize = 240;

/// A message of `llguidance` without what only its authors read.
pub(super) fn shorten(message: &str) -> String {
    if message.starts_with("panic") {
        return "it is not understood".to_owned();
    }
    if message.starts_with("NoExtension") {
        return "no answer fits it".to_owned();
    }
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    // Regular expressions are drawn over some lines before it is said what is wrong with them.
    let line = lines.find_map(|line| line.strip_prefix("error: ")).unwrap_or(first);
    let line = line.split("<state>").next().unwrap_or_default();
    let line = line.split("<non-verbose/>").next().unwrap_or_default();
    let line = without_place(line);
    let line = line.strip_prefix("failed to compile JSON schema: ").unwrap_or(line);
    let line = line.trim().trim_end_matches('.');
    match line.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}..", &line[..at]),
        None => line.to_owned(),
    }
}

/// Drops `at 1(8): `, a place in a grammar that the user has not written.
fn without_place(line: &str) -> &str {
    let Some(rest) = line.strip_prefix("at ") else { return line };
    match rest.split_once(": ") {
        Some((place, rest))
            if place.ends_with(')') && place.starts_with(|c: char| c.is_ascii_digit()) =>
        {
            rest
        }
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::shorten;

    #[test]
    fn one_sentence_is_left() {
        let long =
            "at 1(8): failed to compile JSON schema: Unimplemented keys: [\"not\"]\n   1 | x\n";
        assert_eq!(shorten(long), "Unimplemented keys: [\"not\"]");
        assert_eq!(shorten("too big\n<state>\nTokens"), "too big");
        let drawn =
            "invalid regex \"a(\": regex parse error:\n    a(\n     ^\nerror: unclosed group";
        assert_eq!(shorten(drawn), "unclosed group");
        assert_eq!(shorten("panic: index out of range\n<backtrace>"), "it is not understood");
        assert!(shorten(&"é".repeat(1000)).chars().count() < 300);
    }
}
