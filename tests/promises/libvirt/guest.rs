//! A guest of a libvirt domain: commands for the lab's agent in it, over the domain's virtio channel.

use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use vmlane_lab::proto::{Exec, Exit, Frame, Hello, FrameKind, Setup, Up, hunt, opening};
use vmlane_lab::spec::Nic;
use vmlane_tests::eventually;

/// How long a guest may be silent: it boots beside others, and is emulated.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The host's end of a guest's channel.
pub struct Guest {
    port: BufReader<UnixStream>,
    setup: Setup,
    session: u32,
}

impl Guest {
    /// Connects to a domain that was started, and waits until its guest has the address.
    pub fn up(channel: &Path, name: &str, (mac, address): (&str, &str), vmci: bool) -> Guest {
        let port = eventually("the domain's channel", || UnixStream::connect(channel).ok());
        port.set_read_timeout(Some(TIMEOUT)).expect("a time limit");
        let nic = Nic {
            device: "eth0".into(),
            network: 0,
            mac: mac.into(),
            ipv4: format!("{address}/24"),
            ipv6: format!("fd77::{}/64", address.rsplit('.').next().unwrap_or_default()),
            mtu: None,
        };
        let setup = Setup { hostname: name.into(), nics: vec![nic], vmci, ..Setup::default() };
        let mut guest = Guest { port: BufReader::new(port), setup, session: 0 };
        guest.booted();
        guest
    }

    /// Waits for the agent of a guest that boots, and sends it what the guest should become.
    pub fn booted(&mut self) {
        assert!(hunt(&mut self.port).expect("the channel"), "the domain ended");
        let hello: Hello = self.frame().parse().expect("the agent's first words");
        self.setup.nonce = hello.nonce;
        let setup = opening(&Frame::json(FrameKind::Setup, 0, &self.setup));
        self.port.get_mut().write_all(&setup).expect("the channel");
        let up = self.frame();
        assert_eq!(up.kind, FrameKind::Up, "{up:?}");
        let up: Up = up.parse().expect("a report");
        assert_eq!(up.warnings, Vec::<String>::new());
    }

    fn frame(&mut self) -> Frame {
        Frame::read(&mut self.port).expect("a frame").expect("the domain runs")
    }

    /// Runs a line of the shell that must succeed; what it printed.
    pub fn sh(&mut self, line: &str) -> String {
        self.session += 1;
        let argv = ["/bin/sh", "-c", line].map(str::to_owned).to_vec();
        let exec = Exec { argv, ..Exec::default() };
        let mut words = Frame::json(FrameKind::Exec, self.session, &exec).encode();
        words.extend(Frame::new(FrameKind::StdinEnd, self.session, Vec::new()).encode());
        self.port.get_mut().write_all(&words).expect("the channel");
        let mut out = String::new();
        loop {
            let frame = self.frame();
            match frame.kind {
                FrameKind::Stdout | FrameKind::Stderr => out += &String::from_utf8_lossy(&frame.data),
                FrameKind::Exit => {
                    let exit: Exit = frame.parse().expect("an exit code");
                    assert_eq!(exit.code, Some(0), "{line}: {out}");
                    return out.trim().to_owned();
                }
                FrameKind::Failed => panic!("{line}: {}", String::from_utf8_lossy(&frame.data)),
                _ => {}
            }
        }
    }

    /// Asks the agent to restart the guest, and waits for the next one.
    pub fn reboot(&mut self) {
        let frame = Frame::new(FrameKind::Reboot, 0, Vec::new()).encode();
        self.port.get_mut().write_all(&frame).expect("the channel");
        self.booted();
    }
}
