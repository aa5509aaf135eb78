//! Datagrams: sent as fast as they go or at a pace, accounted for where they arrive; and request-response
//! that survives a loss.

use std::io;
use std::time::{Duration, Instant};

use super::pace::Pace;
use super::{check_overdue, pattern, record, round_trips};
use crate::datagrams::{Account, Datagrams, HEADER, Header, Phase};
use crate::meter::Tally;
use crate::session_group::{Cue, Session};
use crate::transport::{DatagramConn, Sent};

/// How long a receiver sleeps before it checks whether all is over.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// What is under way may still arrive this long after the sender was reported to be done.
const DRAIN: Duration = Duration::from_millis(300);
/// A request whose answer takes longer is lost.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The end is announced this often, in case some datagrams are lost.
const ENDS: usize = 5;

pub fn send_datagrams(conn: &DatagramConn, cue: &Cue) -> io::Result<Session> {
    let mut message = pattern(cue.spec.message_bytes);
    let mut meter = cue.meter();
    let mut pace = Pace::new(cue.start, cue.spec.rate_bps);
    let (opens, ends, finishes) = (cue.opens(), cue.ends(), cue.finishes());
    let mut datagrams = Datagrams::default();
    let mut number = 0;
    conn.set_timeout(POLL_INTERVAL)?;
    let put = |number: u64, phase: Phase, message: &mut [u8]| {
        let sent_ns = cue.start.elapsed().as_nanos() as u64;
        let header = Header { number, sent_ns, token: conn.token, phase };
        *message.first_chunk_mut().ok_or(io::ErrorKind::InvalidInput)? = header.to_bytes();
        conn.send(message)
    };
    loop {
        pace.wait(message.len(), finishes);
        let now = Instant::now();
        if now >= finishes || cue.is_stopped() {
            break;
        }
        let phase = match now {
            _ if now < opens => Phase::Warmup,
            _ if now < ends => Phase::Counted,
            _ => Phase::Cooldown,
        };
        if put(number, phase, &mut message)? == Sent::Refused {
            datagrams.refused += u64::from(phase == Phase::Counted);
            conn.wait_for_room();
            continue;
        }
        number += 1;
        datagrams.sent += u64::from(phase == Phase::Counted);
        meter.count(now, message.len(), 0);
    }
    let tally = meter.close(Instant::now());
    message.truncate(HEADER);
    for _ in 0..ENDS {
        let _ = put(number, Phase::End, &mut message); // who misses it waits a moment longer
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(Session { tally, datagrams: Some(datagrams), ..Session::default() })
}

pub fn receive_datagrams(conn: &DatagramConn, cue: &Cue) -> io::Result<Session> {
    let mut buffer = DatagramConn::room(cue.spec.receive_bytes.max(cue.spec.message_bytes));
    let mut account = Account::new(cue.start);
    let mut meter = cue.meter();
    conn.set_timeout(POLL_INTERVAL)?;
    let mut over: Option<Instant> = None;
    loop {
        let got = conn.receive(&mut buffer)?;
        let now = Instant::now();
        if let Some(count) = got {
            match buffer.get(..count).and_then(|datagram| Header::parse(datagram, conn.token)) {
                Some(header) if header.phase == Phase::Counted => {
                    account.receive(&header, count, now);
                }
                Some(header) if header.phase == Phase::End => over = over.or(Some(now)),
                _ => {}
            }
            meter.count(now, count, 0);
        }
        if cue.is_stopped() || now > cue.finishes() + DRAIN {
            over = over.or(Some(now));
        }
        // After the end only stragglers come.
        if over.is_some_and(|at| got.is_none() || now > at + DRAIN) {
            break;
        }
        check_overdue(cue, now)?;
    }
    let cpu_seconds = meter.close(Instant::now()).cpu_seconds;
    let (datagrams, bytes, time) = account.close();
    // The window is the sender's: what arrived of what was sent in it.
    let seconds = time.as_secs_f64().max(cue.spec.seconds);
    let tally = Tally { bytes, transactions: 0, seconds, cpu_seconds };
    Ok(Session { tally, datagrams: Some(datagrams), ..Session::default() })
}

/// Sends and receives at once, on two threads. The bytes are those received; the account is of both ways.
pub fn both_datagrams(conn: &DatagramConn, cue: &Cue) -> io::Result<Session> {
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| send_datagrams(conn, cue));
        let received = receive_datagrams(conn, cue);
        let sent = sending.join().unwrap_or_else(|_| Err(io::Error::other("the sending thread panicked")))?;
        let mut session = received?;
        session.tally.cpu_seconds += sent.tally.cpu_seconds;
        session.datagrams = session.datagrams.zip(sent.datagrams).map(|(here, there)| here.add(there));
        Ok(session)
    })
}

/// As much of a request's number as fits in front of it.
fn number_in(message: &mut [u8], number: &[u8]) {
    message.iter_mut().zip(number.iter().take(8)).for_each(|(to, from)| *to = *from);
}

fn answers(response: &[u8], request: &[u8]) -> bool {
    response.iter().zip(request).take(8).all(|(theirs, ours)| theirs == ours)
}

pub fn ask_datagrams(conn: &DatagramConn, cue: &Cue) -> io::Result<Session> {
    let mut request = pattern(cue.spec.request_bytes);
    let mut response = DatagramConn::room(cue.spec.response_bytes);
    let bytes = (cue.spec.request_bytes + cue.spec.response_bytes) as usize;
    let mut times = round_trips()?;
    let mut meter = cue.meter();
    let (opens, finishes) = (cue.opens(), cue.finishes());
    let mut datagrams = Datagrams::default();
    conn.set_timeout(TIMEOUT)?;
    let mut now = Instant::now();
    let mut number = 0u64;
    while now < finishes && !cue.is_stopped() {
        let asked = now;
        number += 1;
        number_in(&mut request, &number.to_le_bytes());
        while conn.send(&request)? == Sent::Refused {
            conn.wait_for_room();
        }
        let counted = asked >= opens;
        datagrams.sent += u64::from(counted);
        let answered = loop {
            match conn.receive(&mut response)? {
                Some(count) if response.get(..count).is_some_and(|got| answers(got, &request)) => break true,
                // A late answer to an earlier request; it does not extend the wait.
                Some(_) if asked.elapsed() < TIMEOUT => {}
                _ => break false,
            }
        };
        now = Instant::now();
        if answered {
            datagrams.received += u64::from(counted);
            if meter.count(now, bytes, 1) {
                record(&mut times, now - asked);
            }
        }
    }
    let tally = meter.close(now);
    Ok(Session { tally, datagrams: Some(datagrams), round_trips: Some(times) })
}

pub fn answer_datagrams(conn: &DatagramConn, cue: &Cue) -> io::Result<Session> {
    let mut request = DatagramConn::room(cue.spec.request_bytes);
    let mut response = pattern(cue.spec.response_bytes);
    let mut meter = cue.meter();
    conn.set_timeout(POLL_INTERVAL)?;
    loop {
        let got = conn.receive(&mut request)?;
        let now = Instant::now();
        let got = got.and_then(|count| request.get(..count));
        // A late hello is no question.
        if let Some(question) = got.filter(|got| Header::parse(got, conn.token).is_none()) {
            number_in(&mut response, question);
            if conn.send(&response)? == Sent::Yes {
                meter.count(now, question.len() + response.len(), 1);
            }
        }
        if cue.is_stopped() {
            return Ok(Session { tally: meter.close(now), ..Session::default() });
        }
        check_overdue(cue, now)?;
    }
}
