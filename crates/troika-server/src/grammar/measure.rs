//! How large a grammar in Lark becomes. Its compiler puts terminals into each other in full, so
//! that a few lines that double each other would fill the memory.

use std::collections::HashMap;

/// Terminals put into each other have at most this many atoms.
const LARGEST: u64 = 20_000;
/// Brackets inside each other, which the compiler follows with its own stack.
const DEEPEST: usize = 100;
/// Names inside each other, likewise.
const LONGEST_CHAIN: usize = 500;

/// What is wrong with a grammar's size, if anything is.
pub(super) fn too_large(lark: &str) -> Option<String> {
    let (definitions, depth) = definitions(lark);
    if depth > DEEPEST {
        return Some(format!("its brackets nest deeper than {DEEPEST}"));
    }
    let mut sizes = Sizes { definitions: &definitions, known: HashMap::new() };
    for name in definitions.keys() {
        let size = sizes.size(name, 0);
        if size == u64::MAX {
            return Some(format!("its names lead to each other more than {LONGEST_CHAIN} times"));
        }
        if size > LARGEST {
            return Some(format!("the terminal {name} has more than {LARGEST} atoms"));
        }
    }
    None
}

/// What a definition is made of.
#[derive(Debug, Default)]
struct Definition {
    atoms: u64,
    names: Vec<String>,
}

/// The definitions by name, and how deep brackets nest.
fn definitions(lark: &str) -> (HashMap<String, Definition>, usize) {
    let (mut all, mut depth, mut deepest) = (HashMap::new(), 0_usize, 0);
    let mut current = (String::new(), Definition::default());
    let mut chars = lark.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' | '/' if lark[at..].starts_with("//") => skip_line(&mut chars),
            '#' => skip_line(&mut chars),
            '"' | '/' => {
                skip_quoted(&mut chars, c);
                current.1.atoms += 1;
            }
            '(' | '[' | '{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            c if c.is_ascii_alphabetic() || c == '_' => {
                let mut end = at + 1;
                while let Some((next, c)) = chars.peek()
                    && (c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
                {
                    end = next + 1;
                    chars.next();
                }
                let name = lark[at..end].to_owned();
                if defines(&lark[end..]) {
                    let done = std::mem::replace(&mut current, (name, Definition::default()));
                    all.insert(done.0, done.1);
                } else {
                    current.1.atoms += 1;
                    current.1.names.push(name);
                }
            }
            _ => {}
        }
    }
    all.insert(current.0, current.1);
    (all, deepest)
}

type Chars<'a> = std::iter::Peekable<std::str::CharIndices<'a>>;

fn skip_line(chars: &mut Chars<'_>) {
    while chars.next_if(|(_, c)| *c != '\n').is_some() {}
}

fn skip_quoted(chars: &mut Chars<'_>, quote: char) {
    while let Some((_, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote || c == '\n' {
            return;
        }
    }
}

/// Whether a name before this text is being defined: `: `, `.1: `, `[suffix="x"]: `.
fn defines(rest: &str) -> bool {
    let rest = rest.trim_start_matches([' ', '\t']);
    let rest = match rest.strip_prefix('[') {
        Some(inside) => inside.split_once(']').map_or("", |(_, after)| after),
        None => rest,
    };
    let rest = rest.trim_start_matches(|c: char| c == '.' || c == '-' || c.is_ascii_digit());
    rest.trim_start_matches([' ', '\t']).starts_with(':')
}

struct Sizes<'a> {
    definitions: &'a HashMap<String, Definition>,
    known: HashMap<&'a str, u64>,
}

impl<'a> Sizes<'a> {
    /// Atoms of a terminal with all that it names. Of a rule, the atoms count as one where it is
    /// named: rules are shared. The largest number means that names lead on for too long.
    fn size(&mut self, name: &str, chain: usize) -> u64 {
        let Some((name, definition)) = self.definitions.get_key_value(name) else { return 0 };
        if let Some(size) = self.known.get(name.as_str()) {
            return *size;
        }
        if chain > LONGEST_CHAIN {
            return u64::MAX;
        }
        // A name that leads to itself is known as nothing until then.
        self.known.insert(name, 0);
        let terminal = !name.contains(|c: char| c.is_ascii_lowercase());
        let mut size = definition.atoms;
        for inner in &definition.names {
            let inner = self.size(inner, chain + 1);
            size = if inner == u64::MAX { inner } else { size.saturating_add(inner) };
        }
        let size = if terminal || size == u64::MAX { size } else { 0 };
        self.known.insert(name, size);
        size
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::too_large;

    #[test]
    fn what_grows_is_seen_and_what_is_usual_is_not() {
        let chain = |body: &str, count: usize| {
            (0..count).fold(String::from("start: T0\n"), |mut text, n| {
                let body = body.replace('N', &format!("T{}", n + 1));
                writeln!(text, "T{n}: {body} // ( comment \" T0").unwrap();
                text
            }) + &format!("T{count}: \"b\"\n")
        };
        assert!(too_large(&chain("N N", 30)).unwrap().contains("atoms"));
        assert!(too_large(&chain("N", 5_000)).unwrap().contains("lead"));
        assert_eq!(too_large(&chain("N", 100)), None);
        assert_eq!(
            too_large("start[capture]: a \"(((\" | /[(\\/]/\na.1: \"T\" B\nB: B2 B2\nB2: /x/"),
            None
        );
        assert!(too_large(&"(".repeat(200)).unwrap().contains("brackets"));
    }
}
