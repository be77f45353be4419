//! Measures the read bandwidth of main memory.

use std::time::Instant;

use crate::runtime::{Lines, Pool, prefetch};

/// Bytes read per pass: more than caches hold.
const SWEEP_BYTES: usize = 256 << 20;

/// Passes for each way of reading.
const PASSES: usize = 7;

/// Ways to read: streams of each thread, and whether lines bypass the farther caches. Which one is the
/// fastest depends on the machine.
const WAYS: [(usize, bool); 3] = [(1, false), (1, true), (4, true)];

/// Read bandwidth of main memory with `threads` threads, in GB/s. It is the median of the fastest
/// way to read, since a model cannot rely on the best moments. Takes about half a second; 0 if
/// memory or threads are lacking.
pub fn measure_bandwidth(threads: usize) -> f64 {
    let Ok(mut pool) = Pool::new(threads.max(1), None) else { return 0.0 };
    let mut lines = Lines::default();
    if lines.grow(SWEEP_BYTES / 4).is_err() {
        return 0.0;
    }
    let data = lines.as_mut_slice();
    data.fill(1.0);
    let data = &*data;
    let part = 1 << 18;
    let mut rates = [[0.0f64; PASSES]; WAYS.len()];
    for turn in 0..WAYS.len() * PASSES {
        let way = turn % WAYS.len();
        let (streams, once) = WAYS[way];
        let start = Instant::now();
        let swept = pool.run(data.len() / part, &|_, i| {
            let sum = sweep(&data[i * part..][..part], streams, once);
            std::hint::black_box(sum);
        });
        if swept.is_err() {
            return 0.0;
        }
        rates[way][turn / WAYS.len()] = SWEEP_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9;
    }
    let medians = rates.map(|mut way| {
        way.sort_by(f64::total_cmp);
        way[PASSES / 2]
    });
    medians.into_iter().fold(0.0, f64::max)
}

/// The prefetch distance in bytes.
const PREFETCH_DISTANCE: usize = 2048;

/// Adds with many independent sums, so that memory is the limit and not latency.
fn sweep(data: &[f32], streams: usize, once: bool) -> f32 {
    let mut sums = [0.0f32; 64];
    let each = data.len() / streams;
    for at in (0..each).step_by(64) {
        for stream in 0..streams {
            let chunk = &data[stream * each + at..][..64];
            if once {
                for line in chunk.chunks(16) {
                    prefetch::once(line.as_ptr().cast::<u8>().wrapping_add(PREFETCH_DISTANCE));
                }
            }
            for (s, x) in sums.iter_mut().zip(chunk) {
                *s += x;
            }
        }
    }
    sums.iter().sum()
}
