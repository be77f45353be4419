//! Targets about experts and profiles that are the same on every machine.

#![allow(clippy::unwrap_used)]

use troika_lab::reproduce;

#[test]
fn experts_are_predicted_and_cached_and_units_are_kept() {
    let report = reproduce(&["C04", "C05", "C07"].map(String::from)).unwrap();
    let results = report.json();
    assert_eq!(results.as_array().unwrap().len(), 3);
    for target in results.as_array().unwrap() {
        assert_eq!(target["pass"], true, "{target}");
    }
}
