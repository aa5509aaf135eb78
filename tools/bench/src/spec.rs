//! What one measurement is: sent by the client, checked by both ends before anything is allocated.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Error;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Test {
    /// The client sends, the server receives.
    #[default]
    Stream,
    /// "Stream" backwards: the server sends.
    Maerts,
    /// Both send and receive at once, over the same connections.
    Bidir,
    /// Request and response over one connection.
    Rr,
    /// A connection for every request.
    Crr,
}

impl Test {
    pub fn name(self) -> &'static str {
        match self {
            Test::Stream => "stream",
            Test::Maerts => "maerts",
            Test::Bidir => "bidir",
            Test::Rr => "rr",
            Test::Crr => "crr",
        }
    }

    /// Whether the test counts transactions rather than bytes.
    pub fn is_transactional(self) -> bool {
        matches!(self, Test::Rr | Test::Crr)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub test: Test,
    pub seconds: f64,
    pub warmup: f64,
    /// Bytes of each send, and (`receive_bytes`) the most a receive asks for.
    pub message_bytes: u64,
    pub receive_bytes: u64,
    pub request_bytes: u64,
    pub response_bytes: u64,
    pub sessions: u32,
    pub nodelay: bool,
    /// Socket buffers at the client and at the server; none leaves the kernel's default.
    pub local_buffer: Option<u64>,
    pub remote_buffer: Option<u64>,
    /// Where the server takes the data connections; none lets its kernel choose. Datagrams need a port a
    /// session, from this one on.
    pub data_port: Option<u32>,
    /// Data goes as datagrams.
    #[serde(default)]
    pub datagrams: bool,
    /// Seconds for which senders continue after the window has closed.
    #[serde(default)]
    pub cooldown: f64,
    /// Requests under way at once on each connection (rr).
    #[serde(default = "one")]
    pub in_flight: u32,
    /// Bits per second that a sending session keeps to; none: as fast as it can.
    #[serde(default)]
    pub rate_bps: Option<u64>,
    /// Datagrams that do not fit the path are lost, not fragmented.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dont_fragment: bool,
    /// When the time is up, connections are closed with what is still under way, so that a test of a broken
    /// path ends in time too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub abandon: bool,
}

fn one() -> u32 {
    1
}

/// For keys that servers of before do not know, and need not.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !value
}

/// The least and the most bytes of a datagram: our header, and what UDP over IPv4 can carry.
pub const DATAGRAM: (u64, u64) = (24, 65_507);

impl Spec {
    /// The defaults of the command line.
    pub fn new(test: Test) -> Spec {
        Spec {
            test,
            seconds: 10.0,
            warmup: 0.5,
            message_bytes: 64 << 10,
            receive_bytes: 64 << 10,
            request_bytes: 1,
            response_bytes: 1,
            sessions: 1,
            in_flight: 1,
            ..Spec::default()
        }
    }

