//! `vmlane bench`: a server, and a test per subcommand. Flags and help live here, measuring in vmlane-bench.

mod iperf3;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Subcommand;
pub use iperf3::with_options;
use vmlane_bench::IpVersion;
use vmlane_bench::address::DEFAULT_PORT;
use vmlane_bench::report::{interval, one_line};
use vmlane_bench::size::{parse_pair, parse_rate, parse_size};
use vmlane_bench::{Address, Error, Hooks, Options, Secret, Server, Spec, Target, Test};

const EXAMPLES: &str = "\
Examples:
  vmlane bench server --listen vsock:                   in VM b: serve on vsock, default port
  vmlane bench stream --to vsock:4                      in VM a: how fast do bytes get to CID 4
  vmlane bench stream --to vsock:4 -m 64k -s 1M -n 4    64 KiB messages, 1 MiB buffers, 4 sessions
  vmlane bench maerts --to tcp:10.77.0.2 --json         the other direction, over TCP, as JSON
  vmlane bench rr --to unix:/run/bench.sock -r 1,1      round trips of a byte
  vmlane bench crr --to tcp:10.77.0.2 -l 5              a connection for every request
  vmlane bench bidir --to tcp:[fd77::2]                 both ways at once, over IPv6
  vmlane bench stream --to udp:10.77.0.2 --rate 100M    datagrams: lost, out of order, jitter

Addresses: tcp:HOST[:PORT], udp:HOST[:PORT], vsock:CID[:PORT], vsock-dgram:CID[:PORT], unix:PATH. Sizes take \
k, M, G (powers of 1024). For datagrams the server listens on tcp: or vsock: of the same address.

On a host whose daemon serves its VMs, vsock: leads to them and is reached by them without any kernel vsock; \
VMLANE_RUNTIME_DIR names the directory of the daemon (else /run/vmlane, or $XDG_RUNTIME_DIR/vmlane for a daemon of your own).";

const SERVER_EXAMPLES: &str = "\
Examples:
  vmlane bench server                                   TCP on 127.0.0.1 only, and vsock where there is one
  vmlane bench server --listen tcp:0.0.0.0 --listen vsock:
  vmlane bench server --listen tcp:[::]:5000 --listen unix:/run/bench.sock
  vmlane bench server --listen tcp:0.0.0.0 --secret-file FILE   for those who know the secret
  vmlane bench server --doctor --listen tcp:0.0.0.0             for vmlane doctor in another machine

Any client that can connect may make it send and receive: listen only where you trust all clients, or use a secret. The secret authenticates clients; the data is neither encrypted nor signed.";

const STREAM_EXAMPLES: &str = "\
Examples:
  --to vsock:4                      10 s of 64 KiB messages to CID 4
  --to vsock:4 -m 16k -s 1M -S 1M   smaller messages, bigger buffers at both ends
  --to tcp:10.77.0.2 -n 8 -l 30     8 connections for 30 s
  --to vsock:4 --json               one line of JSON
  --to tcp:10.77.0.2 -i 1           a line every second (what this end sent or received)
  --to udp:10.77.0.2 -m 1472 --rate 200M     datagrams at a pace; without --rate as fast as they go

The receiver counts; the window starts after the warm-up and ends when the last byte has arrived. \
Buffers: -s sets ours, -S the server's. A vsock connection between VMCI guests has one size for both \
ends, so over vsock a size given for one counts for both.";

const RR_EXAMPLES: &str = "\
Examples:
  --to vsock:4                      round trips of one byte each way
  --to tcp:10.77.0.2 -r 128,8k -D   small questions, big answers, nodelay
  --to unix:/run/bench.sock --json  one line of JSON with percentiles in rtt_us";

/// Measure against a `server`: throughput, round trips, loss
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer tests, from many clients, until stopped
    #[command(after_help = SERVER_EXAMPLES)]
    Server(ServerArgs),
    /// Measure throughput from here to the server
    #[command(after_help = STREAM_EXAMPLES)]
    Stream(Reversible),
    /// Measure throughput from the server to here
    #[command(after_help = STREAM_EXAMPLES)]
    Maerts(StreamArgs),
    /// Measure throughput both ways at once, over the same connections
    #[command(after_help = STREAM_EXAMPLES)]
    Bidir(StreamArgs),
    /// Measure requests and responses over one connection: rate and round-trip times
    #[command(after_help = RR_EXAMPLES)]
    Rr(RrArgs),
    /// Measure requests and responses, a new connection for each
    #[command(after_help = RR_EXAMPLES)]
    Crr(RrArgs),
}

