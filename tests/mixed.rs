//! A guest with VMware's devices and one with virtio's: what the pair carries beside pairs of the same kind,
//! in turns in one lab.

use vmlane_lab::Running;
use vmlane_tests::{Bed, PATIENCE, full, kept, median, spec};

/// a and b have VMCI and vmxnet3, c and d virtio-vsock and virtio-net.
const CONFIG: &str = r#"
[[vm]]
name = "c"
vsock = "virtio"
nic = [{ model = "virtio-net", port_group = "net0", mac = "52:54:00:77:00:03" }]
[[vm]]
name = "d"
vsock = "virtio"
nic = [{ model = "virtio-net", port_group = "net0", mac = "52:54:00:77:00:04" }]
"#;

/// The pairs of one kind, and the mixed ones, each way.
const PAIRS: [(&str, &str); 4] = [("a", "b"), ("c", "d"), ("a", "c"), ("c", "a")];

/// What runs in a guest, and where its result has the rate.
#[derive(Clone, Copy, Debug)]
enum Tool {
    Vsock,
    Iperf3,
}

impl Tool {
    fn serve(self, bed: &Bed, guest: &str) -> Running {
        let (line, listens): (&[&str], _) = match self {
            Tool::Vsock => (&["vmlane", "bench", "server", "--listen", "vsock:"], "listening on vsock"),
            Tool::Iperf3 => (&["iperf3", "-s", "--forceflush"], "Server listening"),
        };
        let server = bed.guest(guest).spawn(line.iter().copied()).unwrap();
        server.wait_for(listens, PATIENCE).unwrap();
        server
    }

    /// Bits per second from one guest to the other.
    fn run(self, bed: &Bed, (from, to): (&str, &str), seconds: u32) -> f64 {
        let number = bed.cid(to) - 2;
        let line = match self {
            Tool::Vsock => {
                format!("vmlane bench stream --to vsock:{} -m 64k -l {seconds} --json", number + 2)
            }
            Tool::Iperf3 => format!("iperf3 -c 10.77.0.{number} -t {seconds} -O 1 -J"),
        };
        let output = bed.guest(from).exec(line.split(' ')).unwrap();
        assert!(output.success(), "{from} to {to}: {}{}", output.stdout(), output.stderr());
        let figures: serde_json::Value = serde_json::from_str(&output.stdout()).unwrap();
        let rate = match self {
            Tool::Vsock => &figures["throughput_bps"],
            Tool::Iperf3 => &figures["end"]["sum_received"]["bits_per_second"],
        };
        rate.as_f64().unwrap()
    }
}

#[test]
fn mixed_pairs_keep_up_with_pairs_of_one_kind() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), CONFIG).unwrap();
    let mut spec = spec("mixed", &["6.12"; 4]).device("vmxnet3").unwrap();
    spec.daemon_config = Some(file.path().to_owned());
    let bed = Bed::up(&spec);
    let (rounds, seconds) = if full() { (7, 5) } else { (3, 2) };
    for tool in [Tool::Vsock, Tool::Iperf3] {
        let servers = ["a", "b", "c", "d"].map(|guest| tool.serve(&bed, guest));
        let mut figures: [Vec<f64>; 4] = Default::default();
        for _ in 0..rounds {
            for (pair, figures) in PAIRS.into_iter().zip(&mut figures) {
                figures.push(tool.run(&bed, pair, seconds));
            }
        }
        let [vmware, virtio, out, back] = figures.map(median);
        let slower = vmware.min(virtio);
        let (ours, theirs) = match tool {
            Tool::Vsock => ("VMCI", "virtio-vsock"),
            Tool::Iperf3 => ("vmxnet3", "virtio-net"),
        };
        kept(
            4,
            &format!(
                "{ours} to {ours} {:.0} Mbit/s, {theirs} to {theirs} {:.0}; {ours} to {theirs} {:.2} of the slower \
                 one, back {:.2}; medians of {rounds}",
                vmware / 1e6,
                virtio / 1e6,
                out / slower,
                back / slower
            ),
        );
        drop(servers);
    }
    bed.finish();
}
