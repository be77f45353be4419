//! Where events lie on the host's clock. Most profilers say how long something took, and not when.

use std::time::Duration;

use super::event::{Event, Events, Role, Unit};

/// From when to when, by the engine's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    pub start: Duration,
    pub end: Duration,
}

impl Window {
    fn length(self) -> Duration {
        self.end.saturating_sub(self.start)
    }

    /// The middle of it.
    fn middle(self, length: Duration) -> Window {
        let length = length.min(self.length());
        let start = self.start + (self.length() - length) / 2;
        Window { start, end: start + length }
    }

    /// What lies in it.
    fn clip(self, start: Duration, length: Duration) -> Window {
        let start = start.clamp(self.start, self.end.max(self.start));
        Window { start, end: (start + length).min(self.end).max(start) }
    }

    fn first(self) -> Window {
        Window { start: self.start, end: self.start }
    }
}

/// Where an event lies, and by which rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacedEvent {
    pub at: Window,
    pub rule: &'static str,
}

/// The profiler has a clock; the run as a whole lies in the middle of the host's span.
const BY_ITS_CLOCK: &str = "by the profiler's clock";
/// Only the length is known.
const MIDDLE: &str = "in the middle, as long as it says";
/// Only a share of the whole is known.
const IN_ORDER: &str = "in order, in proportion to its value";
/// It says how much of what it is part of goes on in some way.
const SHARE: &str = "at the start of its node, in proportion to its value";
/// It is an amount, and no time.
const AMOUNT: &str = "at the start, an amount";

/// Lays lengths one behind another into a window, in proportion, so that all of them are as long
/// as the window, or as long as their share of `all` if that is more than their sum.
pub(super) fn lay(window: Window, lengths: &[u64], all: u64) -> Vec<Window> {
    let sum: u128 = lengths.iter().map(|l| u128::from(*l)).sum();
    let (all, whole) = (sum.max(u128::from(all)).max(1), window.length().as_nanos());
    let mut behind = 0;
    let mut edge = |length: u64| {
        behind += u128::from(length);
        window.start + nanos(whole * behind / all)
    };
    let mut start = window.start;
    let each = lengths.iter().map(|length| {
        let end = edge(*length);
        Window { start: std::mem::replace(&mut start, end), end }
    });
    each.collect()
}

fn nanos(n: u128) -> Duration {
    Duration::from_nanos(u64::try_from(n).unwrap_or(u64::MAX))
}

/// Places the events of a stage in the host's span of it.
pub(super) fn place(window: Window, events: &Events) -> Vec<PlacedEvent> {
    let all = &events.all;
    let micros = |event: &Event| Duration::from_micros(event.value);
    let whole = match all.get(events.whole) {
        Some(event) if event.unit == Unit::Us => window.middle(micros(event)),
        _ => window,
    };
    let mut places: Vec<Option<PlacedEvent>> = vec![None; all.len()];
    let parents = parents(all);
    for (i, event) in all.iter().enumerate() {
        let place = |at, rule| Some(PlacedEvent { at, rule });
        if let Some(at) = event.at_us {
            let start = whole.start + Duration::from_micros(at);
            places[i] = place(whole.clip(start, length(event, all)), BY_ITS_CLOCK);
        } else if event.depth == 0 {
            places[i] = match &event.unit {
                Unit::Us => place(whole.middle(micros(event)), MIDDLE),
                Unit::Cycles => {
                    // The same in microseconds says how long it took.
                    let same = all.iter().find(|e| e.unit == Unit::Us && e.name == event.name);
                    place(same.map_or(whole, |same| whole.middle(micros(same))), MIDDLE)
                }
                _ => place(whole.first(), AMOUNT),
            };
        } else if places[i].is_none() {
            let parent = parents[i];
            let frame = parent.and_then(|p| places[p]).map_or(whole, |place| place.at);
            let is_part = |j: &usize| parents[*j] == parent && all[*j].depth == event.depth;
            let lies_apart = |j: &usize| all[*j].role == Role::Beside || all[*j].at_us.is_some();
            let parent = parent.map(|p| &all[p]);
            if event.role == Role::Beside {
                places[i] = Some(lay_share(frame, parent, event));
                continue;
            }
            // All parts of one event at once.
            let parts: Vec<usize> =
                (i..all.len()).filter(|j| is_part(j) && !lies_apart(j)).collect();
            lay_parts(frame, parent, all, &parts, &mut places);
        }
    }
    places
        .into_iter()
        .map(|p| p.unwrap_or(PlacedEvent { at: whole.first(), rule: AMOUNT }))
        .collect()
}

