//! Sessions of one model: on several threads, cancelled from outside, after panics and bad input.

#![allow(clippy::panic, clippy::unwrap_used)]

mod setup;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{scope, sleep};
use std::time::Duration;

use conformance::golden::greedy_request as greedy;
use setup::{golden_dir, root, some_tokens};
use troika::engine::sample::{Constraint, SampleError};
use troika::engine::{EngineError, KvError, SequenceInput, Sharing, WantedLogits};
use troika::graph::DType;
use troika::weights::FloatType;
use troika::{Control, DeviceOptions, Error, Finish, Model, OpenOptions, Output, Request, Session};

fn options(sequences: usize) -> OpenOptions {
    OpenOptions {
        dtype: FloatType::F32,
        kv_dtype: Some(DType::F32),
        devices: DeviceOptions { threads: Some(1), ..DeviceOptions::default() },
        sharing: Sharing { sequences, ..Sharing::default() },
        ..OpenOptions::default()
    }
}

/// A model with a tokenizer and a context of 2048.
fn tiny(options: &OpenOptions) -> Model {
    Model::open(&root("models/tiny-moe"), options).unwrap()
}

fn qwen3(options: &OpenOptions) -> Model {
    Model::open(&golden_dir("qwen3"), options).unwrap()
}

fn generate(session: &mut Session, prompt: &[u32], n: usize) -> Result<Output, Error> {
    session.generate(prompt, &greedy(n), &mut |_, _| Control::Continue)
}

/// The continuation of a prompt in a separate model.
fn alone(prompt: &[u32], n: usize) -> Vec<u32> {
    generate(&mut qwen3(&options(1)).session().unwrap(), prompt, n).unwrap().tokens
}

/// Checks that the session and the model still work.
fn works(model: &Model, session: &mut Session) {
    let prompt = some_tokens(12, 5);
    let want = generate(&mut model.fresh_session().unwrap(), &prompt, 6).unwrap().tokens;
    assert_eq!(want.len(), 6);
    assert_eq!(generate(session, &prompt, 6).unwrap().tokens, want);
    assert_eq!(generate(&mut model.session().unwrap(), &prompt, 6).unwrap().tokens, want);
    model.engine().unwrap().audit().unwrap();
}

#[test]
fn sessions_on_threads_give_what_each_gives_alone() {
    let prompts: Vec<Vec<u32>> = (0..8).map(|i| some_tokens(20 + 3 * i, i)).collect();
    let want: Vec<Vec<u32>> = prompts.iter().map(|p| alone(p, 24)).collect();
    for sequences in [1, 3, 8] {
        let model = qwen3(&options(sequences));
        let start = Barrier::new(prompts.len());
        scope(|s| {
            for (prompt, want) in prompts.iter().zip(&want) {
                let (model, start) = (&model, &start);
                s.spawn(move || {
                    let mut session = model.session().unwrap();
                    start.wait();
                    for _ in 0..4 {
                        let got = generate(&mut session, prompt, 24).unwrap();
                        assert_eq!((&got.tokens, got.finish), (want, Finish::Length));
                    }
                });
            }
        });
        assert!(!model.step().unwrap());
        let memory = model.engine().unwrap().memory();
        assert_eq!(memory.kv_used, memory.kv_kept, "a page is lost");
        model.engine().unwrap().audit().unwrap();
    }
}

