//! Who comes next: fair among clients, with priorities, and with a limit.
//!
//! A queue has places, for answers that are computed at once or for texts that are read at once.
//! Others wait. Clients take turns: the one that was served longest ago comes first. Within a client
//! requests of higher priority come first; before other clients they come as far as the queue
//! allows. Requests of many parts, such as lists of prompts, take turns with others of their client
//! (start-time fair queueing: Goyal, Vin, Cheng, 1996). A client that asks for much does not delay one that asks for little, and does not keep it
//! out: when the queue is full, the client that has most requests in it gives one up.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;
use troika::device::lock;

/// Names a client: a key, or the one client of a server without keys.
pub type ClientId = u64;

/// Who asks, and how urgently.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub id: ClientId,
    /// Higher ones come first.
    pub priority: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub client: ClientId,
    /// Higher ones come first.
    pub priority: i32,
    /// How many answers are to be computed at once.
    pub places: usize,
    /// Names the request, whose parts may wait beside each other.
    pub request: u64,
    /// Whether it is a further part of a request that has been let in, and so is never refused.
    pub further: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    #[error("{waiting} requests wait already; try again in {retry_after} s")]
    Full {
        waiting: usize,
        /// A guess of when one of them will be through.
        retry_after: u64,
    },
    #[error(
        "{asked} answers at once are more than the {places} that the server computes; ask for fewer, or start it with --parallel {asked}"
    )]
    TooMany { asked: usize, places: usize },
    #[error("the server is being shut down; try again when it runs")]
    Closed,
}

#[derive(Debug)]
struct Waiting {
    priority: i32,
    request: u64,
    /// When it comes among those of its client.
    round: u64,
    places: usize,
    served: oneshot::Sender<Result<Permit, QueueError>>,
}

/// A client that waits, with its requests in the order in which they come: never none.
#[derive(Debug)]
struct Line {
    client: ClientId,
    /// The round of the request that was served last.
    round: u64,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug, Default)]
struct State {
    free: usize,
    closed: bool,
    /// The one served longest ago first.
    lines: VecDeque<Line>,
    /// Seconds that answers took of late, in the mean.
    mean_s: f64,
}

/// The queue. Clones are one queue.
#[derive(Clone, Debug)]
pub struct FairQueue {
    state: Arc<Mutex<State>>,
    places: usize,
    limit: usize,
    /// The highest priority that counts before other clients.
    most_urgent: i32,
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
        let mut state = lock(&self.queue.state);
        state.free += self.places;
        let took = self.since.elapsed().as_secs_f64();
        state.mean_s += (took - state.mean_s) * 0.1;
        self.queue.serve(state);
    }
}

impl FairQueue {
    /// A queue for `places` at once, in which `limit` requests may wait. Priorities up to
    /// `most_urgent` count among clients, higher ones within a client.
    pub fn new(places: usize, limit: usize, most_urgent: i32) -> FairQueue {
        let state = State { free: places, mean_s: 1.0, ..State::default() };
        FairQueue { state: Arc::new(Mutex::new(state)), places, limit, most_urgent }
    }

    /// Waits for places. Whoever stops waiting leaves the queue.
    ///
    /// # Errors
    /// The queue is full or closed, or it will never have as many places.
    pub async fn enter(&self, asked: Asked) -> Result<Permit, QueueError> {
        if asked.places > self.places {
            return Err(QueueError::TooMany { asked: asked.places, places: self.places });
        }
        let served = {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(QueueError::Closed);
            }
            state.forget_gone();
            if state.lines.is_empty() && state.free >= asked.places {
                state.free -= asked.places;
                return Ok(self.permit(asked.places));
            }
            let full = QueueError::Full {
                waiting: state.waiting(),
                retry_after: state.retry_after(self.places),
            };
            if state.waiting() >= self.limit
                && !asked.further
                && !state.make_room(asked.client, full)
            {
                return Err(full);
            }
            let (served, is_served) = oneshot::channel();
            state.add(&asked, served);
            // Somebody who gave up may have been all that was before.
            self.serve(state);
            is_served
        };
        served.await.unwrap_or(Err(QueueError::Closed))
    }

    fn permit(&self, places: usize) -> Permit {
        Permit { queue: self.clone(), places, since: std::time::Instant::now() }
    }

    /// Hands out free places in turn.
    fn serve(&self, mut state: MutexGuard<'_, State>) {
        let mut refused = Vec::new();
        while let Some(next) = state.next(self.most_urgent) {
            state.free -= next.places;
            // Who has gone meanwhile gives them back, once the state is free again.
            if let Err(Ok(permit)) = next.served.send(Ok(self.permit(next.places))) {
                state.free += next.places;
                refused.push(permit);
            }
        }
        drop(state);
        // Their places are counted as free already.
        refused.into_iter().for_each(|mut permit| permit.places = 0);
    }

    pub fn waiting(&self) -> usize {
        let mut state = lock(&self.state);
        state.forget_gone();
        state.waiting()
    }

    /// Answers that are computed.
    pub fn running(&self) -> usize {
        self.places - lock(&self.state).free
    }

    /// Refuses new requests and those that wait.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.lines.clear();
    }
}