/// How long an event is. Of cycles, microseconds are known where the device tells both of its work.
fn length(event: &Event, all: &[Event]) -> Duration {
    let both = |cycles: &Event| {
        let same = |e: &&Event| e.unit == Unit::Us && e.depth == 0 && e.name == cycles.name;
        let is_whole = cycles.unit == Unit::Cycles && cycles.depth == 0 && cycles.value > 0;
        all.iter().find(same).filter(|_| is_whole).map(|us| (us.value, cycles.value))
    };
    match event.unit {
        Unit::Us => Duration::from_micros(event.value),
        Unit::Cycles => all.iter().find_map(both).map_or(Duration::ZERO, |(us, cycles)| {
            nanos(u128::from(event.value) * u128::from(us) * 1000 / u128::from(cycles))
        }),
        _ => Duration::ZERO,
    }
}

/// Places what is said of an event as a share of it.
fn lay_share(frame: Window, parent: Option<&Event>, event: &Event) -> PlacedEvent {
    match parent.filter(|parent| event.unit.lasts() && event.unit == parent.unit) {
        Some(parent) => {
            let at = lay(frame, &[event.value], parent.value).first().copied();
            PlacedEvent { at: at.unwrap_or(frame.first()), rule: SHARE }
        }
        None => PlacedEvent { at: frame.first(), rule: AMOUNT },
    }
}

/// For each event the one that it is a part of.
fn parents(all: &[Event]) -> Vec<Option<usize>> {
    let mut open: Vec<usize> = Vec::new();
    let each = all.iter().enumerate().map(|(i, event)| {
        open.retain(|p| all[*p].depth < event.depth);
        let parent = open.last().copied();
        open.push(i);
        parent
    });
    each.collect()
}

