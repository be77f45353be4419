use std::sync::atomic::{AtomicUsize, Ordering};

use troika_cpu::Pool;

#[test]
fn every_part_runs_once() {
    for threads in 1..=4 {
        let mut pool = Pool::new(threads, None).unwrap();
        for parts in [0, 1, 2, 3, 17, 500] {
            let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
            pool.run(parts, &|worker, part| {
                assert!(worker < threads);
                counts[part].fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn many_short_regions_and_pauses() {
    let mut pool = Pool::new(3, None).unwrap();
    let sum = AtomicUsize::new(0);
    let bytes = vec![1u8; 10_007];
    for i in 0..20_000 {
        pool.run(3, &|_, part| {
            sum.fetch_add(part, Ordering::Relaxed);
        })
        .unwrap();
        // Any bytes may be prefetched, whether or not they are read next.
        pool.prefetch(&bytes[..i % bytes.len()]);
        if i % 2000 == 0 {
            // Long enough for workers to park.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    assert_eq!(sum.load(Ordering::Relaxed), 60_000);
}

#[test]
fn a_panic_is_an_error_and_the_pool_goes_on() {
    for threads in 1..=3 {
        let mut pool = Pool::new(threads, None).unwrap();
        let failed = pool.run(50, &|_, part| assert!(part != 20, "part 20"));
        assert!(failed.unwrap_err().0.contains("part 20"));
        let sum = AtomicUsize::new(0);
        pool.run(50, &|_, _| {
            sum.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(sum.load(Ordering::Relaxed), 50);
    }
}