impl State {
    fn waiting(&self) -> usize {
        self.lines.iter().map(|line| line.waiting.len()).sum()
    }

    /// A guess of how many seconds it takes until one of those that wait is through.
    fn retry_after(&self, places: usize) -> u64 {
        let seconds = self.mean_s * (self.waiting() as f64 + 1.0) / places as f64;
        seconds.ceil().clamp(1.0, 600.0) as u64
    }

    fn add(&mut self, asked: &Asked, served: oneshot::Sender<Result<Permit, QueueError>>) {
        let &Asked { client, priority, places, request, .. } = asked;
        let at = self.lines.iter().position(|line| line.client == client);
        let at = at.unwrap_or_else(|| {
            self.lines.push_back(Line { client, round: 0, waiting: VecDeque::new() });
            self.lines.len() - 1
        });
        let line = &mut self.lines[at];
        let last = line.waiting.iter().rev().find(|other| other.request == request);
        let round = last.map_or(0, |last| last.round + 1).max(line.round);
        let at = line.waiting.partition_point(|other| {
            (Reverse(other.priority), other.round) <= (Reverse(priority), round)
        });
        line.waiting.insert(at, Waiting { priority, request, round, places, served });
    }

    /// Refuses the last request of the client that has most, if that is another one which has more
    /// than this client would have. Returns whether there is room now.
    fn make_room(&mut self, client: ClientId, why: QueueError) -> bool {
        let own = self.lines.iter().find(|line| line.client == client);
        let own = own.map_or(0, |line| line.waiting.len());
        let longest = self.lines.iter_mut().max_by_key(|line| line.waiting.len());
        let Some(longest) = longest.filter(|line| line.waiting.len() > own + 1) else {
            return false;
        };
        if let Some(last) = longest.waiting.pop_back() {
            // It may have gone.
            let _ = last.served.send(Err(why));
        }
        true
    }

    /// Removes those who stopped waiting.
    fn forget_gone(&mut self) {
        for line in &mut self.lines {
            line.waiting.retain(|w| !w.served.is_closed());
        }
        self.lines.retain(|line| !line.waiting.is_empty());
    }

