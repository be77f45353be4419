//! Groups of experts that come to their device and leave it while the model runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conformance::hooked::{Doing, Hook, Hooked, told_to_fail};
use conformance::random::Random;
use troika::device::{Clock, Device, RealClock};
use troika::engine::{Engine, EngineParts, MovedGroups, Sharing};
use troika::model::spec::ModelSpec;
use troika::plan::{AdaptSettings, Dispatch, ExpertSplit, GroupResidency, Overflow, Plan};
use troika::trace::Tracer;
use troika::weights::{FloatType, WeightStore};
use troika::{Described, describe};
use troika_sim::{Board, Soc, VirtualClock, VirtualDevice};

use super::{SOC, cpus, group, logits, model_dir, plain, shared};

/// A model whose weights outlive its opening.
struct Subject {
    spec: ModelSpec,
    store: Arc<WeightStore>,
    devices: Vec<Arc<dyn Device>>,
    /// All on the first device, and the experts shared out.
    plain: Plan,
    shared: Plan,
}

/// At once, and for little.
const EAGER: AdaptSettings = AdaptSettings { decay: 0.3, margin: 0.0, patience: 1, swaps: 2 };

/// All eight experts in groups of two, of which the first two are on the device.
fn split(dispatch: Dispatch) -> ExpertSplit {
    let pair = |at: usize| {
        let mut pair = group("b", &[2 * at + 1, 2 * at], 3);
        pair.standby = at >= 2;
        pair
    };
    ExpertSplit {
        groups: (0..4).map(pair).collect(),
        overflow: Overflow::Cpu,
        dispatch,
        expected: Vec::new(),
    }
}

impl Subject {
    fn new(devices: Vec<Arc<dyn Device>>, dispatch: Dispatch) -> Subject {
        let d = describe(&model_dir("olmoe"), FloatType::F32).unwrap();
        let plain = plain(&d, &devices, 6);
        let mut shared = shared(&d, &plain, 2, &split(dispatch));
        shared.prefill.expert_residency =
            Some(GroupResidency { every_group: true, ..GroupResidency::default() });
        let Described { spec, store, .. } = d;
        Subject { spec, store: Arc::new(store), devices, plain, shared }
    }

    fn engine(&self, plan: &Plan, clock: Arc<dyn Clock>) -> Engine {
        let parts = EngineParts {
            spec: &self.spec,
            shapes: &|key| self.store.shape(key),
            weights: &*self.store,
            plan: plan.clone(),
            devices: &self.devices,
            clock,
            tracer: Tracer::on(),
            sharing: Sharing::default(),
        };
        Engine::new(parts).unwrap()
    }

    /// Sets the budget to what the first groups take, and so many bytes more.
    fn limit(&mut self, more: u64) -> u64 {
        let held = moved(&self.engine(&self.shared, Arc::new(RealClock::new()))).held_bytes;
        let residency = self.shared.prefill.expert_residency.as_mut().unwrap();
        residency.bytes = Some(held + more);
        held
    }

    /// An engine whose groups move.
    fn adapting(&self, clock: Arc<dyn Clock>) -> Engine {
        let mut engine = self.engine(&self.shared, clock);
        engine.adapt(self.store.clone(), EAGER);
        engine
    }
}

fn moved(e: &Engine) -> MovedGroups {
    e.group_stats().moved.unwrap()
}

/// Prompts whose tokens are of one part of the vocabulary for a while, and then of another.
fn text(seed: u64, prompts: usize) -> Vec<Vec<u32>> {
    let mut random = Random(seed);
    let mut from = 0;
    let prompt = |at: usize| {
        if at.is_multiple_of(4) {
            from = random.below(180) as u32;
        }
        let len = 4 + random.below(30);
        (0..len).map(|_| from + random.below(12) as u32).collect()
    };
    (0..prompts).map(prompt).collect()
}

#[test]
fn groups_follow_the_text_and_change_no_bit() {
    for dispatch in Dispatch::ALL {
        let mut subject = Subject::new(cpus(&["a", "b"]), dispatch);
        for seed in 0..4 {
            // Room for a third of the groups, give or take less than one.
            let held = subject.limit(seed * 100);
            let clock = || Arc::new(RealClock::new());
            let mut one = subject.engine(&subject.plain, clock());
            let mut still = subject.engine(&subject.shared, clock());
            let mut adapting = subject.adapting(clock());
            for (at, ids) in text(seed, 24).into_iter().enumerate() {
                let expected = logits(&mut one, &ids);
                assert!(logits(&mut still, &ids) == expected);
                assert!(logits(&mut adapting, &ids) == expected, "{dispatch:?}, {seed}: {at}");
                let now = moved(&adapting);
                let limit = now.limit_bytes.unwrap();
                assert!(limit == held + seed * 100 && now.held_bytes <= limit, "{now:?}");
            }
            // Loads are taken when a prompt ends or begins.
            while moved(&adapting).loads == 0 {
                logits(&mut adapting, &[1, 2, 3]);
            }
            let all = moved(&adapting);
            assert!(all.evictions > 0 && all.failures.is_empty(), "{all:?}");
            assert!(all.most_bytes <= all.limit_bytes.unwrap(), "{all:?}");
            assert!(all.loaded_bytes > 0 && all.load_time > Duration::ZERO);
            assert_eq!(moved(&still).loads + moved(&still).evictions, 0, "without a source");
        }
    }
}

