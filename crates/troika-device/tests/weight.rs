//! Weights: ranges of rows, and their packed forms. Requests to compile several graphs.

#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use troika_device::*;
use troika_graph::{DType, Op, Subgraph, SubgraphBuilder};

/// A weight of 10 rows of 4 bytes.
struct Ten;

fn ten() -> WeightData {
    let bytes = WeightBytes::owned((0..40).collect());
    WeightData { dtype: DType::F32, rows: 10, cols: 1, bytes }
}

impl WeightSource for Ten {
    fn weight(&self, _: &str) -> Result<WeightData, DeviceError> {
        Ok(ten())
    }

    fn packed(
        &self,
        _: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let mut bytes = vec![0; layout.bytes(10).unwrap()];
        pack(&ten(), &mut bytes)?;
        Ok(Packed { bytes: WeightBytes::owned(bytes), stored: false })
    }
}

#[test]
fn rows_of_a_weight() {
    let rows = ten().rows(3..5).unwrap();
    assert_eq!((rows.rows, rows.cols, &rows.bytes[..]), (2, 1, &ten().bytes[12..20]));
    assert_eq!(ten().rows(10..10).unwrap().bytes.len(), 0);
    for (start, end) in [(0, 11), (5, 3), (usize::MAX, usize::MAX), (0, usize::MAX)] {
        assert!(ten().rows(start..end).is_none(), "{start}..{end}");
    }
    let short = WeightData { rows: 11, ..ten() };
    assert!(short.rows(10..11).is_none());
}

#[test]
fn packed_rows_are_those_of_the_whole_form_where_panels_begin() {
    let most = AtomicUsize::new(0);
    let pack = |data: &WeightData, out: &mut [u8]| {
        most.fetch_max(data.rows, Ordering::Relaxed);
        out[..data.bytes.len()].copy_from_slice(&data.bytes);
        Ok(())
    };
    let layout = PackLayout { name: "fours", rows: 4, panel: 16, keep: true };
    let of = |range| Ten.packed_rows("ten", range, layout, &pack).map(|p| p.bytes.to_vec());
    assert_eq!(of(4..10).unwrap(), [&ten().bytes[16..], &[0; 8]].concat());
    assert_eq!(most.swap(0, Ordering::Relaxed), 10);
    assert_eq!(of(3..5).unwrap(), [&ten().bytes[12..20], &[0; 8]].concat());
    assert_eq!(most.swap(0, Ordering::Relaxed), 2);
    for range in [12..14, 3..11, 8..usize::MAX] {
        assert!(of(range.clone()).unwrap_err().to_string().contains("does not have rows"));
    }
}

fn graph(name: &str) -> Subgraph {
    let mut b = SubgraphBuilder::new(name, 1);
    let x = b.input("x", 4, DType::F32);
    let y = b.op("y", Op::Add, &[x, x], 4);
    b.output(y);
    b.finish().unwrap()
}

#[test]
fn each_graph_is_made_refused_or_left_out() {
    let graphs = ["a", "b", "c"].map(graph);
    let graphs: Vec<&Subgraph> = graphs.iter().collect();
    for (stop_at, says) in [
        (4, ["", "b is none of mine", "c is none of mine"]),
        (2, ["", "b is none of mine", "the run was cancelled"]),
        (0, ["the run was cancelled"; 3]),
    ] {
        let report_progress = |done: usize| done < stop_at;
        let request =
            CompileRequest { graphs: &graphs, weights: &Ten, report_progress: &report_progress };
        let made = request.each(|g| match &*g.name {
            "a" => Ok(Arc::new(Executable::new((), 0))),
            name => Err(DeviceError::Gone(format!("{name} is none of mine"))),
        });
        let said = made.iter().map(|r| r.as_ref().map_or_else(|e| e.to_string(), |_| "".into()));
        assert!(said.zip(says).all(|(said, says)| said.contains(says)), "{stop_at}: {made:?}");
    }
}
