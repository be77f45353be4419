use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::{Access, AccessError, Buffer, Rect, SpaceId, View};

#[test]
fn readers_share_and_a_writer_is_alone() {
    let b = Buffer::zeroed(10).unwrap();
    let c = b.clone();
    assert_eq!(b.id(), c.id());
    {
        let (_x, _y) = (b.read().unwrap(), c.read().unwrap());
        assert!(b.write().is_err());
    }
    let mut w = b.write().unwrap();
    assert!(c.read().is_err());
    w.as_mut_slice::<f32>().copy_from_slice(&[1.0, 2.0]);
    drop(w);
    assert_eq!(c.read().unwrap().as_slice::<f32>(), &[1.0, 2.0]);
    assert_eq!(c.read().unwrap().as_ptr() as usize % 64, 0);
}

#[test]
fn a_claim_that_grows_excludes_others_and_not_itself() {
    let b = Buffer::zeroed(30).unwrap();
    let [first, second, third] = [0..10, 10..20, 20..30].map(Rect::bytes);
    let mut held = b.hold(&[(first, Access::Read)]).unwrap();
    let other = b.hold(&[(first, Access::Read), (third, Access::Write)]).unwrap();
    assert!(held.extend(&[(second, Access::Write), (third, Access::Read)]).is_err());
    assert!(b.claim(&[(second, Access::Write)]).is_ok(), "all or none");
    drop(other);
    held.extend(&[(first, Access::Write), (second, Access::Write)]).unwrap();
    held.extend(&[(second, Access::Write)]).unwrap();
    for rect in [first, second] {
        assert!(b.claim(&[(rect, Access::Read)]).is_err());
    }
    assert!(b.claim(&[(third, Access::Write)]).is_ok());
    drop(held);
    assert!(b.write().is_ok());
}

#[test]
fn views_lie_inside_of_their_buffer() {
    let b = Buffer::zeroed(100).unwrap();
    let view = |at, rows, bytes, stride| View::new(&b, at, (rows, bytes), stride);
    assert!(
        view(0, 10, 10, 10).is_ok() && view(10, 9, 5, 11).is_err() && view(7, 9, 5, 11).is_ok()
    );
    assert!(view(100, 0, 7, 7).is_ok() && view(100, 1, 0, 0).is_ok());
    for wrong in [
        view(0, 11, 10, 10),
        view(0, 2, 10, 9),
        view(101, 0, 1, 1),
        view(101, 1, 0, 0),
        view(usize::MAX, 1, 1, 1),
        view(0, usize::MAX, 1, 1),
        view(1, usize::MAX, 0, usize::MAX),
    ] {
        let text = wrong.unwrap_err().to_string();
        assert!(text.contains("buffer of 100 bytes"), "{text}");
    }
    let all = view(0, 10, 10, 10).unwrap();
    let part = all.rows(2..5).unwrap().columns(4..7).unwrap();
    assert_eq!(*part.rect(), Rect::new(24, 3, 3, 10).unwrap());
    assert_eq!(*part.rows(1..2).unwrap().rect(), Rect::new(34, 1, 3, 10).unwrap());
    assert!(all.rows(5..11).is_err() && all.columns(5..11).is_err() && part.rows(0..4).is_err());
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = (all.rows(5..4), all.columns(5..4));
    assert!(backwards.0.is_err() && backwards.1.is_err());
    assert_eq!(all.rows(10..10).unwrap().rect().rows(), 0);
    assert!(all.overlaps(&part) && !part.overlaps(&all.columns(0..4).unwrap()));
    assert!(!all.overlaps(&View::whole(&Buffer::zeroed(100).unwrap())), "another buffer");
}

#[test]
fn columns_are_written_side_by_side() {
    let b = Buffer::zeroed(3 * 16).unwrap();
    let all = View::dense(&b, 0, (3, 16)).unwrap();
    let (left, right) = (all.columns(0..4).unwrap(), all.columns(4..16).unwrap());
    let (mut l, mut r) = (left.write().unwrap(), right.write().unwrap());
    for i in 0..3 {
        l.row_mut::<i32>(i).unwrap().fill(7);
        r.row_mut::<i32>(i).unwrap().fill(i as i32);
    }
    assert_eq!(r.row::<i32>(1), Some(&[1, 1, 1][..]));
    assert!(l.as_slice::<i32>().is_none() && l.as_mut_slice::<i32>().is_none());
    assert!(l.row::<i32>(3).is_none() && l.row_mut::<i32>(3).is_none());
    assert_eq!(left.read().err(), Some(AccessError::Busy));
    assert!(all.read().is_err() && b.read().is_err() && b.write().is_err());
    drop(l);
    assert!(left.read().is_ok() && all.read().is_err());
    drop(r);
    let read = all.read().unwrap();
    let expected: Vec<i32> = (0..3).flat_map(|i| [7, i, i, i]).collect();
    assert_eq!(read.as_slice::<i32>(), Some(&expected[..]));
    // Rows that start inside an element give no slice.
    let odd = View::dense(&b, 2, (2, 6)).unwrap();
    assert!(odd.read().unwrap().row::<i32>(0).is_none());
    assert_eq!(odd.read().unwrap().row::<i16>(1).unwrap().len(), 3);
}