    /// Takes the next request, if there are places for it. One that needs several places is not
    /// overtaken, or it would wait for ever.
    fn next(&mut self, most_urgent: i32) -> Option<Waiting> {
        let urgent = |line: &Line| line.waiting.front().map(|w| w.priority.min(most_urgent));
        let lines = self.lines.iter().enumerate();
        let (at, _) = lines.max_by_key(|(i, line)| (urgent(line), Reverse(*i)))?;
        if self.lines[at].waiting.front()?.places > self.free {
            return None;
        }
        let mut line = self.lines.remove(at)?;
        let next = line.waiting.pop_front();
        line.round = next.as_ref().map_or(0, |next| next.round);
        if !line.waiting.is_empty() {
            self.lines.push_back(line);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use tokio::task::JoinHandle;

    use super::{Asked, FairQueue, Permit, QueueError};

    fn of(client: u64) -> Asked {
        static REQUESTS: AtomicU64 = AtomicU64::new(0);
        let request = REQUESTS.fetch_add(1, Ordering::Relaxed);
        Asked { client, priority: 0, places: 1, request, further: false }
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    /// Asks beside the test, and gives back what it gets at once.
    async fn ask(queue: &FairQueue, asked: Asked) -> JoinHandle<Result<(), QueueError>> {
        let queue = queue.clone();
        let asks = tokio::spawn(async move { queue.enter(asked).await.map(drop) });
        tokio::task::yield_now().await;
        asks
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
            let urgent = Asked { priority: 1, ..of(1) };
            let asked = [of(1), of(1), of(1), of(2), of(3), urgent, of(2)];
            // Where the server allows it, the urgent one comes before other clients, too.
            for (most_urgent, expected) in [(0, [5, 3, 4, 0, 6, 1, 2]), (1, [5, 3, 4, 0, 6, 1, 2])]
            {
                let queue = FairQueue::new(1, 100, most_urgent);
                assert_eq!(order(&queue, &asked).await, expected, "{most_urgent}");
                assert_eq!((queue.waiting(), queue.running()), (0, 0));
            }
            let asked = [of(2), of(1), urgent, Asked { priority: -1, ..of(3) }];
            for (most_urgent, expected) in [(0, [0, 2, 1, 3]), (1, [2, 0, 1, 3])] {
                let queue = FairQueue::new(1, 100, most_urgent);
                assert_eq!(order(&queue, &asked).await, expected, "{most_urgent}");
            }
        });
    }

    #[test]
    fn parts_of_a_request_take_turns_with_other_requests_of_their_client() {
        run(async {
            let (many, few) = (of(1), of(1));
            let asked = [many, many, many, many, few, few, of(1), of(2)];
            let queue = FairQueue::new(1, 100, 0);
            assert_eq!(order(&queue, &asked).await, [0, 7, 4, 6, 1, 5, 2, 3]);
        });
    }

    #[test]
    fn a_client_cannot_fill_the_queue_for_others() {
        run(async {
            let queue = FairQueue::new(1, 4, 0);
            let running = queue.enter(of(1)).await.unwrap();
            let mut first = Vec::new();
            for _ in 0..4 {
                first.push(ask(&queue, of(1)).await);
            }
            let full = QueueError::Full { waiting: 4, retry_after: 5 };
            assert_eq!(queue.enter(of(1)).await.unwrap_err(), full);
            let second = [ask(&queue, of(2)).await, ask(&queue, of(2)).await];
            // Each has two now: neither gives way.
            assert_eq!(queue.enter(of(2)).await.unwrap_err(), full);
            let further = ask(&queue, Asked { further: true, ..of(2) }).await;
            assert_eq!(queue.waiting(), 5);
            drop(running);
            let mut ended = Vec::new();
            for task in first.into_iter().chain(second).chain([further]) {
                ended.push(task.await.unwrap());
            }
            let ok = Ok(());
            assert_eq!(ended, [ok, ok, Err(full), Err(full), ok, ok, ok]);
        });
    }

    #[test]
    fn the_queue_has_an_end_and_tells_when_to_come_back() {
        run(async {
            let queue = FairQueue::new(2, 1, 0);
            let both = queue.enter(Asked { places: 2, ..of(1) }).await.unwrap();
            let waits = ask(&queue, of(1)).await;
            let full = queue.enter(of(2)).await.unwrap_err();
            assert_eq!(full, QueueError::Full { waiting: 1, retry_after: 1 });
            let many = queue.enter(Asked { places: 3, ..of(2) }).await.unwrap_err();
            assert_eq!(many, QueueError::TooMany { asked: 3, places: 2 });
            // Who stops waiting makes room.
            waits.abort();
            assert!(waits.await.unwrap_err().is_cancelled());
            let waits = ask(&queue, of(2)).await;
            assert_eq!((queue.waiting(), queue.running()), (1, 2));
            drop(both);
            waits.await.unwrap().unwrap();
            assert_eq!((queue.waiting(), queue.running()), (0, 0));
        });
    }

    #[test]
    fn several_places_are_not_overtaken_and_a_closed_queue_refuses() {
        run(async {
            let queue = FairQueue::new(2, 10, 0);
            let one = queue.enter(of(1)).await.unwrap();
            let both = {
                let queue = queue.clone();
                tokio::spawn(async move { queue.enter(Asked { places: 2, ..of(2) }).await })
            };
            tokio::task::yield_now().await;
            let late = ask(&queue, of(3)).await;
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