    pub fn length(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    pub fn warmup(&self) -> Duration {
        Duration::from_secs_f64(self.warmup)
    }

    pub fn cooldown(&self) -> Duration {
        Duration::from_secs_f64(self.cooldown)
    }

    /// Memory the server needs for all sessions: for messages, and for the socket buffers that it was asked
    /// to set, which VMCI pins and TCP may fill.
    pub fn memory(&self) -> u64 {
        let each = if self.test.is_transactional() {
            self.request_bytes.saturating_add(self.response_bytes)
        } else if self.test == Test::Bidir {
            self.message_bytes.saturating_add(self.receive_bytes)
        } else {
            self.message_bytes.max(self.receive_bytes)
        };
        let kernel = self.remote_buffer.unwrap_or(0).saturating_mul(2);
        each.saturating_add(kernel).saturating_mul(self.sessions.into())
    }

    /// What a test cannot be.
    fn check_kind(&self) -> Result<(), Error> {
        let no = |text: &str| Err(Error::Usage(text.to_owned()));
        match self.test {
            Test::Crr if self.datagrams => {
                no("crr: datagrams make no connections; use rr, or tcp:, vsock:, unix:")
            }
            Test::Rr if self.datagrams && self.in_flight > 1 => {
                no("requests in flight (-b): over datagrams one at a time; use more sessions (-n)")
            }
            Test::Rr => Ok(()),
            _ if self.in_flight > 1 => no("requests in flight (-b): only rr has requests"),
            _ => Ok(()),
        }
    }

    /// Refuses what would hurt the one who runs it. `whose` names who refuses, for the message.
    pub fn check(&self, limits: &Limits, whose: &str) -> Result<(), Error> {
        self.check_kind()?;
        let streams = (1, limits.message_bytes);
        let (least, most) = if self.datagrams && !self.test.is_transactional() { DATAGRAM } else { streams };
        // Requests carry as much of their number as fits.
        let most_of_rr = if self.datagrams { DATAGRAM.1 } else { limits.message_bytes };
        let sizes = [
            ("message bytes (-m)", self.message_bytes, least, most),
            ("receive bytes (-M)", self.receive_bytes, 1, limits.message_bytes),
            ("request bytes (-r)", self.request_bytes, 1, most_of_rr),
            ("response bytes (-r)", self.response_bytes, 1, most_of_rr),
            ("requests in flight (-b)", self.in_flight.into(), 1, limits.in_flight),
            ("rate (--rate)", self.rate_bps.unwrap_or(1), 1, limits.rate_bps),
            ("sessions (-n)", self.sessions.into(), 1, limits.sessions),
            ("local socket buffer (-s)", self.local_buffer.unwrap_or(1), 1, limits.buffer_bytes),
            ("remote socket buffer (-S)", self.remote_buffer.unwrap_or(1), 1, limits.buffer_bytes),
        ];
        for (key, value, least, most) in sizes {
            if value < least || value > most {
                return Err(Error::Usage(format!("{key} {value}: {whose} takes {least} to {most}")));
            }
        }
        for (key, value, least) in [
            ("seconds (-l)", self.seconds, 0.01),
            ("warm-up (--warmup)", self.warmup, 0.0),
            ("cool-down (--cooldown)", self.cooldown, 0.0),
        ] {
            // `contains` is false for NaN, which must not reach Duration.
            if !(least..=limits.seconds).contains(&value) {
                return Err(Error::Usage(format!(
                    "{key} {value}: {whose} takes {least} to {}",
                    limits.seconds
                )));
            }
        }
        Ok(())
    }
}

/// What one test may ask for at most.
#[derive(Clone, Debug)]
pub struct Limits {
    pub message_bytes: u64,
    pub sessions: u64,
    pub buffer_bytes: u64,
    pub seconds: f64,
    pub in_flight: u64,
    pub rate_bps: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            message_bytes: 16 << 20,
            sessions: 256,
            buffer_bytes: 128 << 20,
            seconds: 24.0 * 3600.0,
            in_flight: 10_000,
            rate_bps: 10_000_000_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_name_key_value_and_range() {
        let ask = |change: fn(&mut Spec)| {
            let mut spec = Spec::new(Test::Stream);
            change(&mut spec);
            spec.check(&Limits::default(), "this server").map_err(|error| error.to_string())
        };
        assert!(ask(|_| ()).is_ok());
        assert_eq!(
            ask(|s| s.message_bytes = 1 << 40).unwrap_err(),
            "message bytes (-m) 1099511627776: this server takes 1 to 16777216"
        );
        for change in [
            (|s| s.sessions = 0) as fn(&mut Spec),
            |s| s.sessions = 100_000,
            |s| s.message_bytes = 0,
            |s| s.response_bytes = 0,
            |s| s.local_buffer = Some(u64::MAX),
            |s| s.seconds = f64::NAN,
            |s| s.seconds = -1.0,
            |s| s.warmup = f64::INFINITY,
            |s| s.cooldown = -0.1,
            |s| s.in_flight = 0,
            |s| s.in_flight = 2,
            |s| (s.test, s.in_flight) = (Test::Rr, 1 << 20),
            |s| s.rate_bps = Some(0),
            |s| (s.datagrams, s.message_bytes) = (true, 23),
            |s| (s.datagrams, s.message_bytes) = (true, 65_508),
            |s| (s.datagrams, s.test) = (true, Test::Crr),
        ] {
            assert!(ask(change).is_err());
        }
    }

    #[test]
    fn socket_buffers_count_as_memory() {
        let spec = Spec { sessions: 4, remote_buffer: Some(1 << 20), ..Spec::new(Test::Maerts) };
        assert_eq!(spec.memory(), 4 * ((64 << 10) + (2 << 20)));
        assert_eq!(Spec { remote_buffer: Some(u64::MAX), ..spec }.memory(), u64::MAX);
    }
}
