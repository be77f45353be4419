//! Who may generate next: fair among clients, with priorities, and with a limit.
//!
//! So many answers are computed at once. Others wait: those of higher priority first, and among
//! equals the client that was served longest ago. A client that asks for much does not delay one
//! that asks for little.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Names a client: a key, or the one client of a server without keys.
pub type ClientId = u64;

/// Asks for places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Who asks.
    pub client: ClientId,
    /// Higher ones come first.
    pub priority: i32,
    /// How many answers are to be computed at once.
    pub places: usize,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// As many wait as may.
    #[error("{waiting} requests wait already; try again in {retry_after} s")]
    Full {
        /// How many wait.
        waiting: usize,
        /// A guess of when one of them will be through.
        retry_after: u64,
    },
    /// More at once than there are places.
    #[error(
        "{asked} answers at once are more than the {places} that the server computes; ask for fewer, or start it with --parallel {asked}"
    )]
    TooMany {
        /// Answers asked for.
        asked: usize,
        /// The places.
        places: usize,
    },
    /// The server ends.
    #[error("the server is being shut down; try again when it runs")]
    Closed,
}

#[derive(Debug)]
struct Waiting {
    places: usize,
    served: oneshot::Sender<Permit>,
}

#[derive(Debug, Default)]
struct State {
    free: usize,
    waiting: usize,
    closed: bool,
    /// By priority, the clients that wait, the one served longest ago first.
    clients: BTreeMap<i32, VecDeque<(ClientId, VecDeque<Waiting>)>>,
    /// Seconds that answers took of late, in the mean.
    mean_s: f64,
}

/// The queue. Clones are one queue.
#[derive(Clone, Debug)]
pub struct FairQueue {
    state: Arc<Mutex<State>>,
    places: usize,
    limit: usize,
}

/// Places in the queue, given back when it is dropped.
#[derive(Debug)]
pub struct Permit {
    queue: FairQueue,
    places: usize,
    since: std::time::Instant,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.free += self.places;
        let took = self.since.elapsed().as_secs_f64();
        state.mean_s += (took - state.mean_s) * 0.1;
        self.queue.serve(state);
    }
}

impl FairQueue {
    /// A queue for `places` answers at once, in which `limit` requests may wait.
    pub fn new(places: usize, limit: usize) -> FairQueue {
        let state = State { free: places, mean_s: 1.0, ..State::default() };
        FairQueue { state: Arc::new(Mutex::new(state)), places, limit }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for places. Whoever stops waiting leaves the queue.
    ///
    /// # Errors
    /// The queue is full or closed, or there will never be so many places.
    pub async fn enter(&self, asked: Asked) -> Result<Permit, QueueError> {
        let Asked { client, priority, places } = asked;
        if places > self.places {
            return Err(QueueError::TooMany { asked: places, places: self.places });
        }
        let served = {
            let mut state = self.lock();
            if state.closed {
                return Err(QueueError::Closed);
            }
            state.forget_gone();
            if state.waiting == 0 && state.free >= places {
                state.free -= places;
                return Ok(self.permit(places));
            }
            if state.waiting >= self.limit {
                let waits = state.mean_s * (state.waiting as f64 + 1.0) / self.places as f64;
                let retry_after = waits.ceil().clamp(1.0, 600.0) as u64;
                return Err(QueueError::Full { waiting: state.waiting, retry_after });
            }
            let (served, is_served) = oneshot::channel();
            state.add(priority, client, Waiting { places, served });
            // Somebody who gave up may have been all that was before.
            self.serve(state);
            is_served
        };
        served.await.map_err(|_| QueueError::Closed)
    }

    fn permit(&self, places: usize) -> Permit {
        Permit { queue: self.clone(), places, since: std::time::Instant::now() }
    }

    /// Hands out free places in turn.
    fn serve(&self, mut state: MutexGuard<'_, State>) {
        let mut refused = Vec::new();
        while let Some(next) = state.next() {
            state.free -= next.places;
            // Who has gone meanwhile gives them back, once the state is free again.
            if let Err(permit) = next.served.send(self.permit(next.places)) {
                state.free += next.places;
                refused.push(permit);
            }
        }
        drop(state);
        // Their places are counted as free already.
        refused.into_iter().for_each(|mut permit| permit.places = 0);
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        let mut state = self.lock();
        state.forget_gone();
        state.waiting
    }

    /// Answers that are computed.
    pub fn running(&self) -> usize {
        self.places - self.lock().free
    }

    /// Refuses new requests and those that wait.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.clients.clear();
        state.waiting = 0;
    }
}

impl State {
    fn add(&mut self, priority: i32, client: ClientId, waiting: Waiting) {
        let clients = self.clients.entry(priority).or_default();
        match clients.iter_mut().find(|(known, _)| *known == client) {
            Some((_, queue)) => queue.push_back(waiting),
            None => clients.push_back((client, VecDeque::from([waiting]))),
        }
        self.waiting += 1;
    }

