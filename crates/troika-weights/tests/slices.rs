//! Packed forms of some rows of a weight: views of the whole form where panels allow that.

#![allow(clippy::panic, clippy::unwrap_used)]
#![allow(missing_docs)]

use std::sync::atomic::{AtomicUsize, Ordering};

use troika_device::{DeviceError, PackLayout, WeightData, WeightSource};
use troika_graph::DType;
use troika_model::{families, presets, spec};
use troika_weights::{Quant, WeightStore};

const PANEL: usize = 16;

fn store() -> WeightStore {
    let config = presets::config("qwen3-moe-tiny").unwrap();
    let model = families::from_config(&config).unwrap();
    WeightStore::synthetic(&model.spec, DType::Q8_0, 7, Quant::None)
}

#[test]
fn rows_that_begin_a_panel_are_a_view_of_the_whole_form() {
    let store = store();
    let key = spec::Key { role: spec::WeightRole::Q, layer: Some(0), index: None };
    let (name, shape) = (key.to_string(), store.shape(key).unwrap());
    let (rows, row) = (shape.rows, shape.dtype.row_bytes(shape.cols).unwrap());
    assert!(rows > 5 * PANEL && rows.is_multiple_of(PANEL));
    let packed = AtomicUsize::new(0);
    let pack = |data: &WeightData, out: &mut [u8]| {
        packed.fetch_add(data.rows, Ordering::Relaxed);
        out[..data.bytes.len()].copy_from_slice(&data.bytes);
        Ok(())
    };
    let layout = PackLayout { name: "panels", rows: PANEL, panel: PANEL * row, keep: true };
    let of = |range| store.packed_rows(&name, range, layout, &pack).map(|p| p.bytes);
    let raw = store.weight(&name).unwrap().bytes;
    // One part is requested first, then the other, then all: one form, packed once.
    let second = of(2 * PANEL..rows).unwrap();
    let first = of(0..2 * PANEL).unwrap();
    let whole = store.packed(&name, layout, &pack).unwrap().bytes;
    assert_eq!(packed.load(Ordering::Relaxed), rows);
    assert_eq!((&whole[..2 * PANEL * row], &whole[2 * PANEL * row..]), (&first[..], &second[..]));
    assert_eq!(first.as_ptr(), whole.as_ptr());
    assert_eq!(&whole[..], &raw[..]);
    assert_eq!(store.report().packed["panels"], (rows * row) as u64);
    // The end may be within a panel, whose other rows are then included.
    let cut = of(PANEL..PANEL + 3).unwrap();
    assert_eq!(&cut[..], &raw[PANEL * row..2 * PANEL * row]);
    assert_eq!(store.report().packed.values().sum::<u64>(), (rows * row) as u64);
    // Rows that begin within a panel are packed separately, once, and counted.
    for _ in 0..2 {
        let own = of(3..3 + PANEL + 1).unwrap();
        assert_eq!(&own[..(PANEL + 1) * row], &raw[3 * row..(4 + PANEL) * row]);
        assert_eq!(own.len(), 2 * PANEL * row);
        assert_eq!(packed.load(Ordering::Relaxed), rows + PANEL + 1);
    }
    let more = (rows + 2 * PANEL) * row;
    assert_eq!(store.report().packed.values().sum::<u64>(), more as u64);
    for range in [0..rows + 1, rows + PANEL..rows + 2 * PANEL, 0..usize::MAX] {
        let e = of(range.clone()).unwrap_err();
        let DeviceError::Weight { why, .. } = &e else { panic!("{e}") };
        assert!(why.contains(&format!("has {rows} rows")), "{range:?}: {e}");
    }
}

#[test]
fn a_form_that_a_device_copies_is_not_kept() {
    let store = store();
    let key = spec::Key { role: spec::WeightRole::Q, layer: Some(0), index: None };
    let (name, shape) = (key.to_string(), store.shape(key).unwrap());
    let packed = AtomicUsize::new(0);
    let pack = |data: &WeightData, out: &mut [u8]| {
        packed.fetch_add(data.rows, Ordering::Relaxed);
        out[..data.bytes.len()].copy_from_slice(&data.bytes);
        Ok(())
    };
    let panel = PANEL * shape.dtype.row_bytes(shape.cols).unwrap();
    let of = |keep| {
        let layout = PackLayout { name: "panels", rows: PANEL, panel, keep };
        store.packed(&name, layout, &pack).unwrap().bytes
    };
    let counted = || store.report().packed.values().sum::<u64>();
    // Each upload makes it anew; nothing is left behind.
    for times in 1..=2 {
        let bytes = of(false);
        assert_eq!((bytes.len() as u64, counted()), (shape.rows as u64 / 16 * panel as u64, 0));
        assert_eq!(packed.load(Ordering::Relaxed), times * shape.rows);
    }
    // What another device keeps is there for an upload, too.
    let kept = of(true);
    assert_eq!(of(false).as_ptr(), kept.as_ptr());
    assert_eq!((packed.load(Ordering::Relaxed), counted()), (3 * shape.rows, kept.len() as u64));
}

#[test]
fn equal_weights_have_equal_digests() {
    let config = presets::config("qwen3-moe-tiny").unwrap();
    let model = families::from_config(&config).unwrap();
    let of = |seed, quant| WeightStore::synthetic(&model.spec, DType::F32, seed, quant);
    let lazy = |seed| WeightStore::synthetic_lazy(&model.spec, DType::F32, seed, Quant::Q8);
    let name = |i| spec::Key { role: spec::WeightRole::Q, layer: Some(i), index: None }.to_string();
    let digest = |store: WeightStore, layer| store.digest(&name(layer)).unwrap();
    for quant in [Quant::None, Quant::Q8] {
        let first = digest(of(7, quant), 0);
        assert_eq!(first, digest(of(7, quant), 0));
        assert!(first != digest(of(8, quant), 0) && first != digest(of(7, quant), 1));
    }
    assert_eq!(digest(lazy(7), 0), digest(lazy(7), 0));
    assert_ne!(digest(lazy(7), 0), digest(lazy(8), 0));
    assert_eq!(store().digest("nothing"), None);
}

/// Weights made on demand equal those made at once.
#[test]
fn lazy_weights_are_the_same() {
    let config = presets::config("qwen3-moe-tiny").unwrap();
    let model = families::from_config(&config).unwrap();
    for (dtype, quant) in
        [(DType::BF16, Quant::None), (DType::Q4_K, Quant::None), (DType::F32, Quant::Q8)]
    {
        let ready = WeightStore::synthetic(&model.spec, dtype, 7, quant);
        let lazy = WeightStore::synthetic_lazy(&model.spec, dtype, 7, quant);
        assert!(ready.report().owned > 0);
        assert_eq!(lazy.report().owned, 0);
        assert_eq!(ready.classes().len(), lazy.classes().len());
        for need in spec::weight_requirements(&model.spec) {
            assert_eq!(ready.shape(need.key), lazy.shape(need.key));
            let name = need.key.to_string();
            let (a, b) = (ready.weight(&name).unwrap(), lazy.weight(&name).unwrap());
            assert_eq!((a.dtype, &a.bytes[..]), (b.dtype, &b.bytes[..]), "{name}");
        }
    }
}
