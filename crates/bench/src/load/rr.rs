//! Request and response over one connection: the asking end keeps the time of every round trip.

use std::io;
use std::time::Instant;

use super::{check_overdue, pattern, record, round_trips};
use crate::meter::Meter;
use crate::team::{Cue, Session};
use crate::transport::Conn;

pub fn ask(conn: &Conn, cue: &Cue) -> io::Result<Session> {
    let request = pattern(cue.spec.request_bytes);
    let mut response = vec![0; cue.spec.response_bytes as usize];
    let bytes = request.len() + response.len();
    let mut times = round_trips();
    let mut meter = Meter::new(cue.opens());
    let ends = cue.ends();
    let mut asked = Instant::now();
    while asked < ends && !cue.is_stopped() {
        conn.write_all(&request)?;
        if !conn.read_full(&mut response)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let now = Instant::now();
        if meter.count(now, bytes, 1) {
            record(&mut times, now - asked);
        }
        asked = now;
    }
    conn.finish_sending()?;
    Ok(Session { tally: meter.close(asked), round_trips: Some(times) })
}

pub fn answer(conn: &Conn, cue: &Cue) -> io::Result<Session> {
    let mut request = vec![0; cue.spec.request_bytes as usize];
    let response = pattern(cue.spec.response_bytes);
    let mut meter = Meter::new(cue.opens());
    while conn.read_full(&mut request)? {
        conn.write_all(&response)?;
        let now = Instant::now();
        meter.count(now, request.len() + response.len(), 1);
        check_overdue(cue, now)?;
    }
    Ok(Session { tally: meter.close(Instant::now()), round_trips: None })
}