    /// Removes those who stopped waiting.
    fn forget_gone(&mut self) {
        for clients in self.clients.values_mut() {
            for (_, queue) in clients.iter_mut() {
                queue.retain(|w| !w.served.is_closed());
            }
            clients.retain(|(_, queue)| !queue.is_empty());
        }
        self.clients.retain(|_, clients| !clients.is_empty());
        let count = |c: &VecDeque<(ClientId, VecDeque<Waiting>)>| -> usize {
            c.iter().map(|(_, queue)| queue.len()).sum()
        };
        self.waiting = self.clients.values().map(count).sum();
    }

    /// Takes the next request, if there are places for it. One that needs several places is not
    /// overtaken, or it would wait for ever.
    fn next(&mut self) -> Option<Waiting> {
        let mut highest = self.clients.last_entry()?;
        let clients = highest.get_mut();
        if clients.front()?.1.front()?.places > self.free {
            return None;
        }
        let (client, mut queue) = clients.pop_front()?;
        let next = queue.pop_front();
        if !queue.is_empty() {
            clients.push_back((client, queue));
        } else if clients.is_empty() {
            highest.remove();
        }
        self.waiting -= 1;
        next
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Asked, FairQueue, Permit, QueueError};

    fn of(client: u64) -> Asked {
        Asked { client, priority: 0, places: 1 }
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    /// Lets the requests wait one after another, then frees the place as often as it is taken.
    async fn order(queue: &FairQueue, asked: &[Asked]) -> Vec<usize> {
        let first = queue.enter(of(99)).await.unwrap();
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel::<(usize, Permit)>();
        for (i, &asked) in asked.iter().enumerate() {
            let (queue, tell) = (queue.clone(), tell.clone());
            tokio::spawn(async move {
                tell.send((i, queue.enter(asked).await.unwrap())).unwrap();
            });
            tokio::task::yield_now().await;
        }
        assert_eq!(queue.waiting(), asked.len());
        drop(first);
        let mut order = Vec::new();
        while order.len() < asked.len() {
            order.push(told.recv().await.unwrap().0);
        }
        order
    }

    #[test]
    fn clients_take_turns_and_priorities_come_first() {
        run(async {
            let queue = FairQueue::new(1, 100);
            let urgent = Asked { priority: 1, ..of(1) };
            let asked = [of(1), of(1), of(1), of(2), of(3), urgent, of(2)];
            assert_eq!(order(&queue, &asked).await, [5, 0, 3, 4, 1, 6, 2]);
            assert_eq!((queue.waiting(), queue.running()), (0, 0));
        });
    }

    #[test]
    fn the_queue_has_an_end_and_tells_when_to_come_back() {
        run(async {
            let queue = FairQueue::new(2, 1);
            let both = queue.enter(Asked { places: 2, ..of(1) }).await.unwrap();
            let waits = tokio::spawn({
                let queue = queue.clone();
                async move { queue.enter(of(1)).await.map(drop) }
            });
            tokio::task::yield_now().await;
            let full = queue.enter(of(2)).await.unwrap_err();
            assert_eq!(full, QueueError::Full { waiting: 1, retry_after: 1 });
            let many = queue.enter(Asked { places: 3, ..of(2) }).await.unwrap_err();
            assert_eq!(many, QueueError::TooMany { asked: 3, places: 2 });
            // Who stops waiting makes room.
            waits.abort();
            assert!(waits.await.unwrap_err().is_cancelled());
            let waits = tokio::spawn({
                let queue = queue.clone();
                async move { queue.enter(of(2)).await.map(drop) }
            });
            tokio::task::yield_now().await;
            assert_eq!((queue.waiting(), queue.running()), (1, 2));
            drop(both);
            waits.await.unwrap().unwrap();
            assert_eq!((queue.waiting(), queue.running()), (0, 0));
        });
    }

    #[test]
    fn several_places_are_not_overtaken_and_a_closed_queue_refuses() {
        run(async {
            let queue = FairQueue::new(2, 10);
            let one = queue.enter(of(1)).await.unwrap();
            let both = {
                let queue = queue.clone();
                tokio::spawn(async move { queue.enter(Asked { places: 2, ..of(2) }).await })
            };
            tokio::task::yield_now().await;
            let late = {
                let queue = queue.clone();
                tokio::spawn(async move { queue.enter(of(3)).await })
            };
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(!both.is_finished() && !late.is_finished());
            drop(one);
            let permit = both.await.unwrap().unwrap();
            assert_eq!(queue.running(), 2);
            queue.close();
            assert_eq!(late.await.unwrap().unwrap_err(), QueueError::Closed);
            assert_eq!(queue.enter(of(1)).await.unwrap_err(), QueueError::Closed);
            drop(permit);
        });
    }
}
