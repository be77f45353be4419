//! No grammar holds the server up.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::Constrain;
use super::super::vocabulary::THREADS;
use super::{EOS, choices, vocabulary};

fn texts() -> Vec<(&'static str, Constrain)> {
    vec![
        ("repeat", Constrain::Regex("((a{1000}){1000}){1000}".to_owned())),
        ("long repeat", Constrain::Regex("[^x]{100000}".to_owned())),
        ("states", Constrain::Regex("(.*a.{18}|.*b.{17})*".to_owned())),
        ("states 2", Constrain::Regex("(?s:.*)a(?s:.){22}".to_owned())),
        ("groups", Constrain::Regex("(".repeat(50_000) + &")".repeat(50_000))),
        ("classes", Constrain::Regex(r"(\p{L}\w+\W\d){500}".to_owned())),
        ("options", Constrain::Regex("(a?){2000}a{2000}".to_owned())),
        ("alternatives", Constrain::Choice((0..12_000).map(|n| format!("choice {n}")).collect())),
        (
            "lark nesting",
            Constrain::Lark(format!("start: {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000))),
        ),
        ("lark not", Constrain::Lark(format!("start: A\nA: {}/a/", "~".repeat(100_000)))),
        (
            "lark rules",
            Constrain::Lark(
                (0..9_000).fold("start: r0\n".to_owned(), |text, n| {
                    text + &format!("r{n}: r{} | \"a\" r{}\n", n + 1, n + 1)
                }) + "r9000: \"b\"\n",
            ),
        ),
        (
            "lark terminals",
            Constrain::Lark(
                (0..30).fold("start: T0\n".to_owned(), |text, n| {
                    text + &format!("T{n}: T{} T{}\n", n + 1, n + 1)
                }) + "T30: \"b\"\n",
            ),
        ),
        (
            "lark json",
            Constrain::Lark(format!("start: %json {}1{}", "[".repeat(90), "]".repeat(90))),
        ),
        (
            "lark nullable",
            Constrain::Lark(
                "start: a a a a a a a a\na: b b b b b b b b\nb: c c c c c c c c\nc: \"x\"?\n"
                    .to_owned(),
            ),
        ),
        (
            "lark ambiguous",
            Constrain::Lark("start: start start | start start start | \"a\" | \"\"\n".to_owned()),
        ),
    ]
}

fn schemas() -> Vec<(&'static str, Constrain)> {
    let nested = (0..120).fold(json!({"type": "string"}), |inner, _| json!({"anyOf": [inner, {"type": "object", "properties": {"a": {"type": "null"}}}]}));
    let wide: serde_json::Map<String, Value> =
        (0..8_000).map(|n| (format!("k{n}"), json!({"type": "string"}))).collect();
    let optional: serde_json::Map<String, Value> =
        (0..500).map(|n| (format!("k{n}"), json!({"type": "integer", "minimum": n}))).collect();
    let doubled = (0..10).fold(json!({"type": "string"}), |inner, n| json!({"type": "object", "properties": {format!("a{n}"): inner.clone(), "b": inner}}));
    vec![
        ("nested", Constrain::JsonSchema(nested)),
        ("wide", Constrain::JsonSchema(json!({"type": "object", "properties": wide}))),
        ("optional", Constrain::JsonSchema(json!({"type": "object", "properties": optional}))),
        ("doubled", Constrain::JsonSchema(doubled)),
        (
            "pattern",
            Constrain::JsonSchema(
                json!({"type": "string", "pattern": "^(a+)+b{0,5000}$", "minLength": 3000, "maxLength": 9000}),
            ),
        ),
        (
            "items",
            Constrain::JsonSchema(
                json!({"type": "array", "items": {"type": "string"}, "minItems": 100_000, "maxItems": 200_000}),
            ),
        ),
        (
            "length",
            Constrain::JsonSchema(
                json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000}),
            ),
        ),
        ("multiple", Constrain::JsonSchema(json!({"type": "integer", "multipleOf": 999_983}))),
        (
            "multiples",
            Constrain::JsonSchema(
                json!({"allOf": [{"type": "integer", "multipleOf": 997}, {"multipleOf": 991}, {"multipleOf": 983}]}),
            ),
        ),
        ("loop", Constrain::JsonSchema(json!({"$ref": "#"}))),
        ("loop 2", Constrain::JsonSchema(json!({"allOf": [{"$ref": "#"}, {"type": "object"}]}))),
        (
            "all of",
            Constrain::JsonSchema(
                json!({"allOf": (0..16).map(|n| json!({"anyOf": [{"type": "object", "properties": {format!("a{n}"): {"type": "string"}}}, {"type": "object", "properties": {format!("b{n}"): {"type": "integer"}}}]})).collect::<Vec<_>>()}),
            ),
        ),
    ]
}

