//! Tests of several measurements: `lossless` searches for a rate, `latency` measures round trips beside streams.

use vmlane_bench::lossless::{Wanted, search};
use vmlane_bench::report::one_line;
use vmlane_bench::size::{parse_pair, parse_rate, parse_size};
use vmlane_bench::{Error, Spec, Test, loaded};

use super::ServerChoice;
use super::compare::percent;

const LOSSLESS_EXAMPLES: &str = "\
Examples:
  --to udp:10.77.0.2                     the highest rate that nothing is lost at, with datagrams of 1472 bytes
  --to udp:10.77.0.2 -m 24 --loss 0.1    the smallest datagrams, one in a thousand may be lost
  --to udp:10.77.0.2 -l 60 --json        as RFC 2544 asks: trials of 60 s

Binary search, as RFC 2544 describes it (section 26.1): a first trial without a pace (or at --highest), then trials \
halfway between the fastest that passed and the slowest that did not. Exit code 0 also where no rate passed: `best` is \
then null.";

const LATENCY_EXAMPLES: &str = "\
Examples:
  --to tcp:10.77.0.2              round trips of a byte, alone and beside one stream to the same server
  --to vsock:4 -n 4 -m 16k        beside four streams of 16 KiB messages
  --to tcp:10.77.0.2 --json       the three reports, and what the load adds";

/// The highest rate of datagrams that nothing is lost at (RFC 2544's throughput)
#[derive(Debug, clap::Args)]
#[command(after_help = LOSSLESS_EXAMPLES)]
pub struct LosslessArgs {
    #[command(flatten)]
    server: ServerChoice,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// How long each trial measures, in seconds
    #[arg(short = 'l', long = "seconds", value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Bytes of a datagram's payload [default: 1472 over udp:, 16k over vsock-dgram:]
    #[arg(short = 'm', long = "message", value_name = "SIZE", value_parser = parse_size)]
    message: Option<u64>,
    /// Senders at once; the rates are of all together
    #[arg(short = 'n', long = "sessions", value_name = "COUNT", default_value_t = 1)]
    sessions: u32,
    /// Percent that may be lost
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    loss: f64,
    /// How well the rate must be known, in percent of it
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = percent)]
    resolution: f64,
    /// The highest rate to try, in bit/s (k, M, G: powers of 1000) [default: what a trial without a pace shows]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    highest: Option<u64>,
}

impl LosslessArgs {
    pub fn run(&self) -> Result<(), Error> {
        let usual = if self.server.to.transport() == "vsock-dgram" { 16 << 10 } else { 1472 };
        let message_bytes = self.message.unwrap_or(usual);
        let spec = Spec {
            seconds: self.seconds,
            sessions: self.sessions,
            message_bytes,
            receive_bytes: message_bytes,
            ..self.server.spec(Test::Stream)
        };
        let wanted = Wanted {
            loss_percent: self.loss,
            resolution_percent: self.resolution,
            highest_bps: self.highest,
        };
        let json = self.json;
        let found = search(&self.server.to, &spec, &wanted, &self.server.reach.options()?, &mut |trial| {
            if !json {
                eprintln!("{}", trial.text());
            }
        })?;
        super::print(&if json { one_line(&found) } else { found.text() })
    }
}

/// Round trips alone, and while streams fill the same path
#[derive(Debug, clap::Args)]
#[command(after_help = LATENCY_EXAMPLES)]
pub struct LatencyArgs {
    #[command(flatten)]
    server: ServerChoice,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// How long each of the two measurements takes, in seconds
    #[arg(short = 'l', long = "seconds", value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Bytes of a request and of its response
    #[arg(short = 'r', long = "size", value_name = "REQ,RSP", default_value = "1,1", value_parser = parse_pair)]
    size: (u64, u64),
    /// Streams beside the round trips
    #[arg(short = 'n', long = "sessions", value_name = "COUNT", default_value_t = 1)]
    sessions: u32,
    /// Bytes in each send of the streams [default: 64k; 1472 over udp:, 16k over vsock-dgram:]
    #[arg(short = 'm', long = "message", value_name = "SIZE", value_parser = parse_size)]
    message: Option<u64>,
    /// Bits per second that each stream keeps to (k, M, G: powers of 1000)
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate: Option<u64>,
}

impl LatencyArgs {
    pub fn run(&self) -> Result<(), Error> {
        let (request_bytes, response_bytes) = self.size;
        let asks =
            Spec { seconds: self.seconds, request_bytes, response_bytes, ..self.server.spec(Test::Rr) };
        let message_bytes = self.message.unwrap_or_else(|| super::usual_message(&self.server.to));
        let load = Spec {
            sessions: self.sessions,
            message_bytes,
            receive_bytes: message_bytes,
            rate_bps: self.rate,
            ..self.server.spec(Test::Stream)
        };
        let told = loaded::measure(&self.server.to, &asks, &load, &self.server.reach.options()?)?;
        super::print(&if self.json { one_line(&told) } else { told.text() })
    }
}
