//! The paged cache: its rows, and appending to it.

use std::sync::atomic::{AtomicBool, Ordering};

use half::{bf16, f16};
use troika_device::ForwardBatch;

use crate::kernels::simd::{Kernel, Lanes, dispatch, nearest};
use crate::kernels::{ByFloat, Context, ELEMENTS_PER_PART, KernelError, for_floats};
use crate::{SharedMut, SharedRef};

/// Cache memory to read: rows of `width` elements. Rows of other sequences may be written
/// meanwhile.
pub type CacheRef<'a> = ByFloat<SharedRef<'a, f32>, SharedRef<'a, f16>, SharedRef<'a, bf16>>;

/// Cache memory to write. Rows of other sequences may be used meanwhile.
pub type CacheMut<'a> = ByFloat<CacheRows<'a, f32>, CacheRows<'a, f16>, CacheRows<'a, bf16>>;

/// The rows of a cache. Its holder may write the rows that are its own: whoever shares the cache
/// promises that.
///
/// ```compile_fail,E0133
/// # use troika_cpu::{SharedMut, kernels::kv::CacheRows};
/// let mut rows = [0.0f32; 16];
/// let rows = SharedMut::new(&mut rows);
/// let two_writers = [CacheRows::shared(rows), CacheRows::shared(rows)];
/// ```
pub struct CacheRows<'a, T>(pub(crate) SharedMut<'a, T>);

impl<'a, T> CacheRows<'a, T> {
    /// A cache; others may use some of its rows.
    ///
    /// # Safety
    /// Nobody else accesses the rows that are written through the result, while it lives.
    pub unsafe fn shared(rows: SharedMut<'a, T>) -> Self {
        CacheRows(rows)
    }

    fn own(rows: &'a mut [T]) -> Self {
        CacheRows(SharedMut::new(rows))
    }
}

impl<'a> CacheRef<'a> {
    /// A cache that nobody writes, in single precision.
    pub fn f32(rows: &'a [f32]) -> Self {
        CacheRef::F32(SharedRef::new(rows))
    }

    /// In f16.
    pub fn f16(rows: &'a [f16]) -> Self {
        CacheRef::F16(SharedRef::new(rows))
    }

    /// In bf16.
    pub fn bf16(rows: &'a [bf16]) -> Self {
        CacheRef::BF16(SharedRef::new(rows))
    }

    /// Elements.
    pub(crate) fn len(&self) -> usize {
        for_floats!(self, d => d.len())
    }
}

impl<'a> CacheMut<'a> {
    /// A cache of one's own, in single precision.
    pub fn f32(rows: &'a mut [f32]) -> Self {
        CacheMut::F32(CacheRows::own(rows))
    }

    /// In f16.
    pub fn f16(rows: &'a mut [f16]) -> Self {
        CacheMut::F16(CacheRows::own(rows))
    }

    /// In bf16.
    pub fn bf16(rows: &'a mut [bf16]) -> Self {
        CacheMut::BF16(CacheRows::own(rows))
    }
}

pub(crate) fn operand(why: String) -> KernelError {
    KernelError::Operand(why)
}

/// Writes the rows of `x`, `width` elements each, at the positions of the forward batch.
///
/// # Errors
/// A position without a page or outside of the cache; values that a cache of f16 cannot hold (all
/// rows are written then, too); a panic of a part.
pub fn append(
    cx: &mut Context<'_>,
    forward: &ForwardBatch,
    page_group: usize,
    x: &[f32],
    width: usize,
    cache: CacheMut<'_>,
) -> Result<(), KernelError> {
    if width == 0 {
        return Ok(());
    }
    let (rows, isa) = (AppendedRows { forward, page_group, x, width }, cx.isa);
    match cache {
        CacheMut::F32(c) => rows.put(cx, c, &|x, y| y.copy_from_slice(x)),
        CacheMut::F16(c) => {
            let beyond = AtomicBool::new(false);
            let put = |x: &[f32], y: &mut [f16]| {
                if dispatch(isa, ToF16(x, y)) {
                    beyond.store(true, Ordering::Relaxed);
                }
            };
            rows.put(cx, c, &put)?;
            let why = "keys or values exceed the range of f16; use a cache of bf16 or f32";
            if beyond.into_inner() { Err(operand(why.into())) } else { Ok(()) }
        }
        CacheMut::BF16(c) => {
            let put = |x: &[f32], y: &mut [bf16]| dispatch(isa, ToBf16(x, y));
            rows.put(cx, c, &put)
        }
    }
}

