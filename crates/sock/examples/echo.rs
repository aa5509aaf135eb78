//! Sends a line to a port of a VM and prints what comes back: `echo 3 5000 hello`.

use std::io::{Read, Write};
use std::net::Shutdown;

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [cid, port, text] = &words[..] else {
        eprintln!("usage: echo CID PORT TEXT");
        std::process::exit(2);
    };
    let number = |word: &str| word.parse::<u32>().map_err(std::io::Error::other);
    let mut stream = vmlane_sock::Stream::connect(number(cid)?, number(port)?)?;
    stream.write_all(text.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    print!("{answer}");
    Ok(())
}
