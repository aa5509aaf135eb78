//! `vmlane bench`: a server, and a test per subcommand. Flags and help live here, measuring in vmlane-bench.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;
use vmlane_bench::address::DEFAULT_PORT;
use vmlane_bench::size::{parse_pair, parse_size};
use vmlane_bench::{Address, Error, Server, Spec, Test};

const EXAMPLES: &str = "\
Examples:
  vmlane bench server --listen vsock:                   in VM b: serve on vsock, default port
  vmlane bench stream --to vsock:4                      in VM a: how fast do bytes get to CID 4
  vmlane bench stream --to vsock:4 -m 64k -s 1M -n 4    64 KiB messages, 1 MiB buffers, 4 sessions
  vmlane bench maerts --to tcp:10.77.0.2 --json         the other direction, over TCP, as JSON
  vmlane bench rr --to unix:/run/bench.sock -r 1,1      round trips of a byte
  vmlane bench crr --to tcp:10.77.0.2 -l 5              a connection for every request

Addresses: tcp:HOST[:PORT], vsock:CID[:PORT], unix:PATH. Sizes take k, M, G (powers of 1024).";

const SERVER_EXAMPLES: &str = "\
Examples:
  vmlane bench server                                   TCP on 127.0.0.1 only, and vsock where there is one
  vmlane bench server --listen tcp:0.0.0.0 --listen vsock:
  vmlane bench server --listen tcp:[::]:5000 --listen unix:/run/bench.sock

Any client that reaches it may make it send and receive: listen where you trust the neighbours.";

const STREAM_EXAMPLES: &str = "\
Examples:
  --to vsock:4                      10 s of 64 KiB messages to CID 4
  --to vsock:4 -m 16k -s 1M -S 1M   smaller messages, bigger buffers at both ends
  --to tcp:10.77.0.2 -n 8 -l 30     8 connections for 30 s
  --to vsock:4 --json               one line of JSON

The receiver counts; the window starts after the warm-up and ends when the last byte has arrived.
Buffers: -s sets ours, -S the server's. A vsock connection between VMCI guests has one size for both
ends, so over vsock a size given for one counts for both.";

const RR_EXAMPLES: &str = "\
Examples:
  --to vsock:4                      round trips of one byte each way
  --to tcp:10.77.0.2 -r 128,8k -D   small questions, big answers, nodelay
  --to unix:/run/bench.sock --json  one line of JSON with percentiles in rtt_us";

/// Measure with `stream`, `maerts`, `rr` or `crr` against a `server`
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer tests, from many clients, until stopped
    #[command(after_help = SERVER_EXAMPLES)]
    Server(ServerArgs),
    /// Throughput from here to the server
    #[command(after_help = STREAM_EXAMPLES)]
    Stream(StreamArgs),
    /// Throughput from the server to here
    #[command(after_help = STREAM_EXAMPLES)]
    Maerts(StreamArgs),
    /// Requests and responses over one connection: rate and round-trip times
    #[command(after_help = RR_EXAMPLES)]
    Rr(RrArgs),
    /// Requests and responses, a new connection for each
    #[command(after_help = RR_EXAMPLES)]
    Crr(RrArgs),
}

#[derive(Debug, clap::Args)]
struct ServerArgs {
    /// Where to listen (may be repeated): tcp:[HOST][:PORT], vsock:[CID][:PORT], unix:PATH.
    /// Default: tcp:127.0.0.1, and vsock: if this kernel has it
    #[arg(long, value_name = "ADDRESS", value_parser = |text: &str| text.parse::<Address>())]
    listen: Vec<Address>,
}