/// Briefly holding the engine does not stop others that wait for it.
#[test]
fn the_engine_can_be_looked_at_while_sessions_generate() {
    let model = qwen3(&options(2));
    let want = alone(&some_tokens(20, 1), 30);
    let done = AtomicBool::new(false);
    scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let memory = model.engine().unwrap().memory();
                assert!(memory.kv_used <= memory.kv_cache);
            }
        });
        for _ in 0..20 {
            let got = generate(&mut model.session().unwrap(), &some_tokens(20, 1), 30);
            assert_eq!(got.unwrap().tokens, want);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_generation_is_cancelled_from_another_thread_and_the_session_goes_on() {
    let model = tiny(&OpenOptions { chunk: Some(16), ..options(2) });
    let mut session = model.session().unwrap();
    let prompt = some_tokens(2000, 3);
    // Between generations nothing happens.
    session.canceller().cancel();
    // During a long prompt: the computed part is kept.
    let mut kept = 0;
    for wait in (0..).map(|n| 20 << n).take_while(|ms| *ms < 20_000) {
        let canceller = session.canceller();
        let cancelled = scope(|s| {
            s.spawn(|| {
                sleep(Duration::from_millis(wait));
                canceller.cancel();
            });
            generate(&mut session, &prompt, 5).unwrap()
        });
        assert_eq!((cancelled.finish, cancelled.tokens.len()), (Finish::Cancelled, 0));
        kept = session.len();
        if kept > 0 {
            break;
        }
    }
    assert!(kept > 0 && kept < prompt.len(), "{kept}");
    works(&model, &mut session);
    // During decoding.
    let (send, tokens) = channel();
    let canceller = session.canceller();
    let cancelled = scope(|s| {
        s.spawn(move || {
            for _ in 0..3 {
                tokens.recv().unwrap();
            }
            canceller.cancel();
        });
        session.generate(&some_tokens(8, 1), &greedy(1900), &mut |token, _| {
            // Tokens that come after the call are nobody's: the other thread may be gone.
            let _ = send.send(token);
            Control::Continue
        })
    })
    .unwrap();
    assert_eq!(cancelled.finish, Finish::Cancelled);
    assert!((3..1800).contains(&cancelled.tokens.len()), "{}", cancelled.tokens.len());
    works(&model, &mut session);
}

/// The end of one generation is never taken for that of the next.
#[test]
fn cancelling_at_any_moment_ends_one_generation_only() {
    let model = qwen3(&options(4));
    let prompt = some_tokens(20, 2);
    let want = alone(&prompt, 12);
    let done = AtomicBool::new(false);
    scope(|s| {
        // Others step the engine too.
        for i in 0..2 {
            let (model, done) = (&model, &done);
            s.spawn(move || {
                let mut session = model.session().unwrap();
                while !done.load(Ordering::Relaxed) {
                    generate(&mut session, &some_tokens(10, i), 5).unwrap();
                }
            });
        }
        let mut session = model.session().unwrap();
        for i in 0..60u64 {
            let canceller = session.canceller();
            let cancelled = scope(|s| {
                let handle = s.spawn(move || {
                    sleep(Duration::from_micros(150 * i));
                    canceller.cancel();
                });
                let out = generate(&mut session, &prompt, 12).unwrap();
                handle.join().unwrap();
                out
            });
            assert_eq!(cancelled.tokens, want[..cancelled.tokens.len()]);
            let whole = cancelled.tokens.len() == 12;
            assert_eq!(cancelled.finish == Finish::Length, whole, "{cancelled:?}");
            // Stopped by the caller, and restarted at once.
            session.start(&prompt, &greedy(12)).unwrap();
            if i % 2 == 0 {
                session.next_piece().unwrap();
            }
            session.start(&prompt, &greedy(12)).unwrap();
            let next = session.finish(None).unwrap();
            assert_eq!((next.tokens, next.finish), (want.clone(), Finish::Length), "{i}");
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn panics_in_callbacks_leave_all_usable() {
    let model = qwen3(&options(2));
    let mut session = model.session().unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        session.generate(&some_tokens(9, 1), &greedy(9), &mut |_, _| panic!("on_token"))
    }));
    assert_eq!(panicked.err().and_then(|p| p.downcast_ref::<&str>().copied()), Some("on_token"));
    works(&model, &mut session);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        session.feed(&[1, 2, 3], WantedLogits::All, &mut |_, _| panic!("on_logits"))
    }));
    assert_eq!(panicked.err().and_then(|p| p.downcast_ref::<&str>().copied()), Some("on_logits"));
    works(&model, &mut session);
}

/// A checkpoint in which the embedding of one token is NaN.
const BAD_TOKEN: u32 = 299;

