//! An upgrade from the version before, and back to it, under load: by its package in Debian with systemd, and
//! by `vmlane daemon --replace` without. Streams and NICs go on, and VMs that were added while a daemon ran
//! stay.

mod cards;
mod frames;
mod hybrid;
mod previous;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cards::Cards;
use frames::Frames;
use previous::Previous;
use vmlane_tests::alone::vmlane;
use vmlane_tests::{Bed, Load, Process, kept};

use crate::package::container::{Container, Release, boot_with, package, package_of};
use crate::package::guests::{SOCKETS, Traffic};

vmlane_tests::tests! {
    long {
        daemons_of_two_versions_replace_each_other_under_eight_streams,
        hybrid_connections_end_with_each_version_and_the_next_one_serves,
        packages_of_two_versions_take_turns_under_streams_and_frames,
    }
}

/// Upgrades, and as many ways back.
const ROUNDS: u32 = 5;
const OLD: &str = "0.1.0-1";
const NEW: &str = "0.1.0-2";
const CONFIG: &str = "\
[[vm]]
name = \"a\"
cid = 3
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:01\" }, { model = \"vmxnet3\", mac = \"52:54:00:00:01:01\" } ]
[[vm]]
name = \"b\"
cid = 4
nic = [ { model = \"virtio-net\", mac = \"52:54:00:00:00:02\" }, { model = \"vmxnet3\", mac = \"52:54:00:00:01:02\" } ]
";
/// Addresses of the VMXNET3 cards.
const CARDS: [[u8; 6]; 2] = [[0x52, 0x54, 0, 0, 1, 1], [0x52, 0x54, 0, 0, 1, 2]];

/// What goes through the daemons that take turns.
struct Under {
    traffic: Traffic,
    frames: Frames,
    cards: Cards,
}

/// Installs one of the two packages under load; the program that runs afterwards is the one that was
/// installed.
fn install(container: &Container, (file, version): (&str, &str), load: &mut Under) {
    load.frames.pass();
    // The example of the configuration may differ between versions: the administrator's stays, without a
    // question.
    container.replaces_daemon(&format!("dpkg --force-confold -i /{file}"));
    assert_eq!(container.version(), version);
    let pid = container.main_pid("vmlane");
    assert_eq!(container.run(&format!("readlink /proc/{pid}/exe")), "/usr/bin/vmlane");
    container.run(&format!("cmp /proc/{pid}/exe /usr/bin/vmlane"));
    load.frames.attach();
    load.frames.pass();
    load.traffic.goes_on();
    load.cards.go_on();
    container.run("vmlane vm list | grep -w late && test -S /run/vmlane/vm/late/vmci.sock");
}

fn packages_of_two_versions_take_turns_under_streams_and_frames() {
    let previous = Previous::build();
    let old = package_of(&previous.sources, Some(&previous.program), OLD);
    let counted = take_turns((&old, OLD), (&package(NEW), NEW));
    kept("upgrades", &format!("packages of {} and of today took turns, {counted}", previous.name));
}

/// Two packages, with their versions, take turns under load. What came of it.
pub(crate) fn take_turns((old, old_version): (&Path, &str), (new, new_version): (&Path, &str)) -> String {
    let (old, new) = (old.to_owned(), new.to_owned());
    let (_folder, container) = boot_with(Release::Bookworm, &[(&old, "old.deb"), (&new, "new.deb")]);
    container.make_tun();
    container.run("dpkg -i /old.deb");
    std::fs::write(container.path("/etc/vmlane/vmlane.toml"), [SOCKETS, CONFIG].concat()).expect("the configuration");
    container.run("systemctl reload vmlane");
    let socket = |vm: &str, name: &str| container.path(&format!("/run/vmlane/vm/{vm}/{name}.sock"));
    let traffic = Traffic::start(socket);
    let frames = Frames::start(&socket("a", "nic0"), &socket("b", "nic0"));
    let cards = Cards::start((&socket("a", "nic1"), CARDS[0]), (&socket("b", "nic1"), CARDS[1]));
    let mut load = Under { traffic, frames, cards };
    load.cards.go_on();
    container.run("vmlane vm add --name late --cid 5");
    let keeper = container.main_pid("vmlane-keeper");
    for round in 0..ROUNDS {
        install(&container, ("new.deb", new_version), &mut load);
        if round == ROUNDS / 2 {
            assert_eq!(container.main_pid("vmlane-keeper"), keeper, "an upgrade leaves the keeper alone");
            // From here on the keeper is the new version's.
            container.replaces_keeper();
        }
        install(&container, ("old.deb", old_version), &mut load);
    }
    install(&container, ("new.deb", new_version), &mut load);
    let Under { traffic, frames, cards } = load;
    let [vmci, virtio] = traffic.finish();
    let sent = frames.finish(2 * ROUNDS + 1);
    let counted = cards.finish();
    // What had been copied and not completed when a daemon ended is sent again: at most two rings of 64 each
    // time.
    assert!(counted.twice <= u64::from(2 * ROUNDS + 1) * 128, "{} frames came twice", counted.twice);
    assert!(counted.lost <= counted.came / 100, "{} of {} frames got lost", counted.lost, counted.came);
    container.run("dpkg --purge vmlane");
    format!(
        "{} upgrades and {ROUNDS} ways back, under a VMCI stream of {vmci} bytes and 8 of virtio-vsock of {virtio}: none was \
         lost; {sent}; of {} frames between VMXNET3 cards {} came twice, {} were dropped",
        ROUNDS + 1,
        counted.came,
        counted.twice,
        counted.lost
    )
}

/// Real guests.
fn daemons_of_two_versions_replace_each_other_under_eight_streams() {
    let previous = Previous::build();
    let today = PathBuf::from(vmlane().get_program());
    let bed = Bed::up(&Load::guests("upgrade", &["6.12", "6.12"]));
    bed.vmlane(&["vm", "add", "--name", "late", "--cid", "9"]);
    let load = Load::start(&bed);
    let mut last: Option<Process> = None;
    for round in 0..2 * ROUNDS {
        std::thread::sleep(Duration::from_millis(1000));
        let program = if round % 2 == 0 { &previous.program } else { &today };
        if round % 2 == 1 {
            // The daemon that runs is the old one.
            let printed = bed.vmlane(&["daemon", "--can-replace"]);
            assert!(printed.contains("keeps its state in layout"), "{printed}");
        }
        let next = bed.replace_daemon(program);
        if let Some(mut before) = last.replace(next) {
            assert!(before.wait().success(), "it hands over");
        }
        assert!(bed.vmlane(&["vm", "list"]).contains("late"), "round {round}");
    }
    let pause = load.finish(&bed);
    kept(
        "upgrades",
        &format!(
            "--replace from the program of {} to that of today and back, {ROUNDS} times each, under 8 streams of two \
             guests: all complete, checksums equal, longest pause {pause} s",
            previous.name
        ),
    );
    bed.end_replacements(last.expect("the last daemon"));
    bed.vmlane(&["vm", "remove", "late"]);
    bed.finish();
}

fn hybrid_connections_end_with_each_version_and_the_next_one_serves() {
    let previous = Previous::build();
    let today = PathBuf::from(vmlane().get_program());
    let served = hybrid::replaced(&previous.program, &today, ROUNDS);
    kept(
        "upgrades",
        &format!(
            "--replace from the program of {} to that of today and back, {ROUNDS} times each, with a VM of a hybrid \
             socket: its connection ended {} times, and every next daemon that knows such VMs served it",
            previous.name, served
        ),
    );
}
