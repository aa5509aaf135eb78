//! A connection for every request: connect, ask, read the answer and the end, close.
//!
//! The answering end finishes first, so that over TCP it is the one that keeps the TIME_WAIT and the
//! asking end does not run out of ports; it closes only after it saw the asker go, so that no byte is
//! under way when a socket disappears.

use std::io;
use std::time::{Duration, Instant};

use super::{IDLE, pattern, record, round_trips};
use crate::address::Address;
use crate::error::Error;
use crate::session_group::{Cue, Session};
use crate::transport::{BufferSizes, Buffers, Conn, Listener, PeerHost, is_timeout};

/// A stranger who connects and sends nothing holds one answering thread for this long.
const STRANGER: Duration = Duration::from_secs(5);

pub fn connect_and_ask(session: usize, to: &Address, buffers: Buffers, cue: &Cue) -> Result<Session, Error> {
    let failed = |doing| move |cause| Error::Data { session, doing, cause: super::explain(cause) };
    let request = pattern(cue.spec.request_bytes);
    let mut response = vec![0; cue.spec.response_bytes as usize];
    let bytes = request.len() + response.len();
    let mut times = round_trips().map_err(failed("counting"))?;
    let mut meter = cue.meter();
    let ends = cue.ends();
    let mut began = Instant::now();
    while began < ends && !cue.is_stopped() {
        let conn = Conn::connect(to, buffers)?;
        conn.set_timeout(IDLE).map_err(failed("preparing a connection"))?;
        if cue.spec.nodelay {
            conn.set_nodelay().map_err(failed("setting nodelay (-D)"))?;
        }
        exchange(&conn, &request, &mut response).map_err(failed("asking"))?;
        drop(conn);
        let now = Instant::now();
        if meter.count(now, bytes, 1) {
            record(&mut times, now - began);
        }
        began = now;
    }
    Ok(Session { tally: meter.close(began), round_trips: Some(times), ..Session::default() })
}

fn exchange(conn: &Conn, request: &[u8], response: &mut [u8]) -> io::Result<()> {
    conn.write_all(request)?;
    if !conn.read_full(response)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match conn.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is longer than agreed")),
    }
}

/// Answers until the test stops. A connection that goes wrong is its asker's to report; the next may be fine.
pub fn accept_and_answer(
    listener: &Listener,
    from: PeerHost,
    seen: impl Fn(BufferSizes),
    cue: &Cue,
) -> io::Result<Session> {
    let mut request = vec![0; cue.spec.request_bytes as usize];
    let response = pattern(cue.spec.response_bytes);
    let mut meter = cue.meter();
    let mut first = true;
    let mut last = Instant::now();
    while !cue.is_stopped() && !cue.is_overdue(last) {
        let conn = match listener.accept() {
            Ok(conn) => conn,
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::ConnectionAborted => {
                last = Instant::now();
                continue;
            }
            Err(error) => return Err(error),
        };
        if conn.peer_host().ok() != Some(from) {
            continue;
        }
        if first {
            conn.buffers().map(&seen).ok();
            first = false;
        }
        if serve(&conn, cue, &mut request, &response).is_ok() {
            last = Instant::now();
            meter.count(last, request.len() + response.len(), 1);
        }
    }
    Ok(Session { tally: meter.close(last), ..Session::default() })
}

fn serve(conn: &Conn, cue: &Cue, request: &mut [u8], response: &[u8]) -> io::Result<()> {
    conn.set_timeout(STRANGER)?;
    if cue.spec.nodelay {
        conn.set_nodelay()?;
    }
    if !conn.read_full(request)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    conn.write_all(response)?;
    conn.finish_sending()?;
    conn.read(&mut [0]).map(|_| ())
}
