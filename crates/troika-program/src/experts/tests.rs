use proptest::prelude::*;
use troika_plan::{Dispatch, ExpertGroupPlan, ExpertSplit, Overflow};

use super::{ExpertRows, LEFT_OUT, LayerCounts, PackedRun, RoutedShape};

const EXPERTS: usize = 8;
const TOP_K: usize = 3;

fn split(groups: &[(Vec<usize>, usize)], overflow: Overflow, dispatch: Dispatch) -> ExpertSplit {
    let group = |(experts, capacity): &(Vec<usize>, usize)| ExpertGroupPlan {
        device: "npu".into(),
        experts: experts.clone(),
        capacity: *capacity,
        standby: false,
    };
    ExpertSplit { groups: groups.iter().map(group).collect(), overflow, dispatch }
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
    let order = Just((0..EXPERTS).collect::<Vec<_>>()).prop_shuffle();
    let sizes = prop::collection::vec((1..4_usize, 1..7_usize), 1..4);
    let groups = (order, sizes).prop_map(|(order, sizes)| {
        let mut left = order.into_iter();
        let group = |(n, capacity)| (left.by_ref().take(n).collect::<Vec<_>>(), capacity);
        let groups: Vec<_> = sizes.into_iter().map(group).collect();
        groups.into_iter().filter(|(experts, _)| !experts.is_empty()).collect::<Vec<_>>()
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
            let mut dropped = 0;
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
                    runs.clear();
                }
            }
            if shares {
                check(&case, &holders, &runs, &of);
            }
            prop_assert!(dropped == 0 || case.overflow == Overflow::Prune);
            let sum = |of: fn(&super::ExpertCounts) -> u64| counts.experts.iter().map(of).sum::<u64>();
            prop_assert_eq!(sum(|e| e.rows), all as u64);
            prop_assert_eq!(sum(|e| e.dropped), dropped as u64);
            prop_assert!(sum(|e| e.grouped) + sum(|e| e.overflow) + dropped as u64 <= all as u64);
            if case.overflow == Overflow::Pad {
                prop_assert_eq!(sum(|e| e.overflow), 0);
            }
        }
    }
}

/// Buffers of 64 rows for each of 128 experts, 8 of which are chosen by each of 2048 rows in chunks
/// of 128, some more often than others.
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
    assert_eq!(counts.group_runs, bound, "an expert runs no more often than its rows need");
    assert_eq!((counts.rest_runs, runs.len() as u64), (0, bound));
    let partial = runs.iter().filter(|run| !run.unfilled.is_empty()).count();
    assert!(partial <= experts, "{partial} buffers were not full");
    let padding: u64 = counts.experts.iter().map(|e| e.padding).sum();
    assert_eq!(padding + pairs as u64, bound * buffer as u64);
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
