//! The copies predicted for a plan equal those of a run.

#![allow(clippy::panic, clippy::unwrap_used)]

mod setup;

use setup::{golden_dir, on, virtual_spec};
use troika::engine::{SequenceInput, WantedLogits};
use troika::plan::{Phase, Strategy};
use troika::program::{CopyCount, PhaseCopies};
use troika::trace::Tracer;
use troika::weights::FloatType;
use troika::{Model, OpenOptions, make_plan};

const CHUNK: usize = 6;

/// Two devices: `cpu`, or a file of `socs/odd`.
fn options(pair: [&str; 2], strategy: Strategy) -> OpenOptions {
    let [a, b] = [("a", pair[0]), ("b", pair[1])].map(|(name, device)| match device {
        "cpu" => format!("{name}=cpu"),
        odd => virtual_spec(name, &format!("odd/{odd}")),
    });
    OpenOptions {
        dtype: FloatType::F32,
        chunk: Some(CHUNK),
        strategy,
        devices: on(&[&a, &b]),
        ..OpenOptions::default()
    }
}

fn planned(model: &str, options: &OpenOptions) -> Vec<PhaseCopies> {
    make_plan(&golden_dir(model), options).unwrap().copies().unwrap()
}

fn number(counts: &[CopyCount]) -> usize {
    counts.iter().map(|c| c.count).sum()
}

/// The copies of a one-chunk prompt and of each of two tokens after it, from the trace of a run.
fn copied(model: &str, options: &OpenOptions) -> [usize; 3] {
    let tracer = Tracer::on();
    let options = OpenOptions { tracer: tracer.clone(), ..options.clone() };
    let model = Model::open(&golden_dir(model), &options).unwrap();
    let seq = model.engine().unwrap().open();
    [&[1; CHUNK][..], &[2], &[3]].map(|tokens| {
        tracer.take();
        let fed = if tokens.len() == 1 { SequenceInput::decode } else { SequenceInput::prompt };
        let input = fed(seq, tokens, WantedLogits::Last);
        model.engine().unwrap().run(&[input], &mut |_, _, _| {}).unwrap();
        tracer.take().iter().filter(|s| s.name == "copy").count()
    })
}

#[test]
fn counted_copies_are_those_of_a_run() {
    let (mut some, mut handed) = (0, 0);
    for pair in [
        ["cpu", "cpu"],
        ["cpu", "own-memory.toml"],
        ["own-memory.toml", "own-memory.toml"],
        ["cpu", "dense-rows.toml"],
        ["static-shapes.toml", "own-memory.toml"],
    ] {
        // What is copied for experts depends on what routers choose.
        for strategy in Strategy::ALL.into_iter().filter(|s| !matches!(s, Strategy::Experts(_))) {
            for model in ["qwen3", "gpt-oss"] {
                let options = options(pair, strategy.clone());
                let phases = planned(model, &options);
                let [prefill, decode] = &phases[..] else { panic!("{phases:?}") };
                assert_eq!(
                    (prefill.phase, prefill.tokens, prefill.cached),
                    (Phase::Prefill, CHUNK, 0)
                );
                assert_eq!((decode.phase, decode.tokens, decode.cached), (Phase::Decode, 1, CHUNK));
                let each = number(&decode.values);
                let said = [number(&prefill.values), number(&decode.handover) + each, each];
                let what = format!("{model}, {strategy} on {pair:?}: {phases:?}");
                assert_eq!(said, copied(model, &options), "{what}");
                assert!(pair != ["cpu", "cpu"] || said == [0; 3], "{what}");
                some += usize::from(said[0] > 0);
                handed += usize::from(said[1] > said[2]);
            }
        }
    }
    assert!(some > 20 && handed > 2, "{some} {handed}");
}

#[test]
fn bytes_are_those_of_ids_logits_and_caches() {
    let own = "own-memory.toml";
    let count = |from: Option<&str>, to: Option<&str>, count: usize, bytes: usize| CopyCount {
        from: from.map(String::from),
        to: to.map(String::from),
        count,
        bytes: bytes as u64,
    };
    // Ids and positions go in; logits come out.
    let alone = options([own, "cpu"], Strategy::OneDevice);
    let model = Model::open(&golden_dir("qwen3"), &alone).unwrap();
    let logits = 4 * model.spec().vocab;
    let expected = |tokens: usize| {
        [count(None, Some("a"), 2, 2 * 4 * tokens), count(Some("a"), None, 1, logits)]
    };
    let phases = planned("qwen3", &alone);
    assert_eq!(phases[0].values, expected(CHUNK));
    assert_eq!((&phases[1].values[..], &phases[1].handover[..]), (&expected(1)[..], &[][..]));
    // A prompt's caches are copied as a whole.
    let engine = model.engine().unwrap();
    let states = &engine.lowered().states;
    let row: usize = states.iter().map(|s| s.row_bytes()).sum();
    let phases = planned("qwen3", &options(["cpu", own], Strategy::PrefillDecode));
    assert!(phases[0].values.is_empty(), "{phases:?}");
    assert_eq!(phases[1].handover, [count(None, Some("b"), states.len(), CHUNK * row)]);
    assert_eq!(
        phases[1].values,
        [count(None, Some("b"), 2, 2 * 4), count(Some("b"), None, 1, logits)]
    );
}
