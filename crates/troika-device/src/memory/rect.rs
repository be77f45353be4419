//! Rectangles of bytes, and their overlap.

use std::ops::Range;

/// Rows of bytes: row `i` is the `row_bytes` bytes from `offset + i * stride` on.
///
/// Rows do not overlap. With at most one row, the stride equals the row's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rect {
    offset: usize,
    rows: usize,
    row_bytes: usize,
    stride: usize,
}

impl Rect {
    /// A rectangle; `None` if its rows overlap or its end overflows.
    pub fn new(offset: usize, rows: usize, row_bytes: usize, stride: usize) -> Option<Rect> {
        if rows <= 1 {
            offset.checked_add(row_bytes)?;
            return Some(Rect { offset, rows, row_bytes, stride: row_bytes });
        }
        let last = (rows - 1).checked_mul(stride)?;
        offset.checked_add(last)?.checked_add(row_bytes)?;
        (row_bytes <= stride).then_some(Rect { offset, rows, row_bytes, stride })
    }

    /// A range of bytes as one row.
    pub fn bytes(range: Range<usize>) -> Rect {
        let row_bytes = range.end.saturating_sub(range.start);
        Rect { offset: range.start, rows: 1, row_bytes, stride: row_bytes }
    }

    /// The first byte of row 0.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes per row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes from the start of one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.rows == 0 || self.row_bytes == 0
    }

    /// Whether rows follow each other without gaps.
    pub fn is_dense(&self) -> bool {
        self.stride == self.row_bytes
    }

    /// From the first byte to the last, including gaps between rows.
    pub fn span(&self) -> Range<usize> {
        let len = if self.is_empty() { 0 } else { (self.rows - 1) * self.stride + self.row_bytes };
        self.offset..self.offset + len
    }

    /// The bytes of a row.
    pub fn row(&self, i: usize) -> Option<Range<usize>> {
        let start = (i < self.rows).then(|| self.offset + i * self.stride)?;
        Some(start..start + self.row_bytes)
    }

    /// Its first rows, as rows of `row_bytes` bytes: without gaps they may be of any length. `None`
    /// where it has no room for them.
    pub fn first_rows(&self, rows: usize, row_bytes: usize) -> Option<Rect> {
        let (stride, fits) = match self.is_dense() {
            true => (row_bytes, row_bytes.checked_mul(rows)? <= self.span().len()),
            false => (self.stride, row_bytes == self.row_bytes && rows <= self.rows),
        };
        Rect::new(self.offset, rows, row_bytes, stride).filter(|_| fits)
    }

    /// Whether they share a byte. Exact for equal strides or if one is dense; otherwise overlapping
    /// spans count as overlap.
    pub fn overlaps(&self, other: &Rect) -> bool {
        let (a, b) = (self.span(), other.span());
        if a.is_empty() || b.is_empty() || a.end <= b.start || b.end <= a.start {
            return false;
        }
        match (self.is_dense(), other.is_dense()) {
            (true, true) => true,
            (true, false) => other.meets(&a),
            (false, true) => self.meets(&b),
            (false, false) if self.stride == other.stride => self.meets_rows(other),
            (false, false) => true,
        }
    }

    /// Whether a row meets a range that meets the span.
    fn meets(&self, range: &Range<usize>) -> bool {
        let Some(from) = range.start.checked_sub(self.offset) else { return true };
        // The range starts in a row, or reaches the next one.
        let (row, col) = (from / self.stride, from % self.stride);
        col < self.row_bytes || row + 1 < self.rows && self.stride - col < range.len()
    }

    /// Whether rows overlap the rows of a rectangle with the same stride, if the spans overlap.
    fn meets_rows(&self, other: &Rect) -> bool {
        let (first, later) =
            if self.offset <= other.offset { (self, other) } else { (other, self) };
        let from = later.offset - first.offset;
        let (row, col) = (from / first.stride, from % first.stride);
        let here = row < first.rows && col < first.row_bytes;
        here || row + 1 < first.rows && first.stride - col < later.row_bytes
    }

    /// Whether it surely contains all bytes of `other`.
    pub fn covers(&self, other: &Rect) -> bool {
        let (a, b) = (self.span(), other.span());
        if b.is_empty() {
            return true;
        }
        if b.start < a.start || b.end > a.end {
            return false;
        }
        if self.is_dense() {
            return true;
        }
        let width = if other.is_dense() { b.len() } else { other.row_bytes };
        let alike = other.is_dense() || other.stride == self.stride;
        alike && (b.start - a.start) % self.stride + width <= self.row_bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Rect;

    fn bytes(r: &Rect) -> u128 {
        (0..r.rows()).flat_map(|i| r.row(i).unwrap()).fold(0, |set, byte| set | 1 << byte)
    }

    fn rects() -> impl Strategy<Value = Rect> {
        let strided = (1..20_usize).prop_flat_map(|stride| (Just(stride), 0..=stride));
        (0..40_usize, 0..5_usize, strided).prop_map(|(offset, rows, (stride, row_bytes))| {
            Rect::new(offset, rows, row_bytes, stride).unwrap()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn overlaps_are_those_of_bytes(a in rects(), b in rects()) {
            let meet = bytes(&a) & bytes(&b) != 0;
            let exact = a.stride() == b.stride() || a.is_dense() || b.is_dense();
            prop_assert_eq!(a.overlaps(&b), b.overlaps(&a));
            prop_assert!(!meet || a.overlaps(&b));
            prop_assert!(!exact || meet == a.overlaps(&b));
            let inside = bytes(&b) & !bytes(&a) == 0;
            prop_assert!(inside || !a.covers(&b));
            prop_assert!(!inside || !exact || a.covers(&b) || !b.is_dense());
        }

        #[test]
        fn columns_of_one_stride_overlap_where_bytes_do(
            stride in 1..12_usize,
            a in (0..12_usize, 1..5_usize, 0..12_usize),
            b in (0..12_usize, 1..5_usize, 0..12_usize),
        ) {
            let rect = |(at, rows, n): (usize, usize, usize)| {
                Rect::new(at, rows, n.min(stride), stride).unwrap()
            };
            let (a, b) = (rect(a), rect(b));
            prop_assert_eq!(a.overlaps(&b), bytes(&a) & bytes(&b) != 0);
            if a.covers(&b) {
                prop_assert_eq!(bytes(&b) & !bytes(&a), 0);
            }
        }
    }

    #[test]
    fn what_has_no_end_or_overlaps_itself_is_none() {
        assert!(Rect::new(0, 2, 5, 4).is_none());
        assert!(Rect::new(usize::MAX, 1, 1, 1).is_none());
        assert!(Rect::new(0, usize::MAX, 2, 2).is_none());
        assert!(Rect::new(8, usize::MAX / 2, 0, 2).is_none());
        let one = Rect::new(3, 1, 4, 9).unwrap();
        assert!(one.is_dense() && one.span() == (3..7) && one.row(1).is_none());
        assert!(Rect::new(3, 0, 4, 9).unwrap().is_empty());
        let columns = Rect::new(4, 3, 4, 12).unwrap();
        assert!(columns.covers(&Rect::new(17, 2, 3, 12).unwrap()));
        assert!(!columns.covers(&Rect::new(17, 2, 4, 12).unwrap()));
    }
}
