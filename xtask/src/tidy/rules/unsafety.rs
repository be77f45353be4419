//! Unsafe code: only in a few places, and always with a justification.
//!
//! A sentence stands above the block, or above the `impl` whose blocks are all alike. What a
//! caller must keep is said by the function, or by the trait whose method it is. A safe function
//! has no caller to rest on: whatever is passed to it, its blocks are sound.

use crate::tidy::lex::Kind;
use crate::tidy::source::SourceText;
use crate::tidy::{Tree, Violation};

const RULE: &str = "unsafe";
/// How many lines a `SAFETY:` comment may be above its code.
const REACH: usize = 10;
/// The beginning of such a comment; the second form names its subject in brackets.
const SENTENCE: &[&str] = &["SAFETY:", "SAFETY ("];
/// What a sentence says that rests on the caller.
const RESTS: &[&str] = &["caller", "passed on"];
/// How documentation says it.
const SECTION: &str = "# Safety";

/// Where unsafe code may be.
const ALLOWED: &[&str] = &[
    "crates/troika-cpu/",
    "crates/troika-cli/src/allocator",
    "crates/troika-device/src/memory",
    "crates/troika-weights/src/",
];

/// The construct that `unsafe` begins.
enum What {
    Block,
    Declaration,
    Type,
}

/// The braces of a trait or an implementation.
struct Scope {
    first: usize,
    last: usize,
    /// Whether it implements a trait.
    implements: bool,
    /// Whether its comments mention safety.
    documented: bool,
}

/// Checks places and comments.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (file, source) in tree.sources() {
        for line in rests_in_vain(source) {
            found.push(Violation {
                path: file.path.clone(),
                line,
                rule: RULE,
                message: "a safe function that rests on its caller; check it, or make it unsafe"
                    .to_string(),
            });
        }
        let is_unsafe =
            |at: &usize| source.code[*at].token.kind == Kind::Ident && source.word(*at) == "unsafe";
        let places: Vec<usize> = (0..source.code.len()).filter(is_unsafe).collect();
        if places.is_empty() {
            continue;
        }
        let scopes = scopes(source);
        for at in places {
            let Some(message) = judge(&file.path, source, &scopes, at) else { continue };
            found.push(Violation {
                path: file.path.clone(),
                line: source.code[at].token.line,
                rule: RULE,
                message: message.to_string(),
            });
        }
    }
    found
}

/// Lines of sentences that rest on the caller of a safe function.
fn rests_in_vain(source: &SourceText) -> Vec<usize> {
    let begins = |k: usize| {
        let text = source.text(source.comments[k]).trim_start_matches(['/', '*', ' ']);
        SENTENCE.iter().any(|s| text.starts_with(s))
    };
    let goes_on = |k: &usize| source.comments[*k].line == source.comments[k - 1].line + 1;
    let all = source.comments.len();
    let in_vain = |k: &usize| {
        let more = (k + 1..all).take_while(|k| goes_on(k) && !begins(*k));
        let mut lines = std::iter::once(*k).chain(more).map(|k| source.text(source.comments[k]));
        lines.any(|text| RESTS.iter().any(|word| text.contains(word)))
            && function_of(source, source.comments[*k].start) == Some(false)
    };
    let found = (0..all).filter(|k| begins(*k)).filter(in_vain);
    found.map(|k| source.comments[k].line).collect()
}

/// Whether the function at a place of the text is unsafe: the innermost around it, or the one whose
/// item comes next.
fn function_of(source: &SourceText, place: usize) -> Option<bool> {
    let at = source.code.iter().position(|c| c.token.start > place)?;
    let mut depth = 0;
    let around = (0..at).rev().find_map(|k| {
        match source.word(k) {
            "}" => depth += 1,
            "{" if depth > 0 => depth -= 1,
            "{" => return signature(source, k),
            _ => {}
        }
        None
    });
    let next = || (at..source.code.len()).find(|k| matches!(source.word(*k), "{" | "}" | ";"));
    around.or_else(|| next().and_then(|brace| signature(source, brace)))
}

