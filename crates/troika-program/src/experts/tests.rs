use proptest::prelude::*;
use troika_plan::{Dispatch, ExpertGroupPlan, ExpertSplit, Overflow};

use super::{ExpertRows, LEFT_OUT, LayerCounts, PackedRun, RoutedShape, expected_pairs};

const EXPERTS: usize = 8;
const TOP_K: usize = 3;

fn split(groups: &[(Vec<usize>, usize)], overflow: Overflow, dispatch: Dispatch) -> ExpertSplit {
    let group = |(experts, capacity): &(Vec<usize>, usize)| {
        ExpertGroupPlan::new("npu", experts.clone(), *capacity)
    };
    ExpertSplit {
        groups: groups.iter().map(group).collect(),
        overflow,
        dispatch,
        expected: Vec::new(),
    }
}

fn rows(split: &ExpertSplit, experts: usize, pairs: usize, align: usize) -> ExpertRows {
    let rows = ExpertRows::room(split, pairs, align);
    let shape = RoutedShape { experts, top_k: TOP_K, rows, align, pairs, most_rest: 10 };
    ExpertRows::new(split, shape)
}

/// Groups, their capacity, overflow, dispatch, alignment, and the experts of each chunk's rows.
#[derive(Clone, Debug)]
struct Case {
    groups: Vec<(Vec<usize>, usize)>,
    overflow: Overflow,
    dispatch: Dispatch,
    align: usize,
    chunks: Vec<Vec<[usize; TOP_K]>>,
}

fn cases() -> impl Strategy<Value = Case> {
    let row = Just((0..EXPERTS).collect::<Vec<_>>()).prop_shuffle();
    let row = (row, any::<bool>()).prop_map(|(all, skewed)| {
        // Half of all rows choose the same experts.
        if skewed { [0, 1, 2] } else { [all[0], all[1], all[2]] }
    });
    let chunks = prop::collection::vec(prop::collection::vec(row, 1..9), 1..5);
    // Experts may be in several groups, in any order.
    let order = Just((0..EXPERTS).collect::<Vec<_>>()).prop_shuffle();
    let groups = prop::collection::vec((order, 1..4_usize, 1..7_usize), 1..5);
    let groups = groups.prop_map(|groups| {
        let some = |(mut order, n, capacity): (Vec<usize>, usize, usize)| {
            order.truncate(n);
            (order, capacity)
        };
        groups.into_iter().map(some).collect::<Vec<_>>()
    });
    let overflow = prop::sample::select(Overflow::ALL.to_vec());
    let dispatch = prop::sample::select(Dispatch::ALL.to_vec());
    (groups, overflow, dispatch, 1..5_usize, chunks).prop_map(
        |(mut groups, mut overflow, dispatch, align, chunks)| {
            if dispatch == Dispatch::LayerMajor {
                overflow = Overflow::Cpu;
            }
            if overflow == Overflow::Pad {
                groups.iter_mut().for_each(|g| g.1 = 8);
            }
            Case { groups, overflow, dispatch, align, chunks }
        },
    )
}

/// Which pair, by its chunk and number, has a row.
type Holders = Vec<Option<(usize, usize)>>;