/// The smallest magnitude that f16 rounds to infinity: halfway from its largest number to 2^16.
pub(crate) const BEYOND_F16: f32 = 65520.0;

/// Rounds floats to f16; says whether any became infinite.
struct ToF16<'a>(&'a [f32], &'a mut [f16]);

impl Kernel for ToF16<'_> {
    type Output = bool;
    #[inline(always)]
    fn run<V: Lanes>(self) -> bool {
        // A loop of its own, which the compiler vectorizes.
        let beyond = self.0.iter().fold(false, |beyond, x| beyond | (x.abs() >= BEYOND_F16));
        let (x, rest) = self.0.split_at(self.0.len() / V::N * V::N);
        let (y, y_rest) = self.1.split_at_mut(x.len());
        for (x, y) in x.chunks_exact(V::N).zip(y.chunks_exact_mut(V::N)) {
            // SAFETY: whole registers.
            unsafe { V::load(x.as_ptr()).store_f16(y.as_mut_ptr()) };
        }
        y_rest.iter_mut().zip(rest).for_each(|(y, x)| *y = f16::from_f32(*x));
        beyond
    }
}

/// Rounds floats to bf16; the compiler makes vectors of it.
struct ToBf16<'a>(&'a [f32], &'a mut [bf16]);

impl Kernel for ToBf16<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        for (x, y) in self.0.iter().zip(self.1) {
            *y = bf16::from_bits(nearest(*x) as u16);
        }
    }
}

/// Rows of `width` elements, and the positions of the forward batch that they are appended at.
struct AppendedRows<'a> {
    forward: &'a ForwardBatch,
    page_group: usize,
    x: &'a [f32],
    width: usize,
}

impl AppendedRows<'_> {
    /// Checks that a cache of `cache_rows` rows has all positions.
    fn check(&self, cache_rows: usize) -> Result<(), KernelError> {
        if !self.forward.is_whole() {
            return Err(operand("the rows of sequences have gaps".into()));
        }
        for s in &self.forward.seqs {
            for pos in s.pos..s.pos + s.rows.len() {
                match s.tables[self.page_group].row(pos) {
                    Some(row) if row < cache_rows => {}
                    Some(_) => return Err(operand(format!("position {pos} lies past the cache"))),
                    None => return Err(operand(format!("position {pos} has no page"))),
                }
            }
        }
        Ok(())
    }

    /// Writes the rows by `put`. Parts are ranges of columns: no two write one element, whatever the
    /// tables say.
    fn put<T: Send>(
        &self,
        cx: &mut Context<'_>,
        CacheRows(cache): CacheRows<'_, T>,
        put: &(dyn Fn(&[f32], &mut [T]) + Sync),
    ) -> Result<(), KernelError> {
        let AppendedRows { forward, page_group, x, width } = *self;
        self.check(cache.len() / width)?;
        let parts = x.len().div_ceil(ELEMENTS_PER_PART).max(1);
        let cols = width.div_ceil(parts).next_multiple_of(64);
        cx.run(width.div_ceil(cols), &|_, part| {
            let c = part * cols..((part + 1) * cols).min(width);
            for s in &forward.seqs {
                for row in s.rows.clone() {
                    let Some(at) = s.tables[page_group].row(s.pos + row - s.rows.start) else {
                        continue;
                    };
                    // SAFETY: these columns belong to this part, and `CacheRows` promises the rows.
                    let to = unsafe { cache.slice(at * width + c.start..at * width + c.end) };
                    put(&x[row * width..][c.clone()], to);
                }
            }
        })
    }
}
