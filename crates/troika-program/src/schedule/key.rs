//! The position of a task in the program.

use std::ops::Range;

/// A task's position in program order, which is the order of keys; the first number counts most.
/// Conflicting tasks run in this order, however they were pushed.
///
/// All keys of a graph are made by one function, [`Key::by_chunk`] or [`Key::by_layer`]. It decides
/// whether the program takes a chunk through all layers before the next chunk, or all chunks
/// through a layer before the next layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u64; 5]);

impl Key {
    /// Chunk by chunk: the sequence, the position of the chunk's first row, the layer, and the
    /// place within the layer.
    pub fn by_chunk(sequence: u64, position: u64, layer: u64, place: u64) -> Key {
        Key([sequence, position, layer, place, 0])
    }

    /// Layer by layer, and within a layer chunk by chunk.
    pub fn by_layer(layer: u64, sequence: u64, position: u64, place: u64) -> Key {
        Key([layer, sequence, position, place, 0])
    }

    /// The key number `n` between this place and the next of its layer, for tasks that are added
    /// while the graph runs. Number 0 is the place itself.
    pub fn child(self, n: u64) -> Key {
        let Key([a, b, c, place, _]) = self;
        Key([a, b, c, place, n])
    }

    /// All keys from number 1 on between this place and the next of its layer.
    pub fn children(self) -> Range<Key> {
        let Key([a, b, c, place, _]) = self;
        let end = match place.checked_add(1) {
            Some(next) => Key([a, b, c, next, 0]),
            None => self.child(u64::MAX),
        };
        self.child(1)..end
    }
}