/// Whether the function whose braces open here is unsafe; `None` for other braces.
fn signature(source: &SourceText, brace: usize) -> Option<bool> {
    let (mut depth, mut name) = (0, None);
    let start = (0..brace).rev().find(|k| {
        match source.word(*k) {
            ")" | "]" => depth += 1,
            "(" | "[" => depth -= 1,
            "fn" if depth == 0 && source.word(k + 1) != "(" => name = Some(*k),
            _ => {}
        }
        depth < 0 || depth == 0 && matches!(source.word(*k), ";" | "{" | "}")
    });
    Some((start.map_or(0, |k| k + 1)..name?).any(|k| source.word(k) == "unsafe"))
}

fn judge(path: &str, source: &SourceText, scopes: &[Scope], at: usize) -> Option<&'static str> {
    let scope = scopes.iter().find(|s| s.first < at && at < s.last);
    let documented = scope.is_some_and(|s| s.documented);
    match what(source, at) {
        What::Type => None,
        _ if !is_allowed(path) => {
            Some("not allowed here; see the list in xtask/src/tidy/rules/unsafety.rs")
        }
        What::Block => {
            let above = source.comment_above(source.code[at].token.line, REACH, SENTENCE);
            (!above && !documented).then_some("no `SAFETY:` comment that says why this is sound")
        }
        What::Declaration => {
            let elsewhere = documented || scope.is_some_and(|s| s.implements);
            (!elsewhere && !is_documented(source, at, &[SECTION]))
                .then_some("no `# Safety` that says what the caller must keep")
        }
    }
}

fn is_allowed(path: &str) -> bool {
    let ffi = path.starts_with("crates/") && path.contains("/ffi");
    ffi || ALLOWED.iter().any(|place| path.starts_with(place))
}

fn what(source: &SourceText, at: usize) -> What {
    let mut next = at + 1;
    if source.word(next) == "extern" {
        next += 1;
        if source.word(next).starts_with('"') {
            next += 1;
        }
    }
    match (source.word(next), source.word(next + 1)) {
        ("fn", "(") => What::Type,
        ("fn" | "trait", _) => What::Declaration,
        _ => What::Block,
    }
}

/// Index of the first token of the item around this one.
fn item_start(source: &SourceText, at: usize) -> usize {
    (0..at).rev().find(|k| matches!(source.word(*k), ";" | "{" | "}")).map_or(0, |k| k + 1)
}

/// Whether the comments of the item that holds this token speak of safety, in one of these ways.
fn is_documented(source: &SourceText, at: usize, ways: &[&str]) -> bool {
    let start = item_start(source, at);
    let from = start.checked_sub(1).map_or(0, |k| source.code[k].token.end);
    let until = source.code[at].token.start;
    source.comments.iter().filter(|c| c.start >= from && c.start < until).any(|comment| {
        let text = source.text(*comment);
        ways.iter().any(|way| text.contains(way))
    })
}

/// All traits and implementations of a file.
fn scopes(source: &SourceText) -> Vec<Scope> {
    let mut open: Vec<Option<Scope>> = Vec::new();
    let mut found = Vec::new();
    for at in 0..source.code.len() {
        match source.word(at) {
            "{" => open.push(scope(source, at)),
            "}" => {
                if let Some(Some(scope)) = open.pop() {
                    found.push(Scope { last: at, ..scope });
                }
            }
            _ => {}
        }
    }
    found
}