#[test]
fn a_task_claims_all_or_nothing_and_may_overlap_itself() {
    let b = Buffer::zeroed(100).unwrap();
    let (head, tail) = (Rect::bytes(0..60), Rect::bytes(50..100));
    let both = b.claim(&[(head, Access::Write), (tail, Access::Read)]).unwrap();
    assert!(b.claim(&[(Rect::bytes(60..70), Access::Write)]).is_err());
    assert!(b.claim(&[(Rect::bytes(60..70), Access::Read)]).is_ok());
    assert!(b.claim(&[(Rect::bytes(90..95), Access::Read), (head, Access::Read)]).is_err());
    drop(both);
    assert!(b.write().is_ok(), "what failed or ended claims nothing");
    assert!(b.claim(&[(Rect::bytes(90..500), Access::Write)]).is_ok());
}

/// Bytes of the model, and the most rows of a rectangle in it.
const BYTES: usize = 64;

fn rects() -> impl Strategy<Value = Rect> {
    (0..24_usize, 0..4_usize, 0..8_usize, 0..4_usize).prop_map(|(at, rows, bytes, gap)| {
        Rect::new(at, rows, bytes, [bytes, 8, 10, 12][gap].max(bytes)).unwrap()
    })
}

#[derive(Clone, Debug)]
enum Move {
    Claim(Vec<(Rect, bool)>),
    Drop(usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let claim = prop::collection::vec((rects(), any::<bool>()), 1..4).prop_map(Move::Claim);
    prop::collection::vec(prop_oneof![3 => claim, 2 => (0..8_usize).prop_map(Move::Drop)], 1..40)
}

/// The naive table: readers of each byte, and whether it is written.
#[derive(Default)]
struct Model {
    held: Vec<Vec<(Rect, bool)>>,
}

impl Model {
    fn uses(claim: &[(Rect, bool)], byte: usize, writes_only: bool) -> bool {
        let has = |r: &Rect| (0..r.rows()).any(|i| r.row(i).unwrap().contains(&byte));
        claim.iter().any(|(r, write)| (*write || !writes_only) && has(r))
    }

    /// Whether a claim conflicts at any byte.
    fn conflicts(&self, claim: &[(Rect, bool)]) -> bool {
        (0..BYTES).any(|byte| {
            let clash = |h: &Vec<(Rect, bool)>| {
                let (mine, theirs) = (Model::uses(claim, byte, true), Model::uses(h, byte, true));
                mine && Model::uses(h, byte, false) || theirs && Model::uses(claim, byte, false)
            };
            self.held.iter().any(clash)
        })
    }

