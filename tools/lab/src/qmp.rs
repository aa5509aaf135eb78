//! One command to a QEMU over its QMP socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// QEMU serves one client at a time and answers at once; another client is waited for this long.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs `command` and gives back what it returns.
pub fn execute(socket: &Path, command: &str, arguments: Option<Value>) -> Result<Value> {
    let what = || format!("QMP {command} at {}", socket.display());
    let stream = UnixStream::connect(socket).with_context(what)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line).with_context(what)?; // the greeting
    call(&stream, &mut reader, json!({"execute": "qmp_capabilities"})).with_context(what)?;
    let mut request = json!({"execute": command});
    if let Some(arguments) = arguments {
        request["arguments"] = arguments;
    }
    call(&stream, &mut reader, request).with_context(what)
}

fn call(mut stream: &UnixStream, reader: &mut impl BufRead, request: Value) -> Result<Value> {
    stream.write_all(format!("{request}\n").as_bytes())?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            bail!("QEMU closed the socket without an answer");
        }
        let mut answer: Value = serde_json::from_str(&line)?;
        if answer.get("return").is_some() {
            return Ok(answer["return"].take());
        }
        if let Some(error) = answer.get("error") {
            bail!("{}", error["desc"].as_str().unwrap_or("QEMU refused it"));
        }
        // Anything else is an event.
    }
}
