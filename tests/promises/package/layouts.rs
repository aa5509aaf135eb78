//! An upgrade to a version that does not know the layout of the state: the package asks, and restarts
//! nothing.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use vmlane_state::LAYOUT;
use vmlane_tests::wait_until;

use super::container::Container;
use super::guests::Traffic;

const OTHER: u32 = LAYOUT + 1;
/// Where a state file has the version of its layout.
const LAYOUT_AT: u64 = 8;
const DROP_IN: &str = "/run/systemd/system/vmlane.service.d/other.conf";

/// A daemon of a later version, as far as an upgrade asks it: whatever it is asked, it answers as if it were
/// `ping`.
fn other_daemon() -> String {
    let answer = format!(r#"{{"parameters":{{"pid":'. $$ .',"daemon":"9.9.9","layout":{OTHER}}}}}"#);
    format!(
        "use IO::Socket::UNIX;
my $path = '/run/vmlane/control.sock';
unlink $path;
my $listener = IO::Socket::UNIX->new(Local => $path, Listen => 8) or die $!;
$/ = \"\\0\";
while (my $client = $listener->accept) {{
  while (defined(my $message = <$client>)) {{ print $client '{answer}', $/; $client->flush; }}
}}
"
    )
}

/// The package is upgraded, prints why the daemon was not restarted, and has not touched it.
fn upgrades_and_restarts_nothing(container: &Container, reason: &str) {
    let before = container.main_pid("vmlane");
    let printed = container.run("dpkg -i /second.deb 2>&1");
    for words in
        ["vmlane was not restarted", reason, &format!("has layout {OTHER}"), &format!("knows {LAYOUT}")]
    {
        assert!(printed.contains(words), "{words:?}: {printed}");
    }
    assert_eq!(container.version(), "0.1.0-2");
    assert_eq!(container.run("dpkg-query -W -f '${Status}' vmlane"), "install ok installed");
    assert_eq!(container.main_pid("vmlane"), before, "{printed}");
}

/// The daemon that runs is of another version.
pub fn of_a_daemon(container: &Container, traffic: &Traffic) {
    container.run("vmlane daemon --can-replace");
    fs::write(container.path("/other.pl"), other_daemon()).expect("a program");
    container.run(&format!(
        "mkdir -p $(dirname {DROP_IN}) && printf '[Service]\\nType=exec\\nWatchdogSec=0\\nExecStart=\\n\
         ExecStart=/usr/bin/perl /other.pl\\n' >{DROP_IN} && systemctl daemon-reload && systemctl restart vmlane"
    ));
    wait_until("the other daemon answers", || {
        let printed = container.output("vmlane daemon --can-replace");
        String::from_utf8_lossy(&printed.stderr).contains("version 9.9.9")
    });
    upgrades_and_restarts_nothing(container, "the daemon that runs");
    container.run(&format!(
        "systemctl stop vmlane && rm -r $(dirname {DROP_IN}) /other.pl && systemctl daemon-reload"
    ));
    // No daemon runs now, and the keeper still has the state of the one before. Back to the first package.
    goes_back(container, traffic);
}

/// No daemon runs, and the keeper holds the state of one of another version.
pub fn of_a_keeper(container: &Container, traffic: &Traffic) {
    container.run("systemctl stop vmlane");
    let state =
        fs::File::options().read(true).write(true).open(state_file(container)).expect("the state's file");
    let mut word = [0; 4];
    state.read_exact_at(&mut word, LAYOUT_AT).expect("its layout");
    assert_eq!(u32::from_le_bytes(word), LAYOUT);
    state.write_all_at(&OTHER.to_le_bytes(), LAYOUT_AT).expect("another layout");
    upgrades_and_restarts_nothing(container, "no daemon runs");
    state.write_all_at(&word, LAYOUT_AT).expect("its own layout");
    goes_back(container, traffic);
}

fn goes_back(container: &Container, traffic: &Traffic) {
    container.run("vmlane daemon --can-replace");
    container.replaces_daemon("dpkg -i /first.deb");
    assert_eq!(container.version(), "0.1.0-1");
    traffic.goes_on();
}

/// The state that all devices share, as the keeper has it open.
fn state_file(container: &Container) -> PathBuf {
    let keeper = container.main_pid("vmlane-keeper");
    let descriptors = container.path(&format!("/proc/{keeper}/fd"));
    let files =
        fs::read_dir(descriptors).expect("the keeper's descriptors").flatten().map(|file| file.path());
    let named = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("vmlane-hypervisor"))
    };
    files.into_iter().find(named).expect("the keeper holds the state")
}