#[test]
fn hostile_grammars_return_soon() {
    let vocabulary = vocabulary();
    for (name, constrain) in texts().into_iter().chain(schemas()) {
        let begun = Instant::now();
        let compiled = vocabulary.compile(&constrain);
        let took = begun.elapsed();
        let mut slowest = Duration::ZERO;
        let mut why = String::new();
        match &compiled {
            Err(error) => why = error.to_string(),
            Ok(grammar) => {
                let mut mask = grammar.start();
                for token in 0..200_u32 {
                    let begun = Instant::now();
                    let may = choices(&mut mask, 260);
                    slowest = slowest.max(begun.elapsed());
                    if may == [EOS] {
                        break;
                    }
                    mask.accept(may[(token as usize * 7919) % may.len()]);
                }
                why.push_str(&mask.error().unwrap_or_default());
            }
        }
        println!("{name}: compiled in {took:?}, slowest mask {slowest:?} {why}");
        assert!(why.len() < 300 && !why.contains('\n'), "{why}");
        // On an idle machine it is 2 s. Compiling and the first mask wait 5 s each at most.
        assert!(took + slowest < Duration::from_secs(11), "{name}: {took:?}, {slowest:?}");
    }
}

#[test]
fn an_answer_that_is_dropped_leaves_nothing_running() {
    let vocabulary = vocabulary();
    let grammar = vocabulary.compile(&Constrain::JsonObject).unwrap();
    for _ in 0..500 {
        let mut mask = grammar.start();
        mask.accept(u32::from(b'{'));
    }
    // What was begun is over at once, so that the next answer need not wait for it.
    let begun = Instant::now();
    assert!(grammar.start().allowed().is_some());
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_token_that_is_not_allowed_ends_the_answer() {
    let vocabulary = vocabulary();
    let mut mask = vocabulary.compile(&Constrain::JsonObject).unwrap().start();
    mask.accept(u32::from(b'x'));
    assert_eq!(choices(&mut mask, 260), [EOS]);
    assert!(mask.error().is_some());
    mask.accept(u32::from(b'{'));
    assert_eq!(choices(&mut mask, 260), [EOS]);
}

#[test]
fn answers_of_one_grammar_do_not_disturb_each_other() {
    let vocabulary = vocabulary();
    let grammar = vocabulary.compile(&Constrain::Choice(vec!["ab".into(), "cd".into()])).unwrap();
    let (mut one, mut other) = (grammar.start(), grammar.start());
    one.accept(u32::from(b'a'));
    other.accept(u32::from(b'c'));
    assert_eq!(choices(&mut one, 260), [u32::from(b'b')]);
    assert_eq!(choices(&mut other, 260), [u32::from(b'd')]);
    one.accept(u32::from(b'b'));
    assert_eq!((choices(&mut one, 260), one.error()), (vec![EOS], None));
    assert_eq!(choices(&mut other, 260), [u32::from(b'd')]);
}

#[test]
fn a_mask_that_is_computed_says_so_and_is_the_same_as_one_that_is_waited_for() {
    let vocabulary = vocabulary();
    let grammar = vocabulary.compile(&Constrain::JsonObject).unwrap();
    let mut waited = grammar.start();
    let want = waited.allowed().map(<[u32]>::to_vec);
    assert!(want.is_some() && waited.is_ready());
    // Nothing is computed while all threads wait here.
    let gate = Arc::new(Barrier::new(THREADS + 1));
    for _ in 0..THREADS {
        let gate = gate.clone();
        vocabulary.pool.submit(move || _ = gate.wait());
    }
    let mut mask = grammar.start();
    assert!(!mask.is_ready() && !mask.is_ready());
    gate.wait();
    while !mask.is_ready() {
        std::thread::yield_now();
    }
    assert_eq!(mask.allowed().map(<[u32]>::to_vec), want);
    assert!(mask.is_ready() && mask.error().is_none());
}
