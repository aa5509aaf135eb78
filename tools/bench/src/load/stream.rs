//! Bulk: one end sends messages until its time is up and then finishes; the other reads to the end.
//!
//! The receiver's count is the result. Without a cool-down its window reaches to the end of the stream, so
//! bytes that were still under way when the sender finished are paid for with the time they took; with one,
//! all sessions are under way for the whole of the window.

use std::io;
use std::time::Instant;

use super::pace::Pace;
use super::{check_overdue, pattern};
use crate::session_group::{Cue, Session};
use crate::transport::Conn;

pub fn send(conn: &Conn, cue: &Cue) -> io::Result<Session> {
    let message = pattern(cue.spec.message_bytes);
    let mut meter = cue.meter();
    let mut pace = Pace::new(cue.start, cue.spec.rate_bps);
    let finishes = cue.finishes();
    let mut seen = cue.nothing_seen();
    loop {
        pace.wait(message.len(), finishes);
        if let Err(error) = conn.write_all(&message) {
            if cue.was_abandoned() {
                return Ok(Session { tally: meter.close(Instant::now()), ..Session::default() });
            }
            return Err(error);
        }
        if !cue.check_phase(&mut seen) {
            meter.add(message.len(), 0);
            if cue.is_stopped() {
                break;
            }
            continue;
        }
        let now = Instant::now();
        meter.count(now, message.len(), 0);
        if now >= finishes || cue.is_stopped() {
            break;
        }
    }
    match conn.finish_sending() {
        Err(error) if !cue.was_abandoned() => return Err(error),
        _ => {}
    }
    Ok(Session { tally: meter.close(Instant::now()), ..Session::default() })
}

pub fn receive(conn: &Conn, cue: &Cue) -> io::Result<Session> {
    let mut buffer = vec![0; cue.spec.receive_bytes as usize];
    let mut meter = cue.meter();
    let mut seen = cue.nothing_seen();
    loop {
        let count = match conn.read(&mut buffer) {
            Err(_) if cue.was_abandoned() => 0,
            other => other?,
        };
        if count > 0 && !cue.check_phase(&mut seen) {
            meter.add(count, 0);
            continue;
        }
        let now = Instant::now();
        if count == 0 {
            return Ok(Session { tally: meter.close(now), ..Session::default() });
        }
        meter.count(now, count, 0);
        check_overdue(cue, now)?;
    }
}

/// Sends and receives at once, on two threads. The count is what was received.
pub fn both(conn: &Conn, cue: &Cue) -> io::Result<Session> {
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            send(conn, cue).inspect_err(|_| conn.hang_up()) // who reads must not wait for what will not come
        });
        let received = receive(conn, cue).inspect_err(|_| conn.hang_up());
        let sent = sending.join().unwrap_or_else(|_| Err(io::Error::other("the sending thread panicked")))?;
        let mut session = received?;
        session.tally.cpu_seconds += sent.tally.cpu_seconds;
        Ok(session)
    })
}
