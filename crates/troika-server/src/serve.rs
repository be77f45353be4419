//! Listening, connections, and the end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_io_timeout::TimeoutStream;

use crate::guard;
use crate::options::ServerOptions;
use crate::state::Server;
use crate::{api, page};

/// How long a client may take to send the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(15);

/// The most bytes of the head of a request.
const HEAD_BYTES: usize = 64 << 10;

/// How long a client may not take what is sent to it.
const STALL_TIME: Duration = Duration::from_secs(60);

/// How long clients may take to read that their answers are cut off.
const CUT_TIME: Duration = Duration::from_secs(1);

/// How often idle models are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Answers that were cut off.
    pub cut: usize,
    /// Whether SIGTERM ended it, as supervisors do.
    pub terminated: bool,
}

/// Serves until it is told to stop: by Ctrl-C, or by SIGTERM. `listening` is told the address.
///
/// # Errors
/// A sentence: the address cannot be listened at, or would be open to others without a key.
pub fn serve(
    options: ServerOptions,
    listening: &mut dyn FnMut(SocketAddr),
) -> Result<Ended, String> {
    if options.models.is_empty() {
        return Err("there is no model to serve; name one".into());
    }
    if !options.address.ip().is_loopback() && options.keys.is_empty() {
        return Err(format!(
            "{} can be reached from other machines: give an --api-key that they have to send, or \
             listen at 127.0.0.1",
            options.address
        ));
    }
    // One thread for connections and one for what they do meanwhile: the devices compute on others.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|e| format!("the server has no threads: {e}"))?;
    let ended = runtime.block_on(run(options, listening));
    // Answers that were cut off are given up.
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

async fn run(
    mut options: ServerOptions,
    listening: &mut dyn FnMut(SocketAddr),
) -> Result<Ended, String> {
    let address = options.address;
    let refused =
        |e: io::Error| format!("cannot listen at {address}: {e}; take another --port or --host");
    let listener = TcpListener::bind(address).await.map_err(refused)?;
    options.address = listener.local_addr().map_err(refused)?;
    let server = Arc::new(Server::new(options));
    listening(server.options.address);
    let opening = server.clone();
    let mut opened = tokio::spawn(async move { opening.models.get(None).await.map(drop) });
    let mut is_opened = false;
    let tidying = server.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(TIDY_EVERY).await;
            tidying.models.close_idle(tidying.options.keep_alive).await;
        }
    });
    let routes = Router::new()
        .merge(page::routes())
        .merge(api::routes())
        .layer(from_fn_with_state(server.clone(), guard::check))
        .with_state(server.clone());
    let mut stopped = std::pin::pin!(stop());
    let terminated = loop {
        tokio::select! {
            terminated = &mut stopped => break terminated,
            done = &mut opened, if !is_opened => match done {
                Ok(Err(problem)) => return Err(problem.message),
                _ => is_opened = true,
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connect(&server, &routes, stream),
                // Too many open files, for instance: others will be closed.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
        }
    };
    drop(listener);
    Ok(Ended { cut: finish(&server).await, terminated })
}

/// Waits for the answers that are being made, and tells how many were cut off.
async fn finish(server: &Server) -> usize {
    server.closing.send_replace(true);
    server.queue.close();
    let running = server.queue.running();
    if running > 0 {
        let grace = server.options.grace.as_secs_f64();
        (server.options.note)(&format!(
            "ending: {running} answers have {grace} s to end; Ctrl-C again ends them now"
        ));
    }
    let done = || async {
        while server.connections.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let mut again = std::pin::pin!(stop());
    tokio::select! {
        _ = tokio::time::timeout(server.options.grace, done()) => {}
        _ = &mut again => {}
    }
    let cut = server.queue.running();
    // Their clients are told.
    server.cutting.send_replace(true);
    let _ = tokio::time::timeout(CUT_TIME, done()).await;
    cut
}

/// Waits for Ctrl-C, or SIGTERM. Returns whether it was the latter.
async fn stop() -> bool {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut term) = signal(SignalKind::terminate()) {
            return tokio::select! {
                _ = tokio::signal::ctrl_c() => false,
                _ = term.recv() => true,
            };
        }
    }
    // Without a handler the signal ends the process by itself.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
    false
}

const MOST_CONNECTIONS: usize = 2048;

/// Counts a connection as long as it is open.
struct Connected(Arc<Server>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a connection on a task of its own, until the client goes or the server ends, which lets the
/// last answer end. It is closed when its client reads nothing for long.
fn connect(server: &Arc<Server>, routes: &Router, stream: TcpStream) {
    if server.connections.load(Ordering::Relaxed) >= MOST_CONNECTIONS {
        // Closing it at once is all that can be done in no time.
        return;
    }
    server.connections.fetch_add(1, Ordering::Relaxed);
    let connected = Connected(server.clone());
    // Tokens go out as they come.
    let _ = stream.set_nodelay(true);
    let service = TowerToHyperService::new(routes.clone());
    let mut closing = server.closing.subscribe();
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(STALL_TIME));
    tokio::spawn(async move {
        let _connected = connected;
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .max_buf_size(HEAD_BYTES)
            .half_close(false)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let mut connection = std::pin::pin!(connection);
        let is_gone = tokio::select! {
            // The server has not failed when a client goes in the middle of an answer.
            _ = connection.as_mut() => true,
            _ = closing.wait_for(|closing| *closing) => false,
        };
        if !is_gone {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    });
}
