//! Where a task stands in the program.

use std::ops::Range;

/// A task's place in program order, which is the order of keys: the first number counts most.
/// Tasks that conflict run in this order, in whichever order they were pushed.
///
/// All keys of a graph are made by the same function, [`Key::by_chunk`] or [`Key::by_layer`]: it
/// says whether the program goes through all layers with a chunk before the next chunk, or through
/// all chunks with a layer before the next layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u64; 5]);

impl Key {
    /// Chunk after chunk: the sequence, the position of the chunk's first row in it, the layer,
    /// and the place within the layer.
    pub fn by_chunk(sequence: u64, position: u64, layer: u64, place: u64) -> Key {
        Key([sequence, position, layer, place, 0])
    }

    /// Layer after layer, and within a layer chunk after chunk.
    pub fn by_layer(layer: u64, sequence: u64, position: u64, place: u64) -> Key {
        Key([layer, sequence, position, place, 0])
    }

    /// The place number `n` between this one and the next of its layer: where tasks go that become
    /// known while the graph runs. Number 0 is the place itself.
    pub fn child(self, n: u64) -> Key {
        let Key([a, b, c, place, _]) = self;
        Key([a, b, c, place, n])
    }

    /// The places 1 and on between this one and the next of its layer.
    pub fn children(self) -> Range<Key> {
        let Key([a, b, c, place, _]) = self;
        let end = match place.checked_add(1) {
            Some(next) => Key([a, b, c, next, 0]),
            None => self.child(u64::MAX),
        };
        self.child(1)..end
    }
}