/// Checks the runs of some chunks against the places of their pairs.
fn check(
    case: &Case,
    holders: &Holders,
    runs: &[PackedRun],
    experts_of: &dyn Fn(usize, usize) -> usize,
) {
    let mut ran = vec![false; holders.len()];
    for run in runs {
        for row in run.rows.clone() {
            assert!(!std::mem::replace(&mut ran[row], true), "row {row} runs twice");
            let free = run.unfilled.iter().any(|rows| rows.contains(&row));
            let Some((chunk, pair)) = holders[row] else {
                assert!(free, "row {row} has no pair and is not cleared");
                continue;
            };
            assert!(!free, "row {row} is cleared");
            let expert = experts_of(chunk, pair);
            match run.group {
                Some(g) => {
                    let (experts, capacity) = &case.groups[g];
                    assert_eq!(run.rows.start % case.align, 0);
                    assert_eq!(experts[(row - run.rows.start) / capacity], expert);
                }
                None => assert!(run.rows.len() <= 10),
            }
        }
    }
    let runs = |(row, holder): (usize, &Option<_>)| holder.is_none() || ran[row];
    assert!(holders.iter().enumerate().all(runs), "a pair did not run");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    /// Every pair has a row of its own where its expert runs, once, unless it is left out.
    #[test]
    fn each_pair_runs_where_its_expert_does(case in cases()) {
        let split = split(&case.groups, case.overflow, case.dispatch);
        let all: usize = case.chunks.iter().map(|c| c.len() * TOP_K).sum();
        let most = case.chunks.iter().map(|c| c.len() * TOP_K).max().unwrap_or(0);
        let shares = case.dispatch == Dispatch::LayerMajor;
        let mut packed = rows(&split, EXPERTS, if shares { all } else { most }, case.align);
        let room = ExpertRows::room(&split, if shares { all } else { most }, case.align);
        let of = |chunk: usize, pair: usize| case.chunks[chunk][pair / TOP_K][pair % TOP_K];
        // Twice, since buffers are not empty the second time.
        for _ in 0..2 {
            let mut counts = LayerCounts::default();
            let (mut holders, mut runs): (Holders, Vec<PackedRun>) = (vec![None; room], Vec::new());
            let (mut dropped, mut all_runs) = (0, Vec::new());
            for (chunk, choices) in case.chunks.iter().enumerate() {
                let ids: Vec<i32> = choices.iter().flatten().map(|e| *e as i32).collect();
                let place = if shares { (chunk, chunk + 1 == case.chunks.len()) } else { (0, true) };
                let saliency: Vec<f32> = (0..choices.len()).map(|row| (row * 5 % 7) as f32).collect();
                runs.extend(packed.route(place, &ids, Some(&saliency), &mut counts).unwrap());
                let places = packed.places(place.0).to_vec();
                for (pair, row) in places.iter().enumerate() {
                    if *row == LEFT_OUT {
                        dropped += 1;
                        let kept = |other: &usize| {
                            of(chunk, *other) == of(chunk, pair) && places[*other] != LEFT_OUT
                        };
                        let least = (0..places.len()).filter(kept).map(|p| saliency[p / TOP_K]);
                        let own = saliency[pair / TOP_K];
                        prop_assert!(least.fold(f32::MAX, f32::min) >= own, "a better row was left out");
                        continue;
                    }
                    let holder = holders[*row as usize].replace((chunk, pair));
                    prop_assert!(holder.is_none(), "two pairs in row {row}");
                }
                if !shares {
                    check(&case, &holders, &runs, &of);
                    holders.fill(None);
                    all_runs.append(&mut runs);
                }
            }
            if shares {
                check(&case, &holders, &runs, &of);
                all_runs = runs;
            }
            prop_assert!(dropped == 0 || case.overflow == Overflow::Prune);
            let sum = |of: fn(&super::ExpertCounts) -> u64| counts.experts.iter().map(of).sum::<u64>();
            prop_assert_eq!(sum(|e| e.rows), all as u64);
            prop_assert_eq!(sum(|e| e.dropped), dropped as u64);
            prop_assert!(sum(|e| e.grouped) + sum(|e| e.overflow) + dropped as u64 <= all as u64);
            if case.overflow == Overflow::Pad {
                prop_assert_eq!(sum(|e| e.overflow), 0);
            }
            // Padding is what runs of groups have beyond their rows.
            let mut room = 0;
            for run in &all_runs {
                room += run.group.map_or(0, |_| run.rows.len() as u64);
            }
            prop_assert_eq!(sum(|e| e.grouped) + sum(|e| e.padding), room);
        }
    }
}

proptest! {
    /// Every pair has an expert, and each expert its share of them, to a pair.
    #[test]
    fn pairs_are_spread_as_expected(
        expected in prop::collection::vec(0u32..1_000_000, 1..70),
        pairs in 0usize..10_000,
    ) {
        let split = ExpertSplit { expected: expected.clone(), ..split(&[], Overflow::Cpu, Dispatch::PerChunk) };
        let shares = expected_pairs(&split, expected.len(), pairs);
        prop_assert_eq!(shares.iter().sum::<usize>(), pairs);
        let all: u64 = expected.iter().map(|part| u64::from(*part)).sum();
        for (part, share) in expected.iter().zip(shares) {
            let exact = match all {
                0 => pairs as f64 / expected.len() as f64,
                all => f64::from(*part) * pairs as f64 / all as f64,
            };
            prop_assert!((share as f64 - exact).abs() < 1.0, "{share} for {exact}");
        }
    }
}

/// What a run computes follows from what is expected: rows of the busy expert that its group has no
/// room for are others', and a group of experts that nobody chooses does not run.
#[test]
fn assumed_rows_are_those_that_are_expected() {
    let groups = [(vec![0, 1], 16), (vec![2, 3], 16)];
    let even = split(&groups, Overflow::Cpu, Dispatch::PerChunk);
    let skewed = ExpertSplit { expected: vec![8, 2, 0, 0, 2, 0, 0, 0], ..even.clone() };
    let runs = |split: &ExpertSplit| {
        let mut packed = rows(split, EXPERTS, 24 * TOP_K, 1);
        let mut counts = LayerCounts::default();
        let runs = packed.assume((0, true), 24, &mut counts).unwrap();
        let chosen: Vec<u64> = counts.experts.iter().map(|e| e.rows).collect();
        let of = |group| runs.iter().filter(|r| r.group == group).map(|r| r.rows.len()).sum();
        let [first, second, rest]: [usize; 3] = [of(Some(0)), of(Some(1)), of(None)];
        (chosen, [first, second, rest])
    };
    assert_eq!(runs(&even), (vec![9; 8], [32, 32, 36]));
    assert_eq!(runs(&skewed), (vec![48, 12, 0, 0, 12, 0, 0, 0], [32, 0, 32 + 12]));
}