fn with_nan(to: &Path) {
    let from = golden_dir("llama-2");
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let tensor = &json["model.embed_tokens.weight"];
    let (at, cols) = (&tensor["data_offsets"][0], &tensor["shape"][1]);
    let cols = cols.as_u64().unwrap() as usize;
    let row = 8 + header + at.as_u64().unwrap() as usize + BAD_TOKEN as usize * cols * 4;
    for float in bytes[row..row + cols * 4].chunks_exact_mut(4) {
        float.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    std::fs::write(to.join("model.safetensors"), bytes).unwrap();
}

#[test]
fn logits_that_are_no_numbers_are_an_error_once() {
    let dir = tempfile::tempdir().unwrap();
    with_nan(dir.path());
    let model = Model::open(dir.path(), &options(2)).unwrap();
    let mut session = model.session().unwrap();
    for _ in 0..2 {
        let refused = generate(&mut session, &[5, 6, BAD_TOKEN], 5).unwrap_err();
        assert!(matches!(refused, Error::Sample(SampleError::NoFinite)), "{refused}");
        works(&model, &mut session);
    }
}

#[test]
fn a_generation_ends_where_the_context_does() {
    let model = qwen3(&OpenOptions { context: Some(40), ..options(2) });
    let mut session = model.session().unwrap();
    let full = generate(&mut session, &some_tokens(30, 1), 1000).unwrap();
    assert_eq!((full.finish, full.tokens.len()), (Finish::Context, 11));
    works(&model, &mut session);
    let full = generate(&mut session, &some_tokens(40, 1), 1000).unwrap();
    assert_eq!((full.finish, full.tokens.len()), (Finish::Context, 1));
    let refused = generate(&mut session, &some_tokens(41, 1), 5).unwrap_err();
    let told = matches!(refused, Error::PromptTooLong { prompt: 41, context: 40, .. });
    assert!(told, "{refused}");
    assert!(refused.to_string().contains("shorten it or use a larger context"), "{refused}");
    let ignore = &mut |_: usize, _: &mut [f32]| {};
    session.feed(&[1], WantedLogits::Last, ignore).unwrap_err();
    works(&model, &mut session);
}

#[test]
fn nobody_is_sent_to_a_larger_context_than_the_model_has() {
    let model = qwen3(&options(1));
    let ids = some_tokens(model.spec().context + 1, 1);
    let refused = generate(&mut model.session().unwrap(), &ids, 5).unwrap_err();
    assert!(refused.to_string().ends_with("; shorten it"), "{refused}");
}

#[test]
fn bad_requests_are_one_error_each() {
    // Pages for 64 tokens, not for the whole context.
    let whole = qwen3(&options(1)).engine().unwrap().memory().kv_cache;
    let sharing = Sharing { sequences: 2, kv_bytes: Some(whole / 4), ..Sharing::default() };
    let model = qwen3(&OpenOptions { sharing, ..options(2) });
    let mut session = model.session().unwrap();
    assert!(matches!(generate(&mut session, &[], 5), Err(Error::EmptyPrompt)));
    assert!(matches!(session.finish(None), Err(Error::NothingBegun)));
    works(&model, &mut session);
    let none = generate(&mut session, &some_tokens(9, 1), 0).unwrap();
    assert_eq!((none.finish, none.tokens.len()), (Finish::Length, 0));
    works(&model, &mut session);
    let refused = generate(&mut session, &some_tokens(100, 1), 5).unwrap_err();
    let budget = |e: &Error| matches!(e, Error::Engine(EngineError::Kv(KvError::Budget { .. })));
    assert!(budget(&refused), "{refused}");
    works(&model, &mut session);
    let refused = generate(&mut session, &[1, 9999], 5).unwrap_err();
    assert!(matches!(refused, Error::Engine(EngineError::Token { id: 9999, .. })), "{refused}");
    works(&model, &mut session);
}

/// As at the end of the context; others continue with unchanged results.
#[test]
fn a_generation_ends_where_the_budget_of_the_cache_does() {
    let open = |name: &str, kv_bytes| {
        let sharing = Sharing { sequences: 3, kv_bytes, ..Sharing::default() };
        Model::open(&golden_dir(name), &OpenOptions { sharing, ..options(3) }).unwrap()
    };
    let (long, short) = (some_tokens(60, 1), some_tokens(20, 2));
    for name in ["qwen3", "gemma-3"] {
        let free = open(name, None);
        let one = free.engine().unwrap().memory().kv_cache / 3;
        let want =
            |prompt: &[u32], n| generate(&mut free.session().unwrap(), prompt, n).unwrap().tokens;
        let (long_want, short_want) = (want(&long, 150), want(&short, 30));
        let model = open(name, Some(one / 2));
        scope(|s| {
            let started = s.spawn(|| {
                for _ in 0..4 {
                    let other = generate(&mut model.session().unwrap(), &short, 30).unwrap();
                    assert_eq!((&other.tokens, other.finish), (&short_want, Finish::Length));
                }
            });
            for _ in 0..3 {
                let mut session = model.session().unwrap();
                let full = generate(&mut session, &long, 150).unwrap();
                assert_eq!((full.finish, full.finish.name()), (Finish::Budget, "budget"));
                // The last token needs no place any more.
                let holds = model.engine().unwrap().handle().most_tokens();
                assert_eq!(full.tokens.len(), holds + 1 - long.len(), "{name}");
                assert_eq!(full.tokens, long_want[..full.tokens.len()]);
            }
            started.join().unwrap();
        });
        model.engine().unwrap().audit().unwrap();
    }
}

/// A callback for logits is refused anything that would wait for its own thread, and may do
/// everything else.
#[test]
fn a_callback_for_logits_does_not_wait_for_its_own_thread() {
    let (send, done) = channel();
    std::thread::spawn(move || {
        let model = qwen3(&options(4));
        let prompt = some_tokens(12, 5);
        let want = alone(&prompt, 6);
        let mut session = model.session().unwrap();
        let (mut idle, mut busy) = (model.session().unwrap(), model.session().unwrap());
        let mut gone = Some(model.session().unwrap());
        busy.start(&prompt, &greedy(6)).unwrap();
        let first = busy.next_piece().unwrap().unwrap();
        gone.as_mut().unwrap().start(&prompt, &greedy(6)).unwrap();
        let held = |e: Error| assert!(matches!(e, Error::EngineHeld), "{e}");
        let mut calls = 0;
        let mut taken = vec![first.token];
        session
            .feed(&prompt, WantedLogits::All, &mut |_, _| {
                calls += 1;
                held(generate(&mut idle, &prompt, 6).unwrap_err());
                let ignore = &mut |_: usize, _: &mut [f32]| {};
                held(idle.feed(&[1], WantedLogits::Last, ignore).unwrap_err());
                idle.stop().unwrap_or_else(held);
                held(busy.stop().unwrap_err());
                held(busy.start(&prompt, &greedy(6)).unwrap_err());
                taken.extend(busy.try_next().unwrap().map(|piece| piece.token));
                held(model.step().unwrap_err());
                held(model.engine().map(|_| ()).unwrap_err());
                held(model.perplexity(&[1; 8], 8, Default::default(), &mut |_| true).unwrap_err());
                drop(gone.take());
                drop(model.session().unwrap());
            })
            .unwrap();
        assert_eq!(calls, prompt.len());
        // The refusals have not ended anything.
        while let Some(piece) = busy.next_piece().unwrap() {
            taken.push(piece.token);
        }
        assert_eq!((taken, busy.finish(None).unwrap().finish), (want, Finish::Length));
        for session in [&mut session, &mut idle, &mut busy] {
            works(&model, session);
        }
        // Neither does holding the engine.
        let engine = model.engine().unwrap();
        held(generate(&mut idle, &prompt, 6).unwrap_err());
        drop(engine);
        works(&model, &mut idle);
        // Others may step while this thread does not hold the engine.
        assert!(!model.step().unwrap());
        assert_eq!(model.engine().unwrap().handle().open_sequences(), 3);
        send.send(()).unwrap();
    });
    done.recv_timeout(Duration::from_secs(120)).unwrap();
}

#[test]
fn a_session_with_another_text_begins_with_what_others_have_left() {
    let model = tiny(&options(3));
    let page = model.engine().unwrap().plan().page_len;
    let (a, mut b) = (some_tokens(300, 1), some_tokens(300, 2));
    // They share less than a page.
    b[..3].copy_from_slice(&a[..3]);
    let want = [alone_in_tiny(&a), alone_in_tiny(&b)];
    let cached = 299 / page * page;
    let mut other = model.session().unwrap();
    assert_eq!(generate(&mut other, &a, 6).unwrap().stats.cached_tokens, 0);
    let mut session = model.session().unwrap();
    let mut next = |prompt: &[u32]| {
        let out = generate(&mut session, prompt, 6).unwrap();
        model.engine().unwrap().audit().unwrap();
        (out.stats.cached_tokens, out.tokens)
    };
    assert_eq!(next(&b), (0, want[1].clone()));
    assert_eq!(next(&a), (cached, want[0].clone()), "of the other session");
    assert_eq!(next(&b), (cached, want[1].clone()), "of its own former text");
    drop(other);
    assert_eq!(next(&a), (cached, want[0].clone()), "of one that is closed");
    // If its own text matches further than cached ones, it continues there.
    let mut longer = a.clone();
    longer.push(7);
    assert_eq!(next(&longer).0, 300);
}

#[test]
fn texts_stop_where_they_are_told_to() {
    let model = tiny(&options(2));
    let mut session = model.session().unwrap();
    let prompt = model.tokenizer().unwrap().encode("It was a dark night", true, false).unwrap();
    let plain = generate(&mut session, &prompt, 24).unwrap();
    let first = plain.text.chars().next().unwrap().to_string();
    for (stop, finish) in [(first.as_str(), Finish::Stop), ("\u{1}never", Finish::Length)] {
        let request = Request { stop: vec![stop.into()], ..greedy(24) };
        let mut text = String::new();
        let out = session.generate(&prompt, &request, &mut |_, piece| {
            text.push_str(piece);
            Control::Continue
        });
        let out = out.unwrap();
        assert_eq!(out.finish, finish);
        let want = if finish == Finish::Stop { "" } else { &plain.text };
        assert_eq!((out.text.as_str(), text.as_str()), (want, want));
    }
    works(&model, &mut session);
}

#[test]
fn a_shared_prefix_of_1024_tokens_is_cached_once() {
    let model = tiny(&options(16));
    let prefix = some_tokens(1024, 7);
    let used = || model.engine().unwrap().memory().kv_used;
    let prompt = |i: u32| {
        let mut prompt = prefix.clone();
        prompt.extend([i, i + 1, i + 2]);
        prompt
    };
    let mut sessions = vec![model.session().unwrap()];
    let first = generate(&mut sessions[0], &prompt(0), 2).unwrap();
    assert_eq!(first.stats.cached_tokens, 0);
    let of_one = used();
    let page = model.engine().unwrap().plan().page_len;
    let per_page = of_one / (1024usize + 4).div_ceil(page) as u64;
    for i in 1..16 {
        let mut session = model.session().unwrap();
        let out = generate(&mut session, &prompt(i), 2).unwrap();
        assert_eq!(out.stats.cached_tokens, 1024 / page * page);
        sessions.push(session);
    }
    // Each has a page of its own.
    let (all, own) = (used(), 15 * per_page);
    assert!(all <= of_one * 12 / 10 + own, "{all} for 16, {of_one} for one, {own} of their own");
    let want = alone_in_tiny(&prompt(9));
    assert_eq!(generate(&mut sessions[3], &prompt(9), 6).unwrap().tokens, want);
    drop(sessions);
    assert!(!model.step().unwrap());
    let memory = model.engine().unwrap().memory();
    assert_eq!(memory.kv_used, memory.kv_kept);
}

fn alone_in_tiny(prompt: &[u32]) -> Vec<u32> {
    generate(&mut tiny(&options(1)).session().unwrap(), prompt, 6).unwrap().tokens
}

/// Sessions dropped while another thread computes for them leave nothing behind.
#[test]
fn sessions_are_dropped_while_another_thread_steps() {
    let model = qwen3(&OpenOptions { chunk: Some(8), ..options(3) });
    let want = alone(&some_tokens(20, 1), 12);
    let done = AtomicBool::new(false);
    scope(|s| {
        s.spawn(|| {
            let mut session = model.session().unwrap();
            for _ in 0..40 {
                let got = generate(&mut session, &some_tokens(20, 1), 12).unwrap();
                assert_eq!(got.tokens, want);
            }
            done.store(true, Ordering::Relaxed);
        });
        for i in (0..).take_while(|_| !done.load(Ordering::Relaxed)) {
            let mut session = model.session().unwrap();
            session.start(&some_tokens(100, i % 5), &greedy(50)).unwrap();
            if i % 3 == 0 {
                session.next_piece().unwrap();
            }
        }
    });
    while model.step().unwrap() {}
    let engine = model.engine().unwrap();
    let memory = engine.memory();
    assert_eq!((memory.kv_used, engine.handle().open_sequences()), (memory.kv_kept, 0));
    engine.audit().unwrap();
}

#[test]
fn an_engine_that_is_gone_says_so() {
    let model = qwen3(&options(1));
    let handle = model.engine().unwrap().handle().clone();
    let seq = handle.admit(Default::default()).unwrap();
    drop(model);
    for refused in [
        handle.admit(Default::default()).map(|_| ()),
        handle.feed(&SequenceInput::prompt(seq, &[1], WantedLogits::Last)),
        handle.replace(seq, vec![1], WantedLogits::Last),
    ] {
        assert!(matches!(refused, Err(EngineError::Ended)), "{refused:?}");
    }
    handle.cancel(seq).unwrap();
    handle.close(seq).unwrap();
    assert!(matches!(handle.cancel(seq), Err(EngineError::Kv(KvError::Closed(_)))));
}

/// Continues by a seed; greedy would not tell forks apart.
fn seeded(n: usize, seed: u64) -> Request {
    let mut request = greedy(n);
    (request.params.temperature, request.params.seed) = (1.0, seed);
    request
}

#[test]
fn forks_share_pages_and_generate_what_each_gives_alone() {
    let prompt = some_tokens(100, 3);
    let run = |session: &mut Session, prompt: &[u32], seed| {
        session.generate(prompt, &seeded(40, seed), &mut |_, _| Control::Continue).unwrap()
    };
    let alone =
        |prompt: &[u32], seed| run(&mut qwen3(&options(1)).session().unwrap(), prompt, seed).tokens;
    let model = qwen3(&options(3));
    let mut first = model.session().unwrap();
    first.start(&prompt, &seeded(40, 1)).unwrap();
    let mut tokens = vec![first.next_piece().unwrap().unwrap().token];
    let mut second = first.fork().unwrap();
    let got = run(&mut second, &prompt, 2);
    assert_eq!(got.tokens, alone(&prompt, 2));
    assert!(got.stats.cached_tokens > 0, "{:?}", got.stats);
    // Another way to continue what the first one is in the midst of.
    tokens.extend((0..30).map(|_| first.next_piece().unwrap().unwrap().token));
    let longer = [&prompt[..], &tokens].concat();
    let got = run(&mut first.fork().unwrap(), &longer, 3);
    assert_eq!(got.tokens, alone(&longer, 3));
    assert!(got.stats.cached_tokens > prompt.len(), "{:?}", got.stats);
    assert_eq!(first.finish(None).unwrap().tokens, alone(&prompt, 1));
    drop((first, second));
    assert!(!model.step().unwrap());
    model.engine().unwrap().audit().unwrap();
}

/// Allows tokens that are multiples of four.
#[derive(Debug)]
struct Fourths(Vec<u32>);
impl Constraint for Fourths {
    fn allowed(&mut self) -> Option<&[u32]> {
        Some(&self.0)
    }
    fn accept(&mut self, token: u32) {
        assert!(token.is_multiple_of(4));
    }
}

#[test]
fn tokens_are_those_allowed_and_come_with_probabilities() {
    let model = qwen3(&options(1));
    let mut session = model.session().unwrap();
    let request = Request { logprobs: Some(3), ..greedy(12) };
    let mask = || Box::new(Fourths(vec![0x1111_1111; model.spec().vocab / 32]));
    for constrained in [false, true] {
        let constraint = constrained.then(|| mask() as Box<dyn Constraint>);
        session.start_within(&some_tokens(20, 1), &request, constraint).unwrap();
        while let Some(piece) = session.next_piece().unwrap() {
            let logprobs = piece.logprobs.unwrap();
            let [best, second, third] = logprobs.top[..] else { panic!("{logprobs:?}") };
            assert!(0.0 >= best.1 && best.1 >= second.1 && second.1 >= third.1);
            assert!(logprobs.chosen <= best.1);
            match constrained {
                true => assert!(piece.token.is_multiple_of(4)),
                false => assert_eq!((piece.token, logprobs.chosen), best),
            }
        }
        assert_eq!(session.finish(None).unwrap().tokens.len(), 12);
    }
    let nothing = Box::new(Fourths(Vec::new()));
    session.start_within(&some_tokens(20, 1), &request, Some(nothing)).unwrap();
    let wrong = session.next_piece().unwrap_err();
    assert!(matches!(wrong, Error::Sample(SampleError::Constrained)), "{wrong}");
    works(&model, &mut session);
}

/// Allows all tokens, but only once it is let go.
#[derive(Debug)]
struct Held(Arc<Mutex<()>>);
impl Constraint for Held {
    fn allowed(&mut self) -> Option<&[u32]> {
        drop(self.0.lock().unwrap());
        None
    }
    fn accept(&mut self, _: u32) {}
}

#[test]
fn a_mask_that_does_not_come_holds_up_its_own_sequence_alone() {
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| some_tokens(20 + 3 * i, i)).collect();
    let wanted = |prompt: &Vec<u32>| {
        let model = qwen3(&options(1));
        let mut session = model.session().unwrap();
        session.generate(prompt, &seeded(24, 7), &mut |_, _| Control::Continue).unwrap().tokens
    };
    let want: Vec<Vec<u32>> = prompts.iter().map(wanted).collect();
    let model = qwen3(&options(4));
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock().unwrap();
    let start = |prompt: &Vec<u32>, waits: bool| {
        let mut session = model.session().unwrap();
        let constraint = waits.then(|| Box::new(Held(gate.clone())) as Box<dyn Constraint>);
        session.start_within(prompt, &seeded(24, 7), constraint).unwrap();
        session
    };
    let mut slow = start(&prompts[0], true);
    let mut cancelled = start(&prompts[1], true);
    for (prompt, want) in prompts.iter().zip(&want).skip(1) {
        assert_eq!(start(prompt, false).finish(None).unwrap().tokens, *want);
    }
    assert!(slow.try_next().unwrap().is_none() && cancelled.try_next().unwrap().is_none());
    // A session whose token is still being chosen ends at once, and goes on with something else.
    cancelled.canceller().cancel();
    let ended = cancelled.finish(None).unwrap();
    assert_eq!((ended.finish, ended.tokens.len()), (Finish::Cancelled, 0));
    works(&model, &mut cancelled);
    cancelled
        .start_within(&prompts[2], &seeded(24, 7), Some(Box::new(Held(gate.clone()))))
        .unwrap();
    assert!(model.step().unwrap(), "it waits for what is chosen");
    drop(held);
    assert_eq!(slow.finish(None).unwrap().tokens, want[0]);
    assert_eq!(
        cancelled.finish(None).unwrap().tokens,
        want[2],
        "not the token of the cancelled one"
    );
    assert!(!model.step().unwrap());
    model.engine().unwrap().audit().unwrap();
}

