//! Devices that are lost at any moment. The device is the CPU behind one that stops when told to.

#![allow(clippy::unwrap_used)]

mod setup;

use std::sync::{Arc, Mutex};

use conformance::golden::greedy_request;
use setup::{Told, cpu, described};
use troika::device::{Device, DeviceError};
use troika::engine::Sharing;
use troika::weights::FloatType;
use troika::{BoundModel, Described, DeviceOptions, Error, Model, OpenOptions};
use troika_check::{Doing, Hook, Hooked};

const TOKENS: usize = 6;
/// The second one takes several chunks.
const PROMPTS: [&[u32]; 2] = [&[1, 2, 3], &[9, 8, 7, 6, 5, 4, 3, 2, 1, 10, 11]];

fn options() -> OpenOptions {
    let sharing = Sharing { sequences: 2, ..Sharing::default() };
    OpenOptions {
        dtype: FloatType::F32,
        chunk: Some(4),
        fallback: true,
        sharing,
        ..OpenOptions::default()
    }
}

/// A model on a device named `worker`, with its hook.
fn opened(name: &str, options: &OpenOptions) -> (Model, Hook) {
    let Described { spec, store, .. } = described(name);
    let hook = Hook::default();
    let worker = Hooked::new(cpu("worker", 1), hook.clone());
    let devices = vec![Arc::new(worker) as Arc<dyn Device>];
    let model = Model::open_bound(name, BoundModel { spec, store, devices }, options).unwrap();
    (model, hook)
}

/// Loses the device after so many more lists.
fn lose_after(hook: &Hook, lists: usize, count: &Arc<Mutex<usize>>) {
    let count = count.clone();
    hook.set(move |doing| {
        let Doing::Submit(_) = doing else { return Ok(()) };
        let mut count = count.lock().unwrap();
        *count += 1;
        if *count <= lists {
            return Ok(());
        }
        Err(DeviceError::Lost { device: "worker".into(), why: "it was unplugged".into() })
    });
}

/// The answers to both prompts, computed together.
fn answers(model: &Model) -> Result<[Vec<u32>; 2], Error> {
    let mut sessions = [model.session()?, model.session()?];
    for (session, prompt) in sessions.iter_mut().zip(PROMPTS) {
        session.start(prompt, &greedy_request(TOKENS))?;
    }
    let mut got = [Vec::new(), Vec::new()];
    for _ in 0..TOKENS {
        for (session, got) in sessions.iter_mut().zip(&mut got) {
            got.extend(session.next_piece()?.map(|piece| piece.token));
        }
    }
    Ok(got)
}

#[test]
fn whenever_a_device_is_lost_the_cpu_gives_the_same_answers() {
    // With windows and without, and with experts.
    for name in ["qwen3", "gemma-3", "qwen3-moe"] {
        let (model, hook) = opened(name, &options());
        let count = Arc::new(Mutex::new(0));
        lose_after(&hook, usize::MAX, &count);
        let want = answers(&model).unwrap();
        let lists = *count.lock().unwrap();
        assert!(lists > TOKENS, "{name}: {lists} lists");
        for after in 0..lists {
            let told = Arc::new(Told::default());
            let observed = OpenOptions { observer: Some(told.clone()), ..options() };
            let (model, hook) = opened(name, &observed);
            lose_after(&hook, after, &Arc::default());
            assert_eq!(answers(&model).unwrap(), want, "{name}: lost after {after} lists");
            assert_eq!(model.plan().devices, ["cpu"]);
            let told = told.noticed.lock().unwrap();
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told[0].starts_with("device worker: the driver lost it: it was unplugged;"));
            // Whoever comes later begins there.
            assert_eq!(answers(&model).unwrap(), want, "{name}: lost after {after} lists");
            model.engine().unwrap().audit().unwrap();
        }
    }
}

#[test]
fn sequences_fail_by_name_where_the_cpu_cannot_go_on() {
    let isa = Some("abacus".to_string());
    let devices = DeviceOptions { isa, ..DeviceOptions::default() };
    let (model, hook) = opened("qwen3", &OpenOptions { devices, ..options() });
    lose_after(&hook, 3, &Arc::default());
    let why = answers(&model).unwrap_err().to_string();
    let both = ["device worker: the driver lost it", "going on elsewhere failed", "abacus"];
    assert!(both.iter().all(|part| why.contains(part)) && !why.contains('\n'), "{why}");
    let why = answers(&model).unwrap_err().to_string();
    assert!(why.contains("device worker: the driver lost it") && !why.contains("else"), "{why}");
    // Without a fallback they fail at once.
    let (model, hook) = opened("qwen3", &OpenOptions { fallback: false, ..options() });
    lose_after(&hook, 3, &Arc::default());
    let why = answers(&model).unwrap_err().to_string();
    assert_eq!(why, "device worker: the driver lost it: it was unplugged");
}
