//! A server of one page: HTTP/1.1, one request a connection, a bound on everything.
//!
//! Any user of the host may connect to a loopback address. So a connection is held for a limited time, a
//! request has a limited length, and connections at once are limited; a client that does not ask, or does not
//! take its answer, makes room for the next one (`places.rs`). Requests are read by `httparse`.

mod places;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::places::Bounds;
use self::places::{ClientPlace, Phase, Places};

/// The content type and the text of the page, by a client's header `Accept`.
pub type Page = dyn Fn(&str) -> (&'static str, String) + Send + Sync;

/// Where it is.
const PATH: &str = "/metrics";
/// Headers that a request may have.
const HEADERS: usize = 64;

/// Serves at all listeners, for good: each has a thread that accepts, each connection one that answers.
pub fn serve(listeners: Vec<TcpListener>, bounds: Bounds, page: &Arc<Page>) -> io::Result<()> {
    let places = Arc::new(Places::default());
    let threads = listeners.into_iter().map(|listener| {
        let (page, places) = (page.clone(), places.clone());
        std::thread::Builder::new()
            .name("accept".into())
            .spawn(move || accept(&listener, bounds, &page, &places))
    });
    for thread in threads.collect::<io::Result<Vec<_>>>()? {
        let _ = thread.join();
    }
    Ok(())
}

fn accept(listener: &TcpListener, bounds: Bounds, page: &Arc<Page>, places: &Arc<Places>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // Out of descriptors, most likely: connections must end first.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let stream = Arc::new(stream);
        let deadline = Instant::now() + bounds.time;
        let Some(place) = places.take(&stream, bounds) else {
            // That fits the socket's buffer, so nothing waits here.
            let answer = Answer::error("503 Service Unavailable", "too many connections");
            let _ =
                answer.send(&mut Timed { stream, deadline: Instant::now() + Duration::from_secs(1) }, true);
            continue;
        };
        let page = page.clone();
        let serving = move || {
            converse(Timed { stream, deadline }, &place, bounds, &*page);
        };
        if std::thread::Builder::new().name("http".into()).spawn(serving).is_err() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A connection that is over at some time, whatever its other end does.
struct Timed {
    stream: Arc<TcpStream>,
    deadline: Instant,
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        (&*self.stream).read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        (&*self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Answer {
    status: &'static str,
    content_type: &'static str,
    /// A line of its own, with its end.
    header: &'static str,
    body: String,
}

impl Answer {
    fn error(status: &'static str, why: &str) -> Answer {
        let body = format!("{why}\n");
        Answer { status, content_type: "text/plain; charset=utf-8", header: "", body }
    }

    /// A request may not have been read to its end: closing at once would take the answer away from its
    /// reader.
    fn send(&self, to: &mut Timed, with_body: bool) -> io::Result<()> {
        let Answer { status, content_type, header, body } = self;
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{header}Connection: close\r\n\r\n"
        );
        to.write_all(head.as_bytes())?;
        if with_body {
            to.write_all(body.as_bytes())?;
        }
        to.stream.shutdown(Shutdown::Write)
    }
}

/// Reads a request and answers it.
fn converse(mut stream: Timed, place: &ClientPlace, bounds: Bounds, page: &Page) {
    let mut bytes = Vec::new();
    let (answer, with_body) = match request(&mut stream, &mut bytes, bounds.request) {
        Ok(true) => {
            place.enter(Phase::Answering);
            answer(&bytes, page)
        }
        Ok(false) => (Answer::error("431 Request Header Fields Too Large", "the request is too long"), true),
        Err(error) if is_timeout(&error) => {
            // Time for the answer alone.
            stream.deadline = Instant::now() + Duration::from_secs(1);
            (Answer::error("408 Request Timeout", "the request did not arrive in time"), true)
        }
        Err(_) => return,
    };
    place.enter(Phase::Sending { since: Instant::now() });
    if answer.send(&mut stream, with_body).is_ok() {
        drain(&mut stream);
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// Reads up to the empty line that ends a request. False: it is too long.
fn request(stream: &mut Timed, bytes: &mut Vec<u8>, most: usize) -> io::Result<bool> {
    let mut part = [0; 1024];
    loop {
        // Three bytes of an end may have come before.
        let from = bytes.len().saturating_sub(3);
        let count = stream.read(&mut part)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(part.get(..count).unwrap_or_default());
        if bytes.len() > most {
            return Ok(false);
        }
        if bytes.get(from..).unwrap_or_default().windows(4).any(|end| end == b"\r\n\r\n") {
            return Ok(true);
        }
    }
}

/// The answer to a request, and whether its body is wanted.
fn answer(request: &[u8], page: &Page) -> (Answer, bool) {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let (method, target) = match parsed.parse(request) {
        Ok(httparse::Status::Complete(_)) => (parsed.method.unwrap_or(""), parsed.path.unwrap_or("")),
        Err(httparse::Error::TooManyHeaders) => {
            return (Answer::error("431 Request Header Fields Too Large", "too many headers"), true);
        }
        _ => return (Answer::error("400 Bad Request", "this is no HTTP request"), true),
    };
    let path = target.split(['?', '#']).next().unwrap_or_default();
    if path != PATH {
        return (Answer::error("404 Not Found", "there is /metrics and nothing else"), method != "HEAD");
    }
    if !matches!(method, "GET" | "HEAD") {
        let answer = Answer::error("405 Method Not Allowed", "use GET");
        return (Answer { header: "Allow: GET, HEAD\r\n", ..answer }, true);
    }
    let accept = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case("accept"));
    let accept = accept.and_then(|header| std::str::from_utf8(header.value).ok()).unwrap_or_default();
    let (content_type, body) = page(accept);
    (Answer { status: "200 OK", content_type, header: "", body }, method == "GET")
}

/// Takes what else comes, for a moment: bytes that are not read would make the kernel take the answer back.
fn drain(stream: &mut Timed) {
    stream.deadline = stream.deadline.min(Instant::now() + Duration::from_secs(1));
    let mut part = [0; 1024];
    let mut left = 256;
    while left > 0 && matches!(stream.read(&mut part), Ok(count) if count > 0) {
        left -= 1;
    }
}

#[cfg(test)]
mod tests;
