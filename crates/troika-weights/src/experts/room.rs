//! Memory for experts under a byte budget. What one leaves, the next of its size takes.

use crate::arena::Room;

pub(super) struct Rooms {
    budget: u64,
    /// Bytes of all rooms, whether they are free or not.
    bytes: u64,
    free: Vec<Room>,
}

impl Rooms {
    pub fn new(budget: u64) -> Rooms {
        Rooms { budget, bytes: 0, free: Vec::new() }
    }

    /// Bytes of all rooms.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A room of `bytes` bytes; `None` if the budget has none left, or the system no memory.
    pub fn take(&mut self, bytes: usize) -> Option<Room> {
        if let Some(at) = self.free.iter().rposition(|room| room.as_ref().len() == bytes) {
            return Some(self.free.swap_remove(at));
        }
        // Those of other sizes make way.
        while self.bytes + bytes as u64 > self.budget {
            let room = self.free.pop()?;
            self.bytes -= room.as_ref().len() as u64;
        }
        let room = Room::apart(bytes)?;
        self.bytes += bytes as u64;
        Some(room)
    }

    /// Gives a room back.
    pub fn give(&mut self, room: Room) {
        self.free.push(room);
    }
}
