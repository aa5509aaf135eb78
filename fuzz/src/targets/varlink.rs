//! The control socket in both of its framings, as the daemon serves one client: whatever it sends and however
//! that is cut, each message has one answer that is an object of its framing and not much longer than the
//! message, and a call that was understood is the same call in the other framing.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};
use vmlane_access::Peer;
use vmlane_api::{Call, ErrorCode, Failure, MAX_REQUEST, varlink};
use vmlane_daemon::control::{Answer, Answers, Bounds, May, serve};
use vmlane_testkit::LONGEST;

use crate::Input;

/// Answers with what it was asked, so that everything a client can write comes back.
struct Echo;

impl Answers for Echo {
    fn may(&self, _: &Peer) -> Option<May> {
        Some(May::Admin)
    }

    fn answer(&self, call: Call, _: &Peer) -> Answer {
        let line = call.to_line();
        if line.len() <= MAX_REQUEST {
            assert_eq!(Call::from_line(line.trim_end().as_bytes()).as_ref(), Ok(&call));
        }
        let codes = &ErrorCode::ALL;
        Answer::Body(match line.len() % (codes.len() + 3) {
            code if code < codes.len() => Err(Failure { code: codes[code], message: format!("{call:?}") }),
            _ => Ok(json!({ "call": line }).to_string()),
        })
    }
}

pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (piece, padding) = (1 + usize::from(input.byte()), input.byte());
    // Some begin close to the longest request.
    let mut sent = Vec::new();
    if padding & 0x80 != 0 {
        sent.resize(MAX_REQUEST - usize::from(padding & 0x7f) * 4, b' ');
    }
    sent.extend_from_slice(input.0);
    let said = converse(&sent, if padding & 0x80 != 0 { MAX_REQUEST } else { piece });
    judge(&sent, &said);
}

/// Sends pieces, and reads all that the daemon answers until it has closed the connection.
fn converse(sent: &[u8], piece: usize) -> Vec<u8> {
    let (mut near, far) = UnixStream::pair().expect("sockets");
    let peer = Peer { pid: 1, uid: 0, gid: 0, groups: Vec::new() };
    let bounds = Bounds { request: LONGEST, answer: LONGEST, ..Bounds::default() };
    near.set_nonblocking(true).expect("a socket");
    std::thread::scope(|scope| {
        scope.spawn(move || serve(&far, &peer, &Echo, bounds));
        let (mut pieces, mut said, mut chunk) = (sent.chunks(piece), Vec::new(), vec![0; 64 << 10]);
        let mut left: &[u8] = &[];
        let mut writing = true;
        loop {
            let events = if writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            // The fuzzer's alarm interrupts it; then nothing is there, and it waits again.
            let _ = poll(&mut [PollFd::new(&near, events)], None);
            if writing {
                if left.is_empty() {
                    left = pieces.next().unwrap_or_default();
                }
                writing = match near.write(left) {
                    Ok(0) => false,
                    Ok(count) => {
                        left = &left[count..];
                        true
                    }
                    Err(error) => is_to_wait(&error),
                };
                if !writing {
                    let _ = near.shutdown(Shutdown::Write);
                }
            }
            match near.read(&mut chunk) {
                Ok(0) => return said,
                Ok(count) => said.extend_from_slice(&chunk[..count]),
                Err(error) if is_to_wait(&error) => {}
                // It closed the connection before it had read everything.
                Err(_) => return said,
            }
        }
    })
}

fn is_to_wait(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
}

fn judge(sent: &[u8], said: &[u8]) {
    let first = sent.iter().position(|byte| b"\n\0".contains(byte)).filter(|at| *at < MAX_REQUEST);
    let end = first.map_or(b'\n', |at| sent[at]);
    let (mut least, mut most, mut longest, mut cut) = (0, 0, 0, false);
    let mut messages: Vec<&[u8]> = sent.split(|byte| *byte == end).collect();
    // What comes after the last end is no message yet.
    let unfinished = messages.pop().unwrap_or_default();
    for message in messages {
        cut = message.len() >= MAX_REQUEST;
        longest = longest.max(message.len());
        let has = |word: &[u8]| message.windows(word.len()).any(|bytes| bytes == word);
        let may_be_oneway = end == 0 && !cut && (has(b"oneway") || has(b"\\u"));
        least += usize::from(!may_be_oneway);
        most += 1;
        if cut {
            break;
        }
    }
    if !cut && unfinished.len() >= MAX_REQUEST {
        (least, most) = (least + 1, most + 1);
    }
    let Some((last, answers)) = said.split_last() else { return assert_eq!(least, 0, "no answer") };
    assert_eq!(*last, end, "an answer has no end");
    let answers: Vec<&[u8]> = answers.split(|byte| *byte == end).collect();
    assert!((least..=most).contains(&answers.len()), "{least} to {most} answers: {}", answers.len());
    for answer in answers {
        // A letter of a message has six in JSON at most, and a call that is told as JSON in JSON twice as
        // many.
        assert!(answer.len() <= 12 * longest + 2 * varlink::description().len(), "{} bytes", answer.len());
        let answer: Value = serde_json::from_slice(answer).expect("JSON");
        if end == 0 { varlink_answer(&answer) } else { line_answer(&answer) }
    }
}

fn varlink_answer(answer: &Value) {
    let fields = answer.as_object().expect("an object");
    assert!(fields["parameters"].is_object(), "{answer}");
    assert!(fields.keys().all(|key| key == "parameters" || key == "error"), "{answer}");
    if let Some(error) = fields.get("error") {
        let (interface, name) = error.as_str().and_then(|error| error.rsplit_once('.')).expect("a name");
        assert!(["org.varlink.service", varlink::INTERFACE].contains(&interface), "{answer}");
        assert!(name.starts_with(|first: char| first.is_ascii_uppercase()), "{answer}");
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{answer}");
    }
}

fn line_answer(answer: &Value) {
    assert_eq!(answer["version"], 1, "{answer}");
    assert!(answer["ok"].is_object() != answer["error"]["message"].is_string(), "{answer}");
}
