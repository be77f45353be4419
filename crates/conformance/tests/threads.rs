//! Random use of sessions by several threads through the public interface: generated, cancelled
//! from outside, stopped, dropped and restarted, with callbacks that panic and prompts that end at
//! borders of pages, contexts and budgets. The output is always the beginning of what the prompt
//! gives alone, and nothing is left behind.

#![allow(clippy::panic, clippy::unwrap_used)]

mod setup;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use conformance::golden::greedy_request as greedy;
use setup::{golden_dir, on};
use troika::engine::{EngineError, KvError, Sharing, WantedLogits};
use troika::graph::DType;
use troika::plan::Strategy;
use troika::weights::FloatType;
use troika::{
    Control, DeviceOptions, Error, Finish, Model, OpenOptions, Output, Session, SessionCanceller,
    SessionOptions,
};
use troika_check::Random;

const MODELS: [&str; 4] = ["qwen3", "gemma-3", "gpt-oss", "mistral"];
const THREADS: usize = 4;
const PROMPTS: usize = 10;
/// Number of known tokens of each prompt's continuation.
const KNOWN: usize = 40;

fn options(devices: &[&str]) -> OpenOptions {
    OpenOptions {
        dtype: FloatType::F32,
        kv_dtype: Some(DType::F32),
        devices: DeviceOptions { threads: Some(1), ..on(devices) },
        ..OpenOptions::default()
    }
}

/// Prompts with common beginnings and lengths around page borders, with their continuations.
type Prompts = Vec<(Vec<u32>, Vec<u32>)>;

fn prompts(name: &str, random: &mut Random) -> Prompts {
    let model = Model::open(&golden_dir(name), &options(&[])).unwrap();
    let mut session = model.session().unwrap();
    let common: Vec<u32> = (0..100).map(|_| random.below(200) as u32).collect();
    let prompt = |_| {
        let len = *random.of(&[1, 2, 7, 31, 32, 33, 63, 64, 65, 96, 97]);
        let same = random.below(len + 1);
        let mut prompt = common[..same].to_vec();
        prompt.extend((same..len).map(|_| random.below(200) as u32));
        let next = session.generate(&prompt, &greedy(KNOWN), &mut |_, _| Control::Continue);
        (prompt, next.unwrap().tokens)
    };
    (0..PROMPTS).map(prompt).collect()
}

fn model(name: &str, random: &mut Random) -> (Model, String) {
    let two = random.once_in(2);
    let strategy = match two {
        true => random.of(&[Strategy::Alternate, Strategy::PrefillDecode]).clone(),
        false => Strategy::OneDevice,
    };
    let devices: &[&str] = if two { &["a=cpu", "b=cpu"] } else { &[] };
    let mut options = OpenOptions {
        strategy: strategy.clone(),
        chunk: Some(*random.of(&[3, 16, 64, 512])),
        context: *random.of(&[None, None, Some(97), Some(64), Some(33)]),
        sharing: Sharing {
            sequences: *random.of(&[1, 2, 3, 8]),
            kv_bytes: None,
            rows_per_step: *random.of(&[1, 17, 128]),
        },
        ..options(devices)
    };
    let all = Model::open(&golden_dir(name), &options).unwrap().engine().unwrap().memory().kv_cache;
    let one = all / options.sharing.sequences as u64;
    options.sharing.kv_bytes = random.of(&[None, Some(1), Some(2), Some(5)]).map(|n| one * n / 4);
    let what = format!(
        "{name}, {strategy}, chunk {:?}, context {:?}, {:?}",
        options.chunk, options.context, options.sharing
    );
    match Model::open(&golden_dir(name), &options) {
        Ok(model) => (model, what),
        // A budget of less than a page is refused; the default is not.
        Err(e) => {
            assert!(matches!(e, Error::Engine(EngineError::Kv(KvError::Budget { .. }))), "{e}");
            options.sharing.kv_bytes = None;
            (Model::open(&golden_dir(name), &options).unwrap(), what)
        }
    }
}

struct Shared<'a> {
    model: &'a Model,
    prompts: &'a Prompts,
    what: &'a str,
    cancellers: &'a Mutex<Vec<SessionCanceller>>,
    ended: &'a AtomicUsize,
}

