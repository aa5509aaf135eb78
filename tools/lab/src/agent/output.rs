//! The writer of the port: one thread, whole frames only.

use std::fs::File;
use std::io::Write;
use std::sync::mpsc::{self, Sender};

pub fn send(out: &Sender<Vec<u8>>, bytes: Vec<u8>) {
    // The writer ends only with the process.
    let _ = out.send(bytes);
}

pub fn start_writer(mut file: File) -> Sender<Vec<u8>> {
    let (sender, receiver) = mpsc::channel::<Vec<u8>>();
    std::thread::spawn(move || {
        for bytes in receiver {
            if let Err(error) = file.write_all(&bytes) {
                eprintln!("vmlane agent: cannot write the lab's port: {error}");
                std::process::exit(1);
            }
        }
    });
    sender
}
