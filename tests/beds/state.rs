//! What a test may change in a bed and must undo: settings of cards, addresses, routes, files, programs,
//! modules, the daemon's configuration.

use std::time::{Duration, Instant};

use crate::bed::Bed;
use crate::topology::Topology;

/// How long programs that a test has ended may take to go.
const SETTLING: Duration = Duration::from_secs(10);

/// Prints a guest's state, a line a fact.
const SCRIPT: &str = r#"
for path in /sys/class/net/*; do
  card=${path##*/}
  echo "card $card: mtu $(cat $path/mtu), flags $(cat $path/flags)"
  [ $card = lo ] && continue
  ethtool -k $card 2>/dev/null | grep -v 'fixed\|^Features' | sed "s/^/card $card: /"
  ethtool -g $card 2>/dev/null | sed -n '/Current/,$p' | sed "s/^/card $card: rings /"
done
ip -o addr | awk '{ print "address", $2, $4 }'
ip route | sed 's/^/route /'
for key in net.ipv4.ip_forward net.ipv4.tcp_rmem net.ipv4.tcp_wmem net.ipv4.tcp_sack; do
  # The largest buffers are of what memory was found: a few bytes more or less at each boot.
  echo "sysctl $key = $(sysctl -n $key | awk '{ $3 = int($3 / 65536); print }')"
done
ls -d /dev/shm/* /tmp/* 2>/dev/null | sed 's/^/file /'
awk '{ print "module", $1 }' /proc/modules
for path in /proc/[0-9]*; do
  words=$(tr '\0' ' ' <$path/cmdline 2>/dev/null)
  case "$words" in '' | *'card=${path'*) ;; *) echo "program ${words%% *}" ;; esac
done
echo "boot $(cat /proc/sys/kernel/random/boot_id)"
"#;

/// Facts of all guests and of the daemon, in order.
#[derive(Debug, PartialEq, Eq)]
pub struct State(Vec<String>);

impl State {
    pub fn of(bed: &Bed) -> State {
        let mut facts = vec![
            format!("daemon: process {}", bed.daemon_pid()),
            format!("daemon: configuration {:?}", bed.configuration()),
        ];
        for guest in bed.lab().status().unwrap().guests {
            if guest.state != "up" {
                facts.push(format!("guest {}: {}", guest.name, guest.state));
                continue;
            }
            let text = bed.guest(&guest.name).sh(SCRIPT).unwrap();
            facts.extend(text.lines().map(|line| format!("guest {}: {line}", guest.name)));
        }
        facts.sort();
        State(facts)
    }

    /// What is different now, a line a fact; nothing if all is as it was. Tests of a bed that `kills` may
    /// start guests and daemons anew.
    pub fn differences(&self, bed: &Bed, topology: &Topology) -> String {
        // How much TCP may buffer depends on the memory that is free when a kernel starts.
        let of_a_start = |fact: &str| {
            fact.starts_with("daemon: process")
                || [": boot ", "mem = "].iter().any(|word| fact.contains(word))
        };
        let counts = |fact: &&String| !(topology.kills && of_a_start(fact));
        let deadline = Instant::now() + SETTLING;
        loop {
            let now = State::of(bed);
            let lost =
                missing(&self.0, &now.0).into_iter().filter(counts).map(|fact| format!("  - {fact}\n"));
            let new = missing(&now.0, &self.0).into_iter().filter(counts).map(|fact| format!("  + {fact}\n"));
            let differences: String = lost.chain(new).collect();
            if differences.is_empty() || Instant::now() > deadline {
                return differences;
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

/// The facts of `all` that `others` lacks, as often as it lacks them. Both are sorted.
fn missing<'a>(all: &'a [String], others: &[String]) -> Vec<&'a String> {
    let mut others = others.iter().peekable();
    let is_missing = |fact: &&String| {
        while others.next_if(|other| *other < *fact).is_some() {}
        others.next_if(|other| other == fact).is_none()
    };
    all.iter().filter(is_missing).collect()
}