/// Buffers of 64 rows for each of 128 experts, where each of 2048 rows, in chunks of 128, chooses 8
/// experts, some more often than others.
#[test]
fn full_buffers_run_and_few_are_padded() {
    let (experts, top_k, chunk, chunks, buffer) = (128, 8, 128, 16, 64);
    let groups: Vec<(Vec<usize>, usize)> = (0..experts).map(|e| (vec![e], buffer)).collect();
    let split = split(&groups, Overflow::Cpu, Dispatch::LayerMajor);
    let pairs = chunk * chunks * top_k;
    let rows = ExpertRows::room(&split, pairs, 1);
    let shape = RoutedShape { experts, top_k, rows, align: 1, pairs, most_rest: 1024 };
    let mut packed = ExpertRows::new(&split, shape);
    let (mut counts, mut runs) = (LayerCounts::default(), Vec::new());
    let mut state = 7_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for c in 0..chunks {
        let mut ids = Vec::new();
        for _ in 0..chunk {
            let mut row: Vec<usize> = Vec::new();
            while row.len() < top_k {
                // The lower of two is chosen: the first experts are three times as popular.
                let expert = next(experts).min(next(experts));
                if !row.contains(&expert) {
                    row.push(expert);
                }
            }
            ids.extend(row.iter().map(|e| *e as i32));
        }
        runs.extend(packed.route((c, c + 1 == chunks), &ids, None, &mut counts).unwrap());
    }
    let bound: u64 = counts.experts.iter().map(|e| e.rows.div_ceil(buffer as u64)).sum();
    let calls = counts.group_runs + counts.rest_runs;
    assert_eq!((calls, calls), (bound, runs.len() as u64), "no more often than rows need");
    let grouped: u64 = counts.experts.iter().map(|e| e.grouped).sum();
    let padding: u64 = counts.experts.iter().map(|e| e.padding).sum();
    let overflow: u64 = counts.experts.iter().map(|e| e.overflow).sum();
    assert_eq!(grouped + overflow, pairs as u64);
    assert_eq!(grouped + padding, counts.group_runs * buffer as u64);
    let fill = grouped as f64 / (grouped + padding) as f64;
    assert!(fill > 0.9, "{fill} of the rows of groups are in use");
    let partial = runs.iter().filter(|run| !run.unfilled.is_empty()).count();
    assert!(partial <= experts, "{partial} buffers were not full");
}

/// Rows of an expert by group, in the order of its groups.
fn rows_by_group(dispatch: Dispatch, rows: usize) -> (Vec<usize>, LayerCounts) {
    let split = split(&[(vec![0], 4), (vec![2, 0], 2)], Overflow::Cpu, dispatch);
    let room = ExpertRows::room(&split, rows, 1);
    let shape =
        RoutedShape { experts: 3, top_k: 1, rows: room, align: 1, pairs: rows, most_rest: 9 };
    let (mut packed, mut counts) = (ExpertRows::new(&split, shape), LayerCounts::default());
    let runs = packed.route((0, true), &vec![0; rows], None, &mut counts).unwrap();
    (runs.iter().filter(|r| r.group.is_some()).map(PackedRun::used).collect(), counts)
}

#[test]
fn groups_of_an_expert_fill_one_after_the_other() {
    for (rows, by_group, overflow) in [(3, &[3][..], 0), (5, &[4, 1], 0), (9, &[4, 2], 3)] {
        let (got, counts) = rows_by_group(Dispatch::PerChunk, rows);
        assert_eq!((&got[..], counts.experts[0].overflow), (by_group, overflow));
    }
    // Full ones run at once, and then it is the next one's turn.
    let (got, counts) = rows_by_group(Dispatch::LayerMajor, 15);
    assert_eq!((&got[..], counts.experts[0].overflow), (&[4, 2, 4, 2, 3][..], 0));
    assert_eq!((counts.experts[0].padding, counts.experts[2].padding), (1, 4));
}

#[test]
fn experts_that_do_not_exist_are_refused() {
    let split = split(&[(vec![0], 2)], Overflow::Cpu, Dispatch::PerChunk);
    let mut packed = rows(&split, EXPERTS, 6, 1);
    let mut counts = LayerCounts::default();
    for id in [-1, EXPERTS as i32] {
        let why = packed.route((0, true), &[0, id, 1], None, &mut counts).unwrap_err();
        assert!(why.contains(&format!("expert {id} is not among 8")), "{why}");
    }
    let why = packed.route((0, true), &[0; 9], None, &mut counts).unwrap_err();
    assert!(why.contains("9 pairs have room for 6 only"), "{why}");
    assert_eq!(packed.assume((0, true), 2, &mut counts).unwrap().len(), 2);
}