#[derive(Debug, clap::Args)]
struct ServerArgs {
    /// Where to listen (may be repeated): tcp:[HOST][:PORT], vsock:[CID][:PORT], unix:PATH.
    /// Default: tcp:127.0.0.1, and vsock: if this kernel has it
    #[arg(long, value_name = "ADDRESS", value_parser = |text: &str| text.parse::<Address>())]
    listen: Vec<Address>,
    /// Serve only clients that know what is in this file
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Answer questions of `vmlane doctor` about this machine (settings, counters, programs that use the CPU)
    #[arg(long)]
    doctor: bool,
}

/// How a server is reached.
#[derive(Debug, clap::Args)]
pub struct Reach {
    /// The secret that the server asks for
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Use IPv4 only, where a name has addresses of both kinds
    #[arg(short = '4', conflicts_with = "v6")]
    v4: bool,
    /// Use IPv6 only
    #[arg(short = '6')]
    v6: bool,
}

impl Reach {
    pub fn options(&self) -> Result<Options, Error> {
        let ip = match (self.v4, self.v6) {
            (true, _) => Some(IpVersion::V4),
            (_, true) => Some(IpVersion::V6),
            _ => None,
        };
        Ok(Options { secret: self.secret_file.as_deref().map(Secret::read).transpose()?, ip, until: None })
    }
}

/// What all tests and searches take.
#[derive(Debug, clap::Args)]
struct ServerChoice {
    /// Where the server is: tcp:, udp:HOST[:PORT], vsock:, vsock-dgram:CID[:PORT] or unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = |text: &str| text.parse::<Target>())]
    to: Target,
    /// How long to run before measuring, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    warmup: f64,
    /// Socket buffers here, in bytes [default: the kernel's]
    #[arg(short = 's', long = "local-buffer", value_name = "SIZE", value_parser = parse_size)]
    local_buffer: Option<u64>,
    /// Socket buffers at the server, in bytes [default: the kernel's]
    #[arg(short = 'S', long = "remote-buffer", value_name = "SIZE", value_parser = parse_size)]
    remote_buffer: Option<u64>,
    /// Socket buffers at both ends: -s and -S
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with_all = ["local_buffer", "remote_buffer"])]
    buffers: Option<u64>,
    #[command(flatten)]
    reach: Reach,
}

impl ServerChoice {
    fn spec(&self, test: Test) -> Spec {
        let [local_buffer, remote_buffer] =
            [self.local_buffer, self.remote_buffer].map(|own| own.or(self.buffers));
        Spec { warmup: self.warmup, local_buffer, remote_buffer, ..Spec::new(test) }
    }
}

/// What all tests take beside the server: a field for each flag.
#[derive(Debug, clap::Args)]
struct CommonArgs {
    #[command(flatten)]
    server: ServerChoice,
    /// How long to measure, in seconds
    #[arg(short = 'l', long = "seconds", value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// How long to continue after measuring, in seconds, so that many sessions end under the same load
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    cooldown: f64,
    /// Connections at once, a thread each at both ends
    #[arg(short = 'n', long = "sessions", value_name = "COUNT", default_value_t = 1)]
    sessions: u32,
    /// Send small TCP segments at once (no effect on vsock and Unix sockets, which never wait)
    #[arg(short = 'D', long)]
    nodelay: bool,
    /// Print an interim result every so many seconds
    #[arg(short = 'i', long, value_name = "SECONDS")]
    interval: Option<f64>,
    /// Print "ready" when both ends are ready, and start at the next line on standard input. The line "clock"
    /// prints this machine's clock instead; "go N" starts when that clock shows N nanoseconds
    #[arg(long)]
    barrier: bool,
    /// The server's port for the data connections, if a firewall must allow it [default: any free one]
    #[arg(long = "data-port", value_name = "PORT")]
    data_port: Option<u32>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct StreamArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Bytes in each send [default: 64k; 1472 over udp:, 16k over vsock-dgram:]
    #[arg(short = 'm', long = "message", value_name = "SIZE", value_parser = parse_size)]
    message: Option<u64>,
    /// Bits per second that each sending session does not exceed (k, M, G: powers of 1000)
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Bytes a receive asks for [default: as -m]
    #[arg(short = 'M', long = "receive", value_name = "SIZE", value_parser = parse_size)]
    receive: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct Reversible {
    #[command(flatten)]
    stream: StreamArgs,
    /// Measure from the server to here, as maerts does
    #[arg(short = 'R', long)]
    reverse: bool,
}

#[derive(Debug, clap::Args)]
struct RrArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Bytes of a request and of its response
    #[arg(short = 'r', long = "size", value_name = "REQ,RSP", default_value = "1,1", value_parser = parse_pair)]
    size: (u64, u64),
    /// Requests under way at once on each connection (rr)
    #[arg(short = 'b', long = "in-flight", value_name = "COUNT", default_value_t = 1)]
    in_flight: u32,
}