/// The device's own accounting refuses what would be too much at any moment.
#[test]
fn loaded_groups_never_take_more_than_their_device_has() {
    let run = |memory: &str, prompts: usize| {
        let soc = Soc::parse("two.toml", &format!("{SOC}{memory}")).unwrap();
        let clock = Arc::new(VirtualClock::new());
        let board = Board::new(&soc, clock.clone());
        let open = |(name, p): (&&str, _)| -> Arc<dyn Device> {
            Arc::new(VirtualDevice::on(&board, name, p).unwrap())
        };
        let devices = ["a", "b"].iter().zip(&soc.processors).map(open).collect();
        let subject = Subject::new(devices, Dispatch::PerChunk);
        let mut one = subject.engine(&subject.plain, clock.clone());
        let mut adapting = subject.adapting(clock.clone());
        let began = clock.now();
        for ids in text(7, prompts) {
            assert!(logits(&mut adapting, &ids) == logits(&mut one, &ids));
        }
        (moved(&adapting), clock.now() - began)
    };
    let all = run("", 0).0.held_bytes;
    for bytes in [all, all - 1, all + all / 5, all / 4] {
        let memory = format!("max_resident_bytes = {bytes}\n");
        let (moved, took) = run(&memory, 30);
        assert!(moved.loads > 3 && moved.failures.is_empty(), "{bytes}: {moved:?}");
        assert!(moved.most_bytes <= bytes && moved.limit_bytes == Some(bytes), "{moved:?}");
        assert_eq!(run(&memory, 30), (moved, took), "time passes alike in every run");
    }
    let (moved, _) = run("max_graphs = 3\n", 30);
    assert!(moved.loads > 3 && moved.failures.is_empty(), "{moved:?}");
}

/// Two CPUs, of which the second one is watched and may claim other numerics.
fn watched(unlike: bool) -> (Subject, Hook) {
    let hook = Hook::default();
    let mut devices = cpus(&["a", "b"]);
    let mut caps = devices[1].caps().clone();
    if unlike {
        caps.numerics.push_str("other");
    }
    devices[1] = Arc::new(Hooked::new(devices[1].clone(), hook.clone()).with_caps(caps));
    let mut subject = Subject::new(devices, Dispatch::PerChunk);
    subject.limit(0);
    (subject, hook)
}

#[test]
fn a_group_that_its_device_does_not_load_stays_where_it_is() {
    let (subject, hook) = watched(false);
    let clock = || Arc::new(RealClock::new());
    let (mut one, mut adapting) =
        (subject.engine(&subject.plain, clock()), subject.adapting(clock()));
    // Every other load fails, one of them without a word.
    let mut loads = 0;
    hook.set(move |doing| {
        let Doing::Load(_) = doing else { return Ok(()) };
        loads += 1;
        assert!(loads != 3, "it was told to panic");
        if loads % 2 == 1 { Err(told_to_fail("b")) } else { Ok(()) }
    });
    let mut prompts = text(3, 400).into_iter();
    while moved(&adapting).failures.len() < 3 {
        let ids = prompts.next().unwrap();
        assert!(logits(&mut adapting, &ids) == logits(&mut one, &ids));
    }
    let all = moved(&adapting);
    let [first, second, ..] = &all.failures[..] else { panic!() };
    assert!(first.contains(" stay off device b") && first.contains("told to fail"), "{first}");
    assert!(second.contains("panicked"), "{second}");
    // A group that failed is not tried again.
    let names: Vec<_> = all.failures.iter().map(|f| f.split(" stay").next()).collect();
    assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2], "{names:?}");
    assert!(all.held_bytes <= all.limit_bytes.unwrap());
}

/// Where devices compute otherwise, results depend on the prompts before, and not on how long loads
/// take.
#[test]
fn where_numerics_differ_no_result_depends_on_time() {
    let (subject, hook) = watched(true);
    let run = |slow: u64| {
        let count = AtomicU64::new(0);
        hook.set(move |doing| {
            if let Doing::Load(_) = doing {
                let ms = slow * (count.fetch_add(1, Ordering::Relaxed) % 3);
                std::thread::sleep(Duration::from_millis(ms));
            }
            Ok(())
        });
        let mut adapting = subject.adapting(Arc::new(RealClock::new()));
        text(5, 30).iter().for_each(|ids| _ = logits(&mut adapting, ids));
        let stats = adapting.group_stats();
        let moved = stats.moved.unwrap();
        assert!(moved.loads > 3, "{moved:?}");
        (stats.layers, moved.loads, moved.evictions, moved.waited)
    };
    let (fast, slow) = (run(0), run(7));
    assert_eq!((&fast.0, fast.1, fast.2), (&slow.0, slow.1, slow.2));
    assert!(slow.3 >= Duration::from_millis(7), "prompts waited {:?}", slow.3);
}

#[test]
fn an_engine_that_is_dropped_while_a_group_is_loaded_ends() {
    let (subject, hook) = watched(false);
    hook.set(|doing| {
        if let Doing::Load(_) = doing {
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    });
    let mut adapting = subject.adapting(Arc::new(RealClock::new()));
    for ids in text(1, 8) {
        logits(&mut adapting, &ids);
    }
    drop(adapting);
    let users = Arc::strong_count(&subject.store);
    assert_eq!(users, 1, "nobody loads any more");
}