    /// Whether the claim meets a rectangle for which the answer may be conservative.
    fn inexact(&self, claim: &[(Rect, bool)]) -> bool {
        let pair = |a: &Rect, b: &Rect| {
            !a.is_dense() && !b.is_dense() && a.stride() != b.stride() && a.overlaps(b)
        };
        self.held.iter().flatten().any(|(h, _)| claim.iter().any(|(r, _)| pair(h, r)))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn claims_are_those_of_a_table_of_bytes(moves in moves()) {
        let b = Buffer::zeroed(BYTES).unwrap();
        let (mut model, mut held) = (Model::default(), Vec::new());
        for m in moves {
            match m {
                Move::Claim(claim) => {
                    let access = |w: bool| if w { Access::Write } else { Access::Read };
                    let wanted: Vec<_> = claim.iter().map(|(r, w)| (*r, access(*w))).collect();
                    let result = b.claim(&wanted);
                    let conflicts = model.conflicts(&claim);
                    prop_assert!(!conflicts || result.is_err());
                    prop_assert!(conflicts || result.is_ok() || model.inexact(&claim));
                    if let Ok(claimed) = result {
                        held.push(claimed);
                        model.held.push(claim);
                    }
                }
                Move::Drop(i) if !held.is_empty() => {
                    let i = i % held.len();
                    held.swap_remove(i);
                    model.held.swap_remove(i);
                }
                Move::Drop(_) => {}
            }
        }
        held.clear();
        prop_assert!(b.write().is_ok());
    }
}

/// Threads claim random views and write their marks: no thread sees another's mark under a claim.
#[test]
fn threads_never_share_a_written_byte() {
    let b = Buffer::zeroed(32 * 32).unwrap();
    let all = View::dense(&b, 0, (32, 32)).unwrap();
    let granted = AtomicUsize::new(0);
    let work = |mark: u8| {
        let mut seed = u64::from(mark) * 0x9e37_79b9_7f4a_7c15;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        while granted.load(Ordering::Relaxed) < 4000 {
            let (row, col) = (random(32), random(32));
            let (rows, cols) = (1 + random((32 - row).min(6)), 1 + random((32 - col).min(6)));
            let view = all.rows(row..row + rows).unwrap().columns(col..col + cols).unwrap();
            if random(4) == 0 {
                let Ok(read) = view.read() else { continue };
                let look = || -> Vec<Vec<u8>> {
                    (0..rows).map(|i| read.row::<u8>(i).unwrap().to_vec()).collect()
                };
                let before = look();
                std::thread::yield_now();
                assert_eq!(before, look(), "written while it was read");
                continue;
            }
            let Ok(mut write) = view.write() else { continue };
            (0..rows).for_each(|i| write.row_mut::<u8>(i).unwrap().fill(mark));
            std::thread::yield_now();
            for i in 0..rows {
                assert!(write.row::<u8>(i).unwrap().iter().all(|x| *x == mark));
            }
            granted.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|s| (1..=4).for_each(|mark| _ = s.spawn(move || work(mark))));
    assert!(b.write().is_ok());
}

#[test]
fn memory_of_a_device_is_reached_by_copies_only() {
    let space = SpaceId::unique();
    assert_ne!(space, SpaceId::unique());
    assert_ne!(space, SpaceId::HOST);
    let (host, own) = (Buffer::zeroed(64).unwrap(), Buffer::in_space(space, 64, 0xff).unwrap());
    assert_eq!((host.space(), own.space()), (SpaceId::HOST, space));
    assert_eq!(own.read().err(), Some(AccessError::Foreign));
    assert_eq!(own.write().err(), Some(AccessError::Foreign));
    let all = View::dense(&own, 0, (4, 16)).unwrap();
    assert_eq!(all.read().err(), Some(AccessError::Foreign));
    assert_eq!(all.write().err(), Some(AccessError::Foreign));
    // Unwritten memory is NaN.
    View::whole(&own).copy_to(&View::whole(&host)).unwrap();
    assert!(host.read().unwrap().as_slice::<f32>().iter().all(|x| x.is_nan()));

    let numbers: Vec<f32> = (0..16).map(|i| i as f32).collect();
    host.write().unwrap().as_mut_slice::<f32>().copy_from_slice(&numbers);
    let left = View::dense(&host, 0, (4, 16)).unwrap().columns(0..8).unwrap();
    left.copy_to(&all.columns(8..16).unwrap()).unwrap();
    let back = Buffer::zeroed(64).unwrap();
    all.copy_to(&View::dense(&back, 0, (4, 16)).unwrap()).unwrap();
    let back: Vec<f32> = back.read().unwrap().as_slice().to_vec();
    for (i, row) in back.chunks(4).enumerate() {
        assert!(row[0].is_nan() && row[1].is_nan());
        assert_eq!(row[2..], numbers[4 * i..4 * i + 2]);
    }
    let unlike = AccessError::Shapes { from: (4, 8), to: (4, 16) };
    assert_eq!(left.copy_to(&all).err(), Some(unlike));
    let held = all.buffer().claim(&[(*all.rect(), Access::Read)]).unwrap();
    assert!(left.copy_to(&all.columns(0..8).unwrap()).is_err(), "somebody reads it");
    drop(held);
    left.copy_to(&all.columns(0..8).unwrap()).unwrap();
}

#[test]
fn memory_of_a_device_is_its_own() {
    // What only its device addresses can be named and claimed, but not touched.
    for space in [SpaceId::unique(), SpaceId::HOST] {
        let handle = std::sync::Arc::new(42);
        let far = Buffer::of_handle(space, 64, handle.clone());
        let all = View::dense(&far, 0, (4, 16)).unwrap();
        assert_eq!(far.owner::<std::sync::Arc<i32>>(), Some(&handle));
        let held = far.claim(&[(*all.rect(), Access::Write)]).unwrap();
        assert!(far.claim(&[(*all.rect(), Access::Read)]).is_err());
        drop(held);
        let near = View::dense(&Buffer::zeroed(64).unwrap(), 0, (4, 16)).unwrap();
        assert_eq!(far.read().err(), Some(AccessError::Foreign));
        assert_eq!(all.write().err(), Some(AccessError::Foreign));
        assert_eq!(all.copy_to(&near).err(), Some(AccessError::Foreign));
        assert_eq!(near.copy_to(&all).err(), Some(AccessError::Foreign));
        drop((far, all));
        assert_eq!(std::sync::Arc::strong_count(&handle), 1);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn memory_that_is_given_back_is_zero_and_the_rest_stays() {
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let (all, page) = (64 << 20, 64 << 10);
    let b = Buffer::zeroed(all).unwrap();
    b.write().unwrap().as_mut_slice::<u8>().fill(7);
    let before = resident();
    // Only whole pages; bytes in use stay; so does what another owner knows by its address.
    b.give_back(100..page + 100);
    let claim = b.hold(&[(Rect::bytes(all - 1..all), Access::Read)]).unwrap();
    b.give_back(page..all);
    drop(claim);
    let kept = b.keep();
    b.give_back(page..all);
    drop(kept);
    let read = b.read().unwrap();
    assert_eq!((read[99], read[100], read[page], read[all - 1]), (7, 7, 7, 7));
    assert_eq!(read[page - 1], 0);
    drop(read);
    b.give_back(page..all + page);
    assert!(resident() + all / 2 < before);
    let read = b.read().unwrap();
    assert!(read[page..].iter().all(|x| *x == 0) && read[..100].iter().all(|x| *x == 7));
}