impl BenchArgs {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let done = match self.command {
            Command::Server(args) => serve(&args),
            Command::Stream(Reversible { stream, reverse: false }) => stream.measure(Test::Stream),
            Command::Stream(Reversible { stream, reverse: true }) => stream.measure(Test::Maerts),
            Command::Maerts(args) => args.measure(Test::Maerts),
            Command::Bidir(args) => args.measure(Test::Bidir),
            Command::Rr(args) => args.measure(Test::Rr),
            Command::Crr(args) => args.measure(Test::Crr),
        };
        answered(done.map(|()| ExitCode::SUCCESS))
    }
}

/// Exit code 2 for a request that is invalid.
fn answered(done: Result<ExitCode, Error>) -> anyhow::Result<ExitCode> {
    match done {
        Ok(code) => Ok(code),
        Err(error) if error.is_usage() => {
            eprintln!("vmlane: {error}");
            Ok(ExitCode::from(2))
        }
        Err(error) => Err(error.into()),
    }
}

/// The length of a stream's messages where none is given.
fn usual_message(to: &Target) -> u64 {
    match to.transport() {
        "udp" => 1472,
        "vsock-dgram" => 16 << 10,
        _ => 64 << 10,
    }
}

impl StreamArgs {
    fn measure(&self, test: Test) -> Result<(), Error> {
        let message_bytes = self.message.unwrap_or_else(|| usual_message(&self.common.server.to));
        let receive_bytes = self.receive.unwrap_or(message_bytes);
        let spec = Spec { message_bytes, receive_bytes, rate_bps: self.rate, ..self.common.spec(test) };
        self.common.measure(&spec)
    }
}

impl RrArgs {
    fn measure(&self, test: Test) -> Result<(), Error> {
        let (request_bytes, response_bytes) = self.size;
        let in_flight = self.in_flight;
        let spec = Spec { request_bytes, response_bytes, in_flight, ..self.common.spec(test) };
        self.common.measure(&spec)
    }
}

impl CommonArgs {
    fn spec(&self, test: Test) -> Spec {
        Spec {
            seconds: self.seconds,
            cooldown: self.cooldown,
            sessions: self.sessions,
            nodelay: self.nodelay,
            data_port: self.data_port,
            ..self.server.spec(test)
        }
    }

    fn measure(&self, spec: &Spec) -> Result<(), Error> {
        let options = self.server.reach.options()?;
        let mut hooks = Hooks::default();
        if self.barrier {
            hooks.before_start = Some(Box::new(CommonArgs::wait_for_others));
        }
        let every = self.interval.map(|seconds| match seconds {
            seconds if (0.05..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
            _ => Err(Error::Usage(format!("interval (-i) {seconds}: use 0.05 to 86400 seconds"))),
        });
        if let Some(every) = every.transpose()? {
            let quiet = self.json;
            hooks.every = Some((
                every,
                Box::new(move |progress| {
                    if !quiet {
                        let _ = print(&(interval(progress) + "\n")); // the report shows the failure
                    }
                }),
            ));
        }
        let report = vmlane_bench::run(&self.server.to, spec, &options, &mut hooks)?;
        print(&if self.json { one_line(&report) } else { report.text() })
    }

    /// Returns when the test shall start.
    fn wait_for_others() -> Result<(), Error> {
        vmlane_bench::barrier::wait(&mut std::io::stdin().lock(), &mut std::io::stdout().lock())
    }
}

fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let done = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    done.map_err(|cause| Error::Io { doing: "writing to standard output", cause })
}

fn serve(args: &ServerArgs) -> Result<(), Error> {
    let server = if args.listen.is_empty() { serve_default()? } else { Server::bind(&args.listen)? };
    let server = match &args.secret_file {
        Some(path) => server.with_secret(Secret::read(path)?),
        None => server,
    };
    let server = if args.doctor { server.with_examiner(vmlane_doctor::examiner()) } else { server };
    for address in server.addresses() {
        print(&format!("listening on {address}\n"))?;
    }
    server.with_log(Arc::new(|line| eprintln!("vmlane bench server: {line}"))).run()
}

/// TCP for this machine only, because any client may put it to work; vsock if the kernel has the family.
fn serve_default() -> Result<Server, Error> {
    let tcp = Address::Tcp { host: "127.0.0.1".to_owned(), port: DEFAULT_PORT };
    let vsock = Address::Vsock { cid: vmlane_bench::address::CID_ANY, port: DEFAULT_PORT.into() };
    let denied = std::io::ErrorKind::PermissionDenied;
    match Server::bind(&[tcp.clone(), vsock]) {
        Err(Error::Listen { cause, .. })
            if cause.raw_os_error() == Some(NO_FAMILY) || cause.kind() == denied =>
        {
            Server::bind(&[tcp])
        }
        other => other,
    }
}

/// EAFNOSUPPORT: this kernel has no AF_VSOCK.
const NO_FAMILY: i32 = 97;