#[derive(Debug, clap::Args)]
struct CommonArgs {
    /// Where the server is: tcp:HOST[:PORT], vsock:CID[:PORT] or unix:PATH
    #[arg(long, value_name = "ADDRESS", value_parser = Address::target)]
    to: Address,
    /// How long to measure, in seconds
    #[arg(short = 'l', long = "seconds", value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// How long to run before measuring, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    warmup: f64,
    /// Connections at once, a thread each at both ends
    #[arg(short = 'n', long = "sessions", value_name = "COUNT", default_value_t = 1)]
    sessions: u32,
    /// Socket buffers here, in bytes [default: the kernel's]
    #[arg(short = 's', long = "local-buffer", value_name = "SIZE", value_parser = parse_size)]
    local_buffer: Option<u64>,
    /// Socket buffers at the server, in bytes [default: the kernel's]
    #[arg(short = 'S', long = "remote-buffer", value_name = "SIZE", value_parser = parse_size)]
    remote_buffer: Option<u64>,
    /// Send small TCP segments at once (no effect on vsock and Unix sockets, which never wait)
    #[arg(short = 'D', long)]
    nodelay: bool,
    /// The server's port for the data connections, where a firewall must know it [default: any free one]
    #[arg(short = 'P', long = "data-port", value_name = "PORT")]
    data_port: Option<u32>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct StreamArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Bytes in each send
    #[arg(short = 'm', long = "message", value_name = "SIZE", default_value = "64k", value_parser = parse_size)]
    message: u64,
    /// Bytes a receive asks for [default: as -m]
    #[arg(short = 'M', long = "receive", value_name = "SIZE", value_parser = parse_size)]
    receive: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct RrArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Bytes of a request and of its response
    #[arg(short = 'r', long = "size", value_name = "REQ,RSP", default_value = "1,1", value_parser = parse_pair)]
    size: (u64, u64),
}

impl Args {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let done = match self.command {
            Command::Server(args) => serve(&args),
            Command::Stream(args) => args.measure(Test::Stream),
            Command::Maerts(args) => args.measure(Test::Maerts),
            Command::Rr(args) => args.measure(Test::Rr),
            Command::Crr(args) => args.measure(Test::Crr),
        };
        match done {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) if error.is_usage() => {
                eprintln!("vmlane: {error}");
                Ok(ExitCode::from(2))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl StreamArgs {
    fn measure(&self, test: Test) -> Result<(), Error> {
        let receive_bytes = self.receive.unwrap_or(self.message);
        let spec = Spec { message_bytes: self.message, receive_bytes, ..self.common.spec(test) };
        self.common.measure(&spec)
    }
}

impl RrArgs {
    fn measure(&self, test: Test) -> Result<(), Error> {
        let (request_bytes, response_bytes) = self.size;
        self.common.measure(&Spec { request_bytes, response_bytes, ..self.common.spec(test) })
    }
}

impl CommonArgs {
    fn spec(&self, test: Test) -> Spec {
        Spec {
            seconds: self.seconds,
            warmup: self.warmup,
            sessions: self.sessions,
            nodelay: self.nodelay,
            local_buffer: self.local_buffer,
            remote_buffer: self.remote_buffer,
            data_port: self.data_port,
            ..Spec::new(test)
        }
    }

    fn measure(&self, spec: &Spec) -> Result<(), Error> {
        let report = vmlane_bench::run(&self.to, spec)?;
        let text = if self.json { report.json() + "\n" } else { report.text() };
        print(&text)
    }
}

fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let done = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    done.map_err(|cause| Error::Io { doing: "writing to standard output", cause })
}

fn serve(args: &ServerArgs) -> Result<(), Error> {
    let server = if args.listen.is_empty() { serve_default()? } else { Server::bind(&args.listen)? };
    for address in server.addresses() {
        print(&format!("listening on {address}\n"))?;
    }
    server.with_log(Arc::new(|line| eprintln!("vmlane bench server: {line}"))).run()
}

/// TCP for this machine only, because any client may put it to work; vsock if the kernel has the family.
fn serve_default() -> Result<Server, Error> {
    let tcp = Address::Tcp { host: "127.0.0.1".to_owned(), port: DEFAULT_PORT };
    let vsock = Address::Vsock { cid: vmlane_bench::address::CID_ANY, port: DEFAULT_PORT.into() };
    match Server::bind(&[tcp.clone(), vsock]) {
        Err(Error::Listen { cause, .. }) if cause.raw_os_error() == Some(NO_FAMILY) => Server::bind(&[tcp]),
        other => other,
    }
}

/// EAFNOSUPPORT: this kernel has no AF_VSOCK.
const NO_FAMILY: i32 = 97;