/// The trait or implementation whose braces open here.
fn scope(source: &SourceText, brace: usize) -> Option<Scope> {
    let words: Vec<&str> = (item_start(source, brace)..brace).map(|k| source.word(k)).collect();
    let implements = words.contains(&"impl") && words.contains(&"for");
    let item = !words.contains(&"fn") && (implements || words.contains(&"trait"));
    item.then(|| Scope {
        first: brace,
        last: brace,
        implements,
        documented: is_documented(source, brace, &[SECTION, SENTENCE[0], SENTENCE[1]]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::places;

    #[test]
    fn a_missing_sentence_is_found() {
        let text = "fn f() {\n    unsafe { g() }\n}\nunsafe impl Send for A {}\n\
                    /// Does it.\n#[inline]\npub unsafe fn h() {}\n\
                    pub unsafe extern \"C\" fn i() {}\n\
                    trait T {\n    unsafe fn j();\n}\n\
                    impl T for A {\n    unsafe fn j() { unsafe { k() } }\n}\n";
        let found = places(check, &[("crates/troika-cpu/src/a.rs", text)]);
        let lines = [10, 13, 2, 4, 7, 8].map(|l| format!("crates/troika-cpu/src/a.rs:{l}"));
        let mut found = found;
        found.sort();
        assert_eq!(found, lines);
    }

    #[test]
    fn sentences_types_strings_and_comments_pass() {
        let text = "// SAFETY: g has no conditions.\nlet x =\n    unsafe { g() };\n\
                    /// Does it.\n///\n/// # Safety\n/// None.\n#[cfg(any(a, b))]\n\
                    pub unsafe fn h(f: unsafe fn(u8)) {}\n\
                    type T = unsafe extern \"C\" fn(u8); // unsafe {\nconst S: &str = \"unsafe {\";";
        assert!(places(check, &[("crates/troika-cpu/src/a.rs", text)]).is_empty());
    }

    #[test]
    fn one_sentence_speaks_for_a_whole_trait_or_implementation() {
        let gap = "    // far\n".repeat(REACH + 1);
        let text = format!(
            "/// # Safety\n/// Valid memory.\npub trait L {{\n{gap}    unsafe fn a();\n}}\n\
             // SAFETY (of the blocks): by the caller.\n#[inline]\nimpl L for A {{\n{gap}    \
             unsafe fn a() {{ unsafe {{ b() }} }}\n}}\n"
        );
        let found = places(check, &[("crates/troika-cpu/src/a.rs", &text)]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn safe_functions_do_not_rest_on_their_callers() {
        let text = "fn f(p: [u8; 2]) -> [u8; 2] {\n    if p {\n        // SAFETY: g asks for what\n        \
                    // the caller keeps.\n        unsafe { g() }\n    }\n}\n\
                    // SAFETY: passed on.\n#[inline]\nfn h() { unsafe { g() } }\n\
                    /// # Safety\n/// None.\nunsafe fn i() {\n    // SAFETY: by the caller.\n    \
                    unsafe { g() }\n    let f = |x: u8| {\n        // SAFETY: by the caller.\n        \
                    unsafe { g() }\n    };\n    fn j() {\n        // SAFETY: by the caller of i.\n        \
                    unsafe { g() }\n    }\n}\n\
                    // SAFETY (of the blocks): by callers.\nimpl T for A {\n    unsafe fn k() { unsafe { g() } }\n}\n\
                    macro_rules! m { ($(fn $k:ident())*) => {\n    // SAFETY: by callers.\n    unsafe impl T for B {}\n} }\n\
                    fn l() {\n    // SAFETY: checked.\n    unsafe { g() }\n    // The caller is told.\n}\n";
        let found = places(check, &[("crates/troika-cpu/src/a.rs", text)]);
        let lines = [3, 8, 21].map(|l| format!("crates/troika-cpu/src/a.rs:{l}"));
        assert_eq!(found, lines);
    }

    #[test]
    fn other_crates_have_none() {
        let text = "// SAFETY: no.\nunsafe impl Send for A {}\n";
        let found = places(
            check,
            &[("crates/troika-engine/src/a.rs", text), ("crates/troika-npu/src/ffi/a.rs", text)],
        );
        assert_eq!(found, ["crates/troika-engine/src/a.rs:2"]);
    }
}