/// A constraint that panics where its token is chosen.
#[derive(Debug)]
struct Panics;
impl Constraint for Panics {
    fn allowed(&mut self) -> Option<&[u32]> {
        panic!("told to")
    }
    fn accept(&mut self, _: u32) {}
}

#[test]
fn a_constraint_that_panics_ends_its_answer_alone() {
    let model = qwen3(&options(2));
    let mut session = model.session().unwrap();
    session.start_within(&some_tokens(20, 1), &greedy(9), Some(Box::new(Panics))).unwrap();
    let ended = session.finish(None).unwrap();
    assert_eq!((ended.finish, ended.tokens.len()), (Finish::Cancelled, 0));
    works(&model, &mut session);
}

/// Tells which session has news.
struct News(usize, Mutex<Sender<usize>>);
impl Wake for News {
    fn wake(self: Arc<Self>) {
        let _ = self.1.lock().unwrap().send(self.0);
    }
}

#[test]
fn sessions_are_woken_by_one_thread_that_steps_for_all() {
    let prompts: Vec<Vec<u32>> = (0..3).map(|i| some_tokens(20 + 30 * i, i)).collect();
    let model = qwen3(&options(2));
    let stop = AtomicBool::new(false);
    scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                while model.step().unwrap() {}
                model.wait_for_work(Duration::from_millis(50));
            }
        });
        let (news, woken) = channel();
        let mut sessions = Vec::new();
        for (i, prompt) in prompts.iter().enumerate() {
            let mut session = model.session().unwrap();
            session.start(prompt, &greedy(24)).unwrap();
            let waker = Waker::from(Arc::new(News(i, Mutex::new(news.clone()))));
            waker.wake_by_ref();
            sessions.push((session, waker, Vec::new()));
        }
        let mut done = vec![false; prompts.len()];
        while done.contains(&false) {
            let i = woken.recv_timeout(Duration::from_secs(60)).expect("nobody was woken");
            let (session, waker, tokens) = &mut sessions[i];
            while let Poll::Ready(piece) = session.poll_piece(&Context::from_waker(waker)) {
                match piece.unwrap() {
                    Some(piece) => tokens.push(piece.token),
                    None => {
                        done[i] = true;
                        break;
                    }
                }
            }
        }
        for ((mut session, _, tokens), prompt) in sessions.into_iter().zip(&prompts) {
            assert_eq!(session.finish(None).unwrap().tokens, tokens);
            assert_eq!(tokens, alone(prompt, 24));
        }
        stop.store(true, Ordering::Relaxed);
    });
}
