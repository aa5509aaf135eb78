//! Bulk: one end sends messages until its time is up and then finishes; the other reads to the end.
//!
//! The receiver's count is the result. Its window reaches to the end of the stream, so bytes that were
//! still under way when the sender finished are paid for with the time they took.

use std::io;
use std::time::Instant;

use super::{check_overdue, pattern};
use crate::meter::Meter;
use crate::team::{Cue, Session};
use crate::transport::Conn;

pub fn send(conn: &Conn, cue: &Cue) -> io::Result<Session> {
    let message = pattern(cue.spec.message_bytes);
    let mut meter = Meter::new(cue.opens());
    let ends = cue.ends();
    loop {
        conn.write_all(&message)?;
        let now = Instant::now();
        meter.count(now, message.len(), 0);
        if now >= ends || cue.is_stopped() {
            break;
        }
    }
    conn.finish_sending()?;
    Ok(Session { tally: meter.close(Instant::now()), round_trips: None })
}

pub fn receive(conn: &Conn, cue: &Cue) -> io::Result<Session> {
    let mut buffer = vec![0; cue.spec.receive_bytes as usize];
    let mut meter = Meter::new(cue.opens());
    loop {
        let count = conn.read(&mut buffer)?;
        let now = Instant::now();
        if count == 0 {
            return Ok(Session { tally: meter.close(now), round_trips: None });
        }
        meter.count(now, count, 0);
        check_overdue(cue, now)?;
    }
}
