//! Targets about experts and profiles that are the same on every machine.

#![allow(clippy::unwrap_used)]

use troika_lab::reproduce_on;

#[test]
fn experts_are_predicted_and_cached_and_units_are_kept() {
    let targets = ["C01", "C04", "C05", "C07", "M28"];
    let report = reproduce_on(&targets.map(String::from), None).unwrap();
    let results = report.json();
    assert_eq!(results.as_array().unwrap().len(), targets.len());
    for target in results.as_array().unwrap() {
        assert_eq!(target["pass"], true, "{target}");
    }
}

/// Whether reading ahead pays is a matter of the disk; in modelled time it is the same everywhere.
#[test]
fn reading_ahead_is_modelled_and_tried_on_the_disk() {
    let results = reproduce_on(&["C06".to_string()], None).unwrap().json();
    let said = results.to_string();
    for part in ["modelled, recorded, 50 % in memory", "this disk, 50 % in memory"] {
        assert!(said.contains(part), "{said}");
    }
}
