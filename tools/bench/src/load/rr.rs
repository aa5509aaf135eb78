//! Request and response over one connection: the asking end keeps the time of every round trip.
//!
//! With several requests in flight the answers come in the order of the requests, so the oldest one out is
//! the one that is answered. The asker then never blocks in a request while an answer may wait: with the
//! buffers of both directions full, the two ends would wait for each other for ever.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use super::{check_overdue, pattern, record, round_trips};
use crate::session_group::{Cue, Session};
use crate::transport::{Conn, is_timeout};

pub fn ask(conn: &Conn, cue: &Cue) -> io::Result<Session> {
    let request = pattern(cue.spec.request_bytes);
    let mut response = vec![0; cue.spec.response_bytes as usize];
    let bytes = request.len() + response.len();
    let mut times = round_trips()?;
    let mut meter = cue.meter();
    let finishes = cue.finishes();
    let depth = cue.spec.in_flight as usize;
    let mut out = Outstanding { asked: VecDeque::with_capacity(depth), sent: 0 };
    let mut now = Instant::now();
    loop {
        let goes_on = now < finishes && !cue.is_stopped();
        let asking = if depth > 1 {
            out.fill(conn, &request, if goes_on { depth } else { 0 })
        } else if goes_on {
            out.asked.push_back(now);
            conn.write_all(&request)
        } else {
            Ok(())
        };
        let Some(asked) = out.asked.pop_front() else {
            asking?;
            break;
        };
        match asking.and_then(|()| conn.read_full(&mut response)) {
            Ok(true) => {}
            _ if cue.was_abandoned() => break,
            Ok(false) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => return Err(error),
        }
        now = Instant::now();
        if meter.count(now, bytes, 1) {
            record(&mut times, now - asked);
        }
    }
    match conn.finish_sending() {
        Err(error) if !cue.was_abandoned() => return Err(error),
        _ => {}
    }
    Ok(Session { tally: meter.close(now), round_trips: Some(times), ..Session::default() })
}

/// Requests without an answer yet.
struct Outstanding {
    /// When each began that went out whole.
    asked: VecDeque<Instant>,
    /// Bytes that are out of the next one.
    sent: usize,
}

impl Outstanding {
    /// Sends until `depth` requests are out or nothing more fits; what has begun is finished in any case. At
    /// least one is out afterwards if there was anything to send.
    fn fill(&mut self, conn: &Conn, request: &[u8], depth: usize) -> io::Result<()> {
        while self.asked.len() < depth || self.sent > 0 {
            let began = Instant::now();
            match conn.try_write(request.get(self.sent..).unwrap_or_default()) {
                Ok(count) => self.sent += count,
                Err(error) if is_timeout(&error) && !self.asked.is_empty() => break, // an answer makes room
                // No answer is pending: the ordinary way may wait for room.
                Err(error) if is_timeout(&error) => {
                    conn.write_all(request.get(self.sent..).unwrap_or_default())?;
                    self.sent = request.len();
                }
                Err(error) => return Err(error),
            }
            if self.sent >= request.len() {
                self.sent = 0;
                self.asked.push_back(began);
            }
        }
        Ok(())
    }
}

pub fn answer(conn: &Conn, cue: &Cue) -> io::Result<Session> {
    let mut request = vec![0; cue.spec.request_bytes as usize];
    let response = pattern(cue.spec.response_bytes);
    let mut meter = cue.meter();
    let mut seen = cue.nothing_seen();
    loop {
        let answered = match conn.read_full(&mut request) {
            Ok(true) => conn.write_all(&response).map(|()| true),
            other => other,
        };
        match answered {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) if cue.was_abandoned() => break,
            Err(error) => return Err(error),
        }
        if !cue.check_phase(&mut seen) {
            meter.add(request.len() + response.len(), 1);
            continue;
        }
        let now = Instant::now();
        meter.count(now, request.len() + response.len(), 1);
        check_overdue(cue, now)?;
    }
    Ok(Session { tally: meter.close(Instant::now()), ..Session::default() })
}