/// Places the parts of an event one behind another.
fn lay_parts(
    frame: Window,
    parent: Option<&Event>,
    all: &[Event],
    parts: &[usize],
    places: &mut [Option<PlacedEvent>],
) {
    let units = || parts.iter().map(|i| &all[*i].unit).filter(|unit| unit.lasts());
    let of_parent = parent.map(|p| &p.unit).filter(|unit| units().any(|u| u == *unit));
    let unit = of_parent.or_else(|| units().next());
    // The parts may be less than the whole.
    let least = parent.filter(|_| of_parent.is_some()).map_or(0, |p| p.value);
    let length = |i: &usize| if Some(&all[*i].unit) == unit { all[*i].value } else { 0 };
    let lengths: Vec<u64> = parts.iter().map(length).collect();
    for (i, at) in parts.iter().zip(lay(frame, &lengths, least)) {
        let rule = if Some(&all[*i].unit) == unit { IN_ORDER } else { AMOUNT };
        places[*i] = Some(PlacedEvent { at, rule });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::event::{Event, Events, Stage, Unit};
    use super::super::qnn;
    use super::super::replay::QNN_RECORDING as RECORDED;
    use super::{Window, lay, place};

    fn window(start: u64, end: u64) -> Window {
        let [start, end] = [start, end].map(Duration::from_micros);
        Window { start, end }
    }

    #[test]
    fn events_lie_in_their_run_in_order_and_side_by_side() {
        let all = qnn::read(RECORDED.as_bytes(), usize::MAX).unwrap();
        // A host's span that is longer than the run, shorter, and none.
        for host in [window(1000, 20_000), window(7, 1000), window(5, 5)] {
            for events in all.opening.iter().chain(&all.runs) {
                let places = place(host, events);
                assert_eq!(places.len(), events.all.len());
                let inside = |at: Window| host.start <= at.start && at.end <= host.end;
                assert!(places.iter().all(|p| inside(p.at) && p.at.start <= p.at.end));
                let parts: Vec<_> =
                    events.all.iter().zip(&places).filter(|(e, _)| e.depth == 1).collect();
                for pair in parts.windows(2) {
                    assert_eq!(pair[0].1.at.end, pair[1].1.at.start, "{pair:?}");
                }
            }
        }
    }

    #[test]
    fn lengths_go_by_cycles() {
        let all = qnn::read(RECORDED.as_bytes(), usize::MAX).unwrap();
        let (events, host) = (&all.runs[0], window(0, 20_000));
        let places = place(host, events);
        let whole = places[events.whole].at;
        assert_eq!(whole.length(), Duration::from_micros(12_536), "as long as it says");
        assert_eq!(whole.start, (host.length() - whole.length()) / 2);
        let accelerator = events.all.iter().position(|e| e.unit == Unit::Us && e.value == 12_383);
        let accelerator = places[accelerator.unwrap()].at;
        let nodes: Vec<_> = events.all.iter().zip(&places).filter(|(e, _)| e.depth == 1).collect();
        assert_eq!(nodes[0].1.at.start, accelerator.start);
        assert_eq!(nodes[5].1.at.end, accelerator.end);
        for (event, at) in nodes {
            let share = event.value as f64 / 139_123.0 * accelerator.length().as_secs_f64();
            assert!((at.at.length().as_secs_f64() - share).abs() < 3e-9, "{event:?} {at:?}");
        }
        // What the emulator says to be longer than its run is cut to it.
        let power = events.all.iter().position(|e| e.name.contains("power on")).unwrap();
        assert_eq!(places[power].at, whole);
    }

    #[test]
    fn deeper_parts_and_other_units_have_a_place() {
        let event = |depth, value, unit| Event::of_qnn("part", depth, value, unit, 0);
        let all = vec![
            event(0, 100, Unit::Us),
            event(1, 10, Unit::Us),
            event(2, 3, Unit::Cycles),
            event(2, 9, Unit::Bytes),
            event(2, 1, Unit::Cycles),
            event(1, 70, Unit::Us),
            event(0, 5, Unit::Count),
        ];
        let places = place(window(0, 100), &Events { stage: Stage::Execute, whole: 0, all });
        let expected = [(0, 100), (0, 10), (0, 7), (7, 7), (7, 10), (10, 80), (0, 0)];
        for (place, (start, end)) in places.iter().zip(expected) {
            let [from, to] = [place.at.start, place.at.end].map(|t| t.as_nanos() / 1000);
            assert_eq!((from, to), (start, end), "{places:?}");
        }
    }

    #[test]
    fn events_with_times_lie_by_the_clock() {
        let event = Event::of_qnn;
        let all = vec![
            event("work", 0, 400, Unit::Cycles, 0),
            event("a", 1, 100, Unit::Cycles, 1010),
            event("b", 1, 40, Unit::Cycles, 0),
            event("work", 0, 80, Unit::Us, 1005),
            event("run", 0, 100, Unit::Us, 1000),
        ];
        let places = place(window(50, 150), &Events::by_clock(Stage::Execute, 4, all));
        let at = |i: usize| (places[i].at.start.as_micros(), places[i].at.end.as_micros());
        assert_eq!([at(1), at(3), at(4)], [(60, 80), (55, 135), (50, 150)], "{places:?}");
        assert!([1, 3, 4].iter().all(|i| places[*i].rule == super::BY_ITS_CLOCK));
        // One without a time lies where it would without a clock.
        assert_eq!((at(2), places[2].rule), ((60, 68), super::IN_ORDER));
    }

    #[test]
    fn nothing_and_large_numbers_are_laid() {
        assert!(lay(window(0, 9), &[], 0).is_empty());
        assert_eq!(lay(window(3, 9), &[0, 0], 0), [window(3, 3); 2]);
        assert_eq!(lay(window(0, 8), &[u64::MAX, u64::MAX], 5)[1], window(4, 8));
    }
}
