//! The choice of devices on machines of many kinds, as a table to be read.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::{Arc, Mutex};

use troika_device::DeviceError;
use troika_engine::{EngineError, GroupLayout, KvLayout};
use troika_graph::StateKind;
use troika_plan::Strategy;

use super::choice::{AskedDevices, Choice, LayerNeeds, Machine, ModelNeeds, StateNeeds, choose};
use crate::budget::HostMemory;
use crate::devices::{AutoDevices, DeviceOptions, GpuAdapter};
use crate::error::Error;
use crate::observer::OpenObserver;
use crate::options::OpenOptions;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A machine, its free memory in GiB, its adapters, the model, what is asked for, and what is said.
///
/// Adapters: `8 A` has 8 GiB of its own, `8/3 A` of which 3 are free; `? A` does not tell; `shared A`
/// works in the host's memory, `shared 2 A` in 2 GiB of it; `soft A` is software; `old A` lacks
/// something; `8 A^128` binds 128 MiB.
///
/// Models: 8b has 36 layers of 112 MiB, and head and embedding of 330 MiB each; a position of its
/// cache takes 144 KiB, and its context is 40,960 tokens: 5.6 GiB. 70b has 80 layers of 480 MiB and
/// 320 KiB. moe has 48 layers of 20 MiB with experts of 330 MiB, 8 of 128 for a token, and 96 KiB.
/// gemma has 26 layers of 24 MiB, of which 22 see 512 tokens, and a head of 290 MiB. small has 200 MiB.
const TABLE: &str = "
the CPU alone                   | 16  |                         | 8b    |             |
no driver, and layers wanted    | 16  |                         | 8b    | -ngl 99     | there is no GPU that can be used
a software adapter              | 16  | soft llvmpipe           | 8b    |             |
an old driver                   | 16  | old A                   | 8b    |             | A cannot be used: its driver is too old
an old driver beside software   | 16  | old A, soft llvmpipe    | 8b    |             | A cannot be used: its driver is too old
an old card beside a good one   | 16  | old A, 24 B             | 8b    |             | 36 of 36 layers on B (10.4 of 24.0 GiB)
a small model                   | 16  | 24 A                    | small |             |
a small model, layers wanted    | 16  | 24 A                    | small | -ngl 99     | 36 of 36 layers on A (0.7 of 24.0 GiB)
a desktop with 24 GB            | 64  | 24 A                    | 8b    |             | 36 of 36 layers on A (10.4 of 24.0 GiB)
a desktop with 12 GB            | 32  | 12 A                    | 8b    |             | 36 of 36 layers on A (10.4 of 12.0 GiB)
a desktop with 8 GB             | 32  | 8 A                     | 8b    |             | 36 of 36 layers on A (7.1 of 8.0 GiB); a context of 19456 of 40960 tokens fits (-c for another)
a desktop with 6 GB             | 32  | 6 A                     | 8b    |             | 36 of 36 layers on A (5.4 of 6.0 GiB), the head on the CPU; a context of 9216 of 40960 tokens fits (-c for another)
a laptop with 4 GB              | 16  | 4 A                     | 8b    |             | 24 of 36 layers on A (3.6 of 4.0 GiB), 12 on the CPU; a context of 8192 of 40960 tokens fits (-c for another)
a card with 2 GB                | 16  | 2 A                     | 8b    |             | 11 of 36 layers on A (1.8 of 2.0 GiB), 25 on the CPU; a context of 9216 of 40960 tokens fits (-c for another)
a card with half a GB           | 16  | 0.5 A                   | 8b    |             | A has 460.8 MiB left, which take 1 of 36 layers with their cache
a card that others use          | 32  | 24/3 A                  | 8b    |             | 19 of 36 layers on A (2.9 of 24.0 GiB), 17 on the CPU; a context of 9216 of 40960 tokens fits (-c for another)
a full card                     | 32  | 24/0.1 A                | 8b    |             | A has 102.4 MiB left, which take 0 of 36 layers with their cache
a card that does not tell       | 32  | ? A                     | 8b    |             | 12 of 36 layers on A (2.0 GiB), 24 on the CPU; a context of 10240 of 40960 tokens fits (-c for another)
a card of small bindings        | 32  | 24 A^64                 | 8b    |             | 36 of 36 layers on A (9.3 of 24.0 GiB); a context of 32768 of 40960 tokens fits (-c for another)
two unlike cards                | 64  | 8 A, 24 B               | 70b   |             | 42 of 80 layers on B (21.2 of 24.0 GiB), 14 on A (7.2 of 8.0 GiB), 24 on the CPU; a context of 8192 of 131072 tokens fits (-c for another)
two like cards                  | 64  | 24 A, 24 B              | 70b   |             | 41 of 80 layers on A (21.5 of 24.0 GiB), 39 on B (19.7 of 24.0 GiB); a context of 8192 of 131072 tokens fits (-c for another)
two cards, one is enough        | 64  | 8 A, 24 B               | 8b    |             | 36 of 36 layers on B (10.4 of 24.0 GiB)
a card beside an integrated one | 32  | 8 A, shared B           | 8b    |             | 36 of 36 layers on A (7.1 of 8.0 GiB); a context of 19456 of 40960 tokens fits (-c for another)
an integrated one               | 24  | shared A                | 8b    |             | 36 of 36 layers on A (10.4 GiB of the host's memory)
an integrated one of 2 GB       | 24  | shared 2 A              | 8b    |             | 12 of 36 layers on A (2.0 GiB of the host's memory), 24 on the CPU; a context of 10240 of 40960 tokens fits (-c for another)
a Mac with 8 GB                 | 5   | shared M                | 8b    |             | 22 of 36 layers on M (3.3 GiB of the host's memory), 14 on the CPU; a context of 8192 of 40960 tokens fits (-c for another)
a Mac with 64 GB                | 50  | shared M                | 70b   |             | 66 of 80 layers on M (33.2 GiB of the host's memory), 14 on the CPU; a context of 8192 of 131072 tokens fits (-c for another)
8 GB, and a MoE                 | 32  | 8 A                     | moe   |             | 48 of 48 layers on A (7.2 of 8.0 GiB), but the experts of 33 on the CPU; a context of 11264 of 40960 tokens fits (-c for another)
24 GB, and a MoE                | 32  | 24 A                    | moe   |             | 48 of 48 layers on A (20.7 of 24.0 GiB)
2 GB, and a MoE                 | 32  | 2 A                     | moe   |             | A has 1.8 GiB left, which take 4 of 48 layers with their cache
2 GB, layers with windows       | 16  | 2 A                     | gemma |             | 26 of 26 layers on A (1.5 of 2.0 GiB)
8 GB, twenty layers wanted      | 32  | 8 A                     | 8b    | -ngl 20     | 20 of 36 layers on A (5.5 of 8.0 GiB), 16 on the CPU
8 GB, all layers but the head   | 32  | 8 A                     | 8b    | -ngl 36     | 36 of 36 layers on A (7.1 of 8.0 GiB), the head on the CPU; a context of 21504 of 40960 tokens fits (-c for another)
8 GB, no layers wanted          | 32  | 8 A                     | 8b    | -ngl 0      |
8 GB, a long context wanted     | 32  | 8 A                     | 8b    | -c 40960    | 26 of 36 layers on A (7.1 of 8.0 GiB), 10 on the CPU
8 GB, a short context wanted    | 32  | 8 A                     | 8b    | -c 2048     | 36 of 36 layers on A (5.1 of 8.0 GiB)
a server with 24 GB             | 64  | 24 A                    | 8b    | -np 16      | 36 of 36 layers on A (21.3 of 24.0 GiB)
a server with a small cache     | 64  | 8 A                     | 8b    | -np 16 -kv 1 | 36 of 36 layers on A (5.8 of 8.0 GiB)
a limit of 3 GiB                | 64  | 24 A                    | 8b    | -limit 3    | 19 of 36 layers on A (2.9 of 24.0 GiB), 17 on the CPU; a context of 9216 of 40960 tokens fits (-c for another)
";

fn adapter(text: &str) -> GpuAdapter {
    let (text, binding) = match text.split_once('^') {
        Some((text, mib)) => (text, mib.parse::<u64>().unwrap() * MIB),
        None => (text, 4 * GIB - 4),
    };
    let words: Vec<&str> = text.split(' ').collect();
    let gib = |text: &str| text.parse::<f64>().ok().map(|n| (n * GIB as f64) as u64);
    let name = (*words.last().unwrap()).to_string();
    let plain = GpuAdapter { name, binding, ..GpuAdapter::default() };
    let old = Some("its driver is too old".to_string());
    match words[0] {
        "soft" => GpuAdapter { is_software: true, ..plain },
        "old" => GpuAdapter { has_own_memory: true, fault: old, ..plain },
        "shared" => GpuAdapter { memory: gib(words[1]), ..plain },
        own => {
            let (memory, free) = own.split_once('/').map_or((own, None), |(m, f)| (m, gib(f)));
            let memory = gib(memory);
            let free = free.or(memory.map(|m| m / 10 * 9));
            GpuAdapter { has_own_memory: true, memory, free, ..plain }
        }
    }
}

/// Layers of attention with a window, or without.
fn model(name: &str) -> ModelNeeds {
    // Layers, MiB of one, of its experts, bytes of a position, MiB of the head, context.
    let (layers, weights, experts, row, head, context) = match name {
        "8b" => (36, 112, 0, 4096, 330, 40_960),
        "70b" => (80, 480, 0, 4096, 820, 131_072),
        "moe" => (48, 20, 330, 2048, 170, 40_960),
        "gemma" => (26, 24, 0, 1024, 290, 32_768),
        "small" => (36, 5, 0, 1024, 20, 8192),
        other => panic!("{other}"),
    };
    let windows = if name == "gemma" { 22 } else { 0 };
    let layer = |at: usize| LayerNeeds {
        weights: weights * MIB,
        experts: experts * MIB,
        chosen: experts * MIB / 16,
        states: [row / 2; 2].map(|row| StateNeeds { group: usize::from(at < windows), row }).into(),
    };
    let group = |window: Option<usize>, count: usize| GroupLayout {
        kind: StateKind::Paged(window),
        row_bytes: row * count as u64,
    };
    let groups = [group(None, layers - windows), group(Some(512), windows)];
    ModelNeeds {
        stored: (layers as u64 * (weights + experts) + 2 * head) * MIB,
        layers: (0..layers).map(layer).collect(),
        head: head * MIB,
        embed: head * MIB,
        values: 200 * MIB,
        cache: KvLayout {
            page_len: 32,
            context,
            chunk: 512,
            groups: groups[..1 + usize::from(windows > 0)].to_vec(),
            sequences: 1,
            budget: None,
        },
    }
}

/// A row's choice, and what it was made from.
fn chosen(row: &str) -> (Choice, Machine, ModelNeeds, String) {
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let [_, free, adapters, name, asks, says] = cells[..] else { panic!("{row}") };
    let adapters = adapters.split(", ").filter(|text| !text.is_empty()).map(adapter).collect();
    let host = free.parse::<u64>().ok().map(|gib| HostMemory { free: gib * GIB });
    let mut machine = Machine { adapters, host, limits: Vec::new() };
    let (mut model, mut wanted) = (model(name), AskedDevices::default());
    for (flag, n) in asks.split(' ').zip(asks.split(' ').skip(1)).step_by(2) {
        let n: usize = n.parse().unwrap();
        match flag {
            "-ngl" => wanted.layers = Some(n),
            "-c" => (wanted.context, model.cache.context) = (Some(n), n),
            "-np" => model.cache.sequences = n,
            "-kv" => model.cache.budget = Some(n as u64 * GIB),
            "-limit" => machine.limits = vec![n as u64 * GIB],
            other => panic!("{other}"),
        }
    }
    (choose(&machine, &model, wanted), machine, model, says.to_string())
}

fn rows() -> impl Iterator<Item = &'static str> {
    TABLE.lines().filter(|line| !line.is_empty())
}

#[test]
fn machines_get_what_their_owners_would_have_asked_for() {
    assert!(rows().count() >= 30);
    let mut wrong = Vec::new();
    for row in rows() {
        let (Choice { line, .. }, _, _, says) = chosen(row);
        if line != says {
            wrong.push(format!("{}\n    says {line}\n  wanted {says}", row.trim()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is said to lie on a GPU is the sum of what lies there, and no more than it has.
#[test]
fn what_is_placed_fits() {
    let mut placed = 0;
    for row in rows() {
        let (choice, machine, model, _) = chosen(row);
        assert_eq!(choice.adapters.len(), choice.held.len(), "{row}");
        for (number, held) in choice.adapters.iter().zip(&choice.held) {
            placed += 1;
            let adapter = &machine.adapters[*number];
            let most = adapter.free.or(adapter.memory).or(machine.host.map(|h| h.free)).unwrap();
            assert!(*held <= most && *held > model.values, "{row}: {held} of {most}");
            assert!(adapter.fault.is_none() && !adapter.is_software, "{row}");
        }
        let context = choice.context.unwrap_or(model.cache.context);
        assert!(context <= model.cache.context && context >= model.cache.context.min(2048));
        if choice.adapters.is_empty() {
            assert!((choice.strategy, choice.kv_bytes) == (Strategy::OneDevice, None), "{row}");
        } else {
            assert!(choice.kv_bytes.is_some(), "{row}");
        }
    }
    assert!(placed > 20);
}

/// The strategies of some rows.
#[test]
fn layers_follow_each_other() {
    for (begins, strategy) in [
        ("a desktop with 24 GB", "one-device=gpu"),
        ("two unlike cards", "layers=cpu:24+gpu1:14+gpu:42+cpu:0"),
        ("8 GB, and a MoE", "layers=cpu:0+gpu/cpu:33+gpu:15"),
        ("8 GB, all layers but", "layers=cpu:0+gpu:36+cpu:0"),
        ("8 GB, twenty", "layers=cpu:16+gpu:20+cpu:0"),
    ] {
        let row = rows().find(|row| row.starts_with(begins)).unwrap();
        assert_eq!(chosen(row).0.strategy.to_string(), strategy, "{row}");
    }
}

/// More memory never places fewer layers, and a shorter context neither.
#[test]
fn more_memory_takes_more_layers() {
    let layers = |half_gibs: u64, context: usize| {
        let adapter = adapter(&format!("{} A", half_gibs as f64 / 2.0));
        let machine = Machine { adapters: vec![adapter], ..Machine::default() };
        let mut model = model("8b");
        model.cache.context = context;
        let choice =
            choose(&machine, &model, AskedDevices { layers: None, context: Some(context) });
        match choice.strategy {
            Strategy::OneNamed(_) => 37,
            Strategy::Layers(runs) => {
                runs.iter().filter(|run| run.device == "gpu").map(|run| run.layers).sum()
            }
            _ => 0,
        }
    };
    for context in [512, 4096, 40_960] {
        let each: Vec<usize> = (1..40).map(|n| layers(n, context)).collect();
        assert!(each.is_sorted() && each[0] == 0 && each[38] == 37, "{context}: {each:?}");
    }
    for n in 1..40 {
        assert!(layers(n, 512) >= layers(n, 40_960), "{n}");
    }
}

/// Keeps what is said of devices.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<String>>);

impl OpenObserver for Told {
    fn placed(&self, sentence: &str) {
        self.0.lock().unwrap().push(sentence.to_string());
    }
}

/// A card with less than it said gets half; then the CPU computes. A card that is gone leaves it to the
/// CPU at once, and a damaged file to nobody.
#[test]
fn devices_that_fail_get_less_or_nothing() {
    let told = Arc::new(Told::default());
    let auto = Some(AutoDevices::default());
    let asked = OpenOptions {
        devices: DeviceOptions { auto, ..DeviceOptions::default() },
        observer: Some(told.clone()),
        ..OpenOptions::default()
    };
    let chosen_by = |asked: &OpenOptions| {
        let mut chosen = asked.clone();
        chosen.devices.devices = vec!["gpu:0".parse().unwrap(), "cpu".parse().unwrap()];
        chosen.devices.auto.as_mut().unwrap().most = Some(8 * GIB);
        chosen
    };
    let memory = Error::Device(DeviceError::Memory { what: "weights".into(), bytes: 7 });
    let chosen = chosen_by(&asked);
    let half = asked.after(&chosen, "m", &memory).unwrap();
    assert_eq!(half.devices.auto.as_ref().unwrap().most, Some(4 * GIB));
    let gone = Error::Engine(EngineError::Device(DeviceError::Gone("gpu".into())));
    for cpu in [half.after(&chosen_by(&half), "m", &memory), asked.after(&chosen, "m", &gone)] {
        assert_eq!(cpu.unwrap().devices.auto.unwrap().layers, Some(0));
    }
    let said = told.0.lock().unwrap().clone();
    let [less, none, lost] = &said[..] else { panic!("{said:?}") };
    assert!(
        less.starts_with("m: no memory for weights") && less.contains("half as much"),
        "{less}"
    );
    assert!(none.starts_with("m: the CPU computes: no memory for weights"), "{none}");
    assert!(lost.starts_with("m: the CPU computes: device gpu"), "{lost}");
    let damaged = DeviceError::Weight { name: "w".into(), why: "it is damaged".into() };
    assert!(asked.after(&chosen, "m", &damaged.into()).is_none());
    // Nothing was chosen.
    assert!(asked.after(&asked, "m", &memory).is_none());
}
