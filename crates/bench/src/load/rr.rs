//! Request and response over one connection: the asking end keeps the time of every round trip.
//!
//! With several requests in flight the answers come in the order of the requests, so the oldest one out is the
//! one that is answered.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use super::{check_overdue, pattern, record, round_trips};
use crate::team::{Cue, Session};
use crate::transport::Conn;

pub fn ask(conn: &Conn, cue: &Cue) -> io::Result<Session> {
    let request = pattern(cue.spec.request_bytes);
    let mut response = vec![0; cue.spec.response_bytes as usize];
    let bytes = request.len() + response.len();
    let mut times = round_trips();
    let mut meter = cue.meter();
    let finishes = cue.finishes();
    let depth = cue.spec.in_flight as usize;
    let mut out: VecDeque<Instant> = VecDeque::with_capacity(depth);
    let mut now = Instant::now();
    loop {
        let goes_on = now < finishes && !cue.is_stopped();
        while goes_on && out.len() < depth {
            out.push_back(now);
            conn.write_all(&request)?;
            if depth > 1 {
                now = Instant::now();
            }
        }
        let Some(asked) = out.pop_front() else { break };
        if !conn.read_full(&mut response)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        now = Instant::now();
        if meter.count(now, bytes, 1) {
            record(&mut times, now - asked);
        }
    }
    conn.finish_sending()?;
    Ok(Session { tally: meter.close(now), round_trips: Some(times), ..Session::default() })
}

pub fn answer(conn: &Conn, cue: &Cue) -> io::Result<Session> {
    let mut request = vec![0; cue.spec.request_bytes as usize];
    let response = pattern(cue.spec.response_bytes);
    let mut meter = cue.meter();
    while conn.read_full(&mut request)? {
        conn.write_all(&response)?;
        let now = Instant::now();
        meter.count(now, request.len() + response.len(), 1);
        check_overdue(cue, now)?;
    }
    Ok(Session { tally: meter.close(Instant::now()), ..Session::default() })
}