impl Shared<'_> {
    fn session(&self, random: &mut Random) -> Session {
        let options = SessionOptions {
            priority: random.below(3) as i32 - 1,
            client: random.below(3) as u64,
            fresh: random.once_in(5),
        };
        let session = self.model.session_with(options).unwrap();
        let mut cancellers = self.cancellers.lock().unwrap();
        cancellers.push(session.canceller());
        if cancellers.len() > 2 * THREADS {
            cancellers.remove(0);
        }
        session
    }

    /// Checks that the output is the beginning of that alone, and ends where it says.
    fn check(&self, at: usize, wanted: usize, out: &Output, stopped: bool) {
        let (what, (prompt, known)) = (self.what, &self.prompts[at]);
        let n = out.tokens.len();
        assert_eq!(out.tokens, known[..n], "{what}: prompt {at}");
        let engine = self.model.engine().unwrap();
        let (most, context) = (engine.handle().most_tokens(), engine.plan().context);
        drop(engine);
        match out.finish {
            Finish::Length => assert_eq!(n, wanted, "{what}"),
            Finish::Context => assert_eq!(prompt.len() + n, context + 1, "{what}"),
            Finish::Budget => assert_eq!(prompt.len() + n, most + 1, "{what}"),
            Finish::Cancelled => {}
            Finish::Stop => panic!("{what}: nothing stops it"),
        }
        assert!(stopped || out.finish != Finish::Cancelled || n < wanted.max(1), "{what}");
        assert!(out.stats.cached_tokens < prompt.len().max(1), "{what}: {:?}", out.stats);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn fits(&self, prompt: &[u32]) -> bool {
        prompt.len() <= self.model.engine().unwrap().handle().most_tokens()
    }

    fn act(&self, session: &mut Session, random: &mut Random) {
        let (at, wanted) = (random.below(PROMPTS), random.below(KNOWN + 1));
        let prompt = &self.prompts[at].0;
        if !self.fits(prompt) {
            let refused = session.start(prompt, &greedy(wanted)).unwrap_err();
            let budget = matches!(refused, Error::Engine(EngineError::Kv(KvError::Budget { .. })));
            assert!(budget || matches!(refused, Error::PromptTooLong { .. }), "{refused}");
            return;
        }
        match random.below(7) {
            0..=2 => {
                let stop_at = if random.once_in(2) { random.below(10) + 1 } else { usize::MAX };
                let mut taken = 0;
                let out = session.generate(prompt, &greedy(wanted), &mut |_, _| {
                    taken += 1;
                    if taken == stop_at { Control::Stop } else { Control::Continue }
                });
                self.check(at, wanted, &out.unwrap(), taken == stop_at);
            }
            3 => {
                let panics_at = random.below(6);
                let mut taken = 0;
                let out = catch_unwind(AssertUnwindSafe(|| {
                    session.generate(prompt, &greedy(wanted), &mut |_, _| {
                        taken += 1;
                        assert!(taken <= panics_at, "told to panic");
                        Control::Continue
                    })
                }));
                if let Ok(out) = out {
                    self.check(at, wanted, &out.unwrap(), false);
                }
            }
            4 => {
                // Restarted in the middle.
                session.start(prompt, &greedy(wanted)).unwrap();
                for _ in 0..random.below(4) {
                    session.next_piece().unwrap();
                }
                let stops = random.once_in(2);
                if stops {
                    session.stop().unwrap();
                }
                if random.once_in(2) {
                    let out = session.finish(None).unwrap();
                    self.check(at, wanted, &out, stops);
                }
            }
            5 => {
                // Reads its logits for a while.
                session.stop().unwrap();
                let panics = random.once_in(3);
                let room = self.model.engine().unwrap().handle().most_tokens() - session.len();
                let tokens = &prompt[..prompt.len().min(room)];
                let mut rows = 0;
                let fed = catch_unwind(AssertUnwindSafe(|| {
                    session.feed(tokens, WantedLogits::All, &mut |_, _| {
                        rows += 1;
                        assert!(!panics, "told to panic");
                    })
                }));
                match fed {
                    Ok(Ok(())) => assert_eq!(rows, tokens.len()),
                    Ok(Err(Error::Cancelled)) => {}
                    Ok(Err(e)) => assert!(tokens.is_empty(), "{}: {e}", self.what),
                    Err(_) => assert!(panics),
                }
            }
            _ => *session = self.session(random),
        }
    }
}

fn run(seed: u64, time: Duration) -> usize {
    let mut random = Random(seed);
    let name = *random.of(&MODELS);
    let prompts = prompts(name, &mut random);
    let (model, what) = model(name, &mut random);
    let what = format!("seed {seed}, {what}");
    let (cancellers, ended, done) = (Mutex::default(), AtomicUsize::new(0), AtomicBool::new(false));
    let shared = Shared {
        model: &model,
        prompts: &prompts,
        what: &what,
        cancellers: &cancellers,
        ended: &ended,
    };
    scope(|s| {
        for thread in 0..THREADS as u64 {
            let shared = &shared;
            s.spawn(move || {
                let mut random = Random(seed * 100 + thread);
                let mut session = shared.session(&mut random);
                let start = Instant::now();
                while start.elapsed() < time {
                    shared.act(&mut session, &mut random);
                }
            });
        }
        s.spawn(|| {
            let mut random = Random(seed * 100 + 99);
            while !done.load(Ordering::Relaxed) {
                sleep(Duration::from_micros(200 * random.below(20) as u64));
                let cancellers = cancellers.lock().unwrap();
                if !cancellers.is_empty() {
                    random.of::<SessionCanceller>(&cancellers).cancel();
                }
            }
        });
        s.spawn(|| {
            sleep(time);
            done.store(true, Ordering::Relaxed);
        });
    });
    while model.step().unwrap() {}
    let engine = model.engine().unwrap();
    let memory = engine.memory();
    assert_eq!((memory.kv_used, engine.handle().open_sequences()), (memory.kv_kept, 0), "{what}");
    engine.audit().unwrap_or_else(|e| panic!("{what}: {e}"));
    ended.into_inner()
}

/// Runs seeds one by one, each of which must come to its end.
fn all(seeds: std::ops::Range<u64>, time: Duration) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let told = panic.payload().downcast_ref::<&str>().is_some_and(|p| p.contains("told to"));
        if !told {
            hook(panic);
        }
    }));
    let mut ended = 0;
    for seed in seeds {
        let (send, done) = channel();
        let thread = std::thread::spawn(move || send.send(run(seed, time)).unwrap());
        match done.recv_timeout(time + Duration::from_secs(100)) {
            Ok(n) => ended += n,
            Err(_) if thread.is_finished() => panic!("seed {seed} failed: {:?}", thread.join()),
            Err(_) => panic!("seed {seed} never ends"),
        }
    }
    assert!(ended > 50, "{ended} generations came to their end");
}

#[test]
fn threads_use_sessions_at_random() {
    all(0..6, Duration::from_millis(500));
}

/// Run by `cargo xtask soak`.
#[test]
#[ignore = "takes minutes"]
fn threads_use_sessions_at_random_for_long() {
    all(100..160, Duration::from_secs(2));
}
