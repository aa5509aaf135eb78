//! The guide's page "Why is my VM's network slow", made of the checks' own texts.

use std::fmt::Write as _;

use crate::checks;

const BEGINNING: &str = "\
# Why is my VM's network slow

<!-- Made from the checks of `vmlane doctor` (crates/doctor/src/checks). Do not edit: VMLANE_DRAW=1 cargo test -p vmlane-doctor guide -->

Two VMs, or any two Linux machines, at a tenth of the speed they should have: the cause is nearly always one of those below, and each has left
a trace. `vmlane doctor` looks for all of them. Start a server in one machine and the doctor in the other:

```console
b# vmlane bench server --doctor --listen tcp:0.0.0.0
a# vmlane doctor --to tcp:10.77.0.2
```

It reads the settings of both machines, measures each direction alone, and says what it found, the most important first: what is wrong, what was
seen, what it costs (measured, or estimated), and the commands that mend it, for now and for good. `--quick` takes less than 5 s, an examination less
than 30 s, and what there was no time for is named; `--json` is for programs. It changes nothing. The exit code is 0 if nothing was found, 1 with findings, 2 if it was called wrongly, 3 if
the other machine, or a capture, could not be examined.

`--prove` tries the remedies: after a question (or with `--yes`), each one that is a setting of the machine it runs on is applied, measured without
and with it in turns for four rounds or more, and taken back. It says before, after, and the spread of both, and whether that helps, does not, or makes
things worse; then all of them together, because one fault may hide another. Only MTU, offloads, rings, queues, interrupts and settings of TCP are
changed, as they run: no file, no VMM, nothing in the other machine; the commands for those are shown as always.

A process of its own makes the changes and takes them back, also when the doctor is interrupted, killed or crashes, or is silent for 90 s because its terminal
hangs. It keeps a record in `/run/vmlane-doctor`, written before each change. Should both processes be killed, `vmlane doctor --undo` puts everything
back, and the next proof waits for that. What somebody else has set meanwhile is named and left.

Over vsock (`--to vsock:4`, server with `--listen vsock:`) no network card is needed; cards are not examined then.

Where neither machine can be asked, captures can: `vmlane doctor --pcap a.pcap b.pcap` judges the TCP connections in files of one end or of both
(pcap and pcapng, of any size). Begin the capture before the connection, at the sending end (`tcpdump -s 128 -w a.pcap`): sizes and windows are
told in the first segments only, and only there it shows what was sent. Of two captures, the report says whether frames were lost between them.
Frames larger than the MTU are no fault in a capture: the machine that made it hands them to its card whole, or gets them merged.
TCP inside of VXLAN, Geneve, GRE and IP in IP is judged, too (`-s 256` keeps its headers). What else is in the file, such as vsock, UDP or what is encrypted, is not
examined: the report says how many packets of which kind, and a file in which none could be examined gives the exit code 3.

On the host of VMs, `vmlane doctor web db` says what no guest can see: which frames the switch dropped and why, whether both VMs are joined to one
network, how QEMU was started, and where its threads may run. VMs in which `vmlane bench server --doctor --listen vsock:` runs tell their own settings,
too. Where none runs, QEMU's guest agent is asked for the cards and their addresses, if QEMU's command line names its socket; libvirt passes an open
socket instead, and talks to the agent itself. A VM's QEMU is the process that is connected to the daemon (`vmm_pid` in `vmlane status --json`), whatever
the command lines of others name, and the agent's socket is used only if that process listens at it. `vmlane doctor lab NAME` does both for a lab (`vmlane lab up NAME`).

A server tells about its machine only if it was started with `--doctor`, and reads only. Anyone who reaches its port can ask: listen where you
trust the neighbours, or give a secret (`--secret-file` on both ends).

## What it looks for

";

/// The page, as docs/guide/slow-network.md has it.
pub fn page() -> String {
    let mut page = BEGINNING.to_owned();
    for check in checks::ALL {
        // The heading's anchor must be the check's name, whatever the title is.
        let _ = write!(page, "### {}\n\n**{}.** {}\n\n", check.name, check.title, check.text);
        let _ = writeln!(page, "Reads: {}.\n\n| finding from | source |\n| --- | --- |", check.reads);
        for threshold in check.thresholds {
            let _ = writeln!(page, "| {} | {} |", threshold.limit, threshold.source);
        }
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_guide_says_what_the_checks_do() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/slow-network.md");
        if std::env::var_os("VMLANE_DRAW").is_some() {
            std::fs::write(&file, super::page()).unwrap();
        }
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            text == super::page(),
            "{} is not current: run VMLANE_DRAW=1 cargo test -p vmlane-doctor guide",
            file.display()
        );
    }
}
