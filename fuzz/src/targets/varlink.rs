//! The control socket, as the daemon serves one client: whatever it sends and however that is cut, each
//! message has one answer that is an object of Varlink's and not much longer than the message, and what a
//! client understands of it is what the daemon answered.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};
use vmlane_access::Peer;
use vmlane_api::varlink::{self, Answered};
use vmlane_api::{Call, Done, ErrorCode, Failure, MAX_REQUEST};
use vmlane_daemon::control::{Answer, Answers, Bounds, May, serve};
use vmlane_testkit::LONGEST;

use crate::Input;

/// Answers with what it was asked, so that everything a client can write comes back.
struct Echo;

impl Answers for Echo {
    fn may(&self, _: &Peer) -> Option<May> {
        Some(May::Admin)
    }

    fn answer(&self, call: Call, _: &Peer) -> Result<Answer, Failure> {
        let message = format!("{call:?}");
        match ErrorCode::ALL.get(message.len() % (ErrorCode::ALL.len() + 3)) {
            Some(&code) => Err(Failure { code, message }),
            None => Ok(Answer { json: json!({ "call": message }).to_string(), lasting: None }),
        }
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
    let answered = converse(&sent, if padding & 0x80 != 0 { MAX_REQUEST } else { piece });
    judge(&sent, &answered);
}

/// Sends pieces, and reads all that the daemon answers until it has closed the connection.
fn converse(sent: &[u8], piece: usize) -> Vec<u8> {
    let (mut near, far) = UnixStream::pair().expect("sockets");
    let peer = Peer { pid: 1, uid: 0, gid: 0, groups: Vec::new() };
    let bounds = Bounds { request: LONGEST, answer: LONGEST, ..Bounds::default() };
    near.set_nonblocking(true).expect("a socket");
    std::thread::scope(|scope| {
        scope.spawn(move || serve(&far, &peer, &Echo, bounds));
        let (mut pieces, mut answered, mut chunk) = (sent.chunks(piece), Vec::new(), vec![0; 64 << 10]);
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
                Ok(0) => return answered,
                Ok(count) => answered.extend_from_slice(&chunk[..count]),
                Err(error) if is_to_wait(&error) => {}
                // It closed the connection before it had read everything.
                Err(_) => return answered,
            }
        }
    })
}

fn is_to_wait(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
}

fn judge(sent: &[u8], answered: &[u8]) {
    let (mut least, mut most, mut longest, mut cut) = (0, 0, 0, false);
    let mut messages: Vec<&[u8]> = sent.split(|byte| *byte == 0).collect();
    // What comes after the last end is no message yet.
    let unfinished = messages.pop().unwrap_or_default();
    for message in messages {
        cut = message.len() >= MAX_REQUEST;
        longest = longest.max(message.len());
        let has = |word: &[u8]| message.windows(word.len()).any(|bytes| bytes == word);
        let may_be_oneway = !cut && (has(b"oneway") || has(b"\\u"));
        least += usize::from(!may_be_oneway);
        most += 1;
        if cut {
            break;
        }
    }
    if !cut && unfinished.len() >= MAX_REQUEST {
        (least, most) = (least + 1, most + 1);
    }
    let Some((last, answers)) = answered.split_last() else { return assert_eq!(least, 0, "no answer") };
    assert_eq!(*last, 0, "an answer has no end");
    let answers: Vec<&[u8]> = answers.split(|byte| *byte == 0).collect();
    assert!((least..=most).contains(&answers.len()), "{least} to {most} answers: {}", answers.len());
    for answer in answers {
        // A letter of a message has six in JSON at most, and a call that is shown in JSON twice as many.
        assert!(answer.len() <= 12 * longest + 2 * varlink::description().len(), "{} bytes", answer.len());
        judge_answer(answer);
    }
}

fn judge_answer(bytes: &[u8]) {
    let answer: Value = serde_json::from_slice(bytes).expect("JSON");
    let fields = answer.as_object().expect("an object");
    assert!(fields["parameters"].is_object(), "{answer}");
    assert!(fields.keys().all(|key| key == "parameters" || key == "error"), "{answer}");
    let Some(error) = fields.get("error") else {
        return assert_eq!(varlink::answered(bytes), Answered::Ok(Done {}));
    };
    let (interface, name) = error.as_str().and_then(|error| error.rsplit_once('.')).expect("a name");
    match varlink::answered::<Done>(bytes) {
        Answered::Refused(failure) => {
            assert_eq!((interface, name), (varlink::INTERFACE, &*failure.code.name()));
            assert_eq!(answer["parameters"]["message"], failure.message);
        }
        other => {
            assert_eq!(
                (interface, other),
                ("org.varlink.service", Answered::Otherwise(format!("{interface}.{name}")))
            );
        }
    }
}
