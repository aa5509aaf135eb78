//! Policies of a switch or a port group, as fields of a record.

use super::fields::Fields;

/// Those that a listing has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    pub security: Option<Security>,
    pub shaping: Option<Shaping>,
    pub failover: Option<Failover>,
}

impl Policies {
    /// Those of a port group; what it has none of is its switch's.
    pub fn or(&self, switch: &Policies) -> Policies {
        Policies {
            security: self.security.or(switch.security),
            shaping: self.shaping.clone().or_else(|| switch.shaping.clone()),
            failover: self.failover.clone().or_else(|| switch.failover.clone()),
        }
    }

    /// What another listing of the same adds.
    pub fn add(&mut self, other: Policies) {
        *self = other.or(self);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Security {
    pub promiscuous: Option<bool>,
    pub mac_changes: Option<bool>,
    pub forged_transmits: Option<bool>,
}

/// What leaves a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shaping {
    Off,
    /// Bits in a second, bits in a second, bytes.
    On {
        average: u64,
        peak: u64,
        burst: u64,
    },
    /// What stands there, and is not understood.
    Unusable(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failover {
    pub balancing: Option<Result<Balancing, String>>,
    /// Adapters, the preferred ones first. Of a distributed switch, they are its own names of them.
    pub active: Vec<String>,
    pub standby: Vec<String>,
    pub notify: Option<bool>,
    pub failback: Option<bool>,
    /// Failures are found by probes, not by the link.
    pub beacon: bool,
}

/// By what an adapter is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balancing {
    Port,
    Mac,
    IpHash,
    Explicit,
}

impl Balancing {
    /// As esxcli has it (`srcport`), and as net-dvs does (`source virtual port id`).
    pub fn parse(text: &str) -> Result<Balancing, String> {
        let plain: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
        match plain.to_ascii_lowercase().as_str() {
            "srcport" | "portid" | "sourcevirtualportid" => Ok(Balancing::Port),
            "srcmac" | "mac" | "sourcemac" | "sourceethernetmac" => Ok(Balancing::Mac),
            "iphash" | "sourceip" | "sourceipanddestinationip" => Ok(Balancing::IpHash),
            "explicit" | "explicitfailover" | "explicitfailoverorder" => Ok(Balancing::Explicit),
            _ => Err(text.to_owned()),
        }
    }

    /// The word of vmlane's configuration.
    pub fn word(self) -> &'static str {
        match self {
            Balancing::Port => "port",
            Balancing::Mac => "mac",
            Balancing::IpHash => "ip-hash",
            Balancing::Explicit => "failover",
        }
    }
}

impl Security {
    pub fn of(fields: &Fields) -> Security {
        Security {
            promiscuous: fields.flag("allowpromiscuous"),
            mac_changes: fields.flag("allowmacaddresschange"),
            forged_transmits: fields.flag("allowforgedtransmits"),
        }
    }
}

impl Shaping {
    /// Rates are in kbit/s, the burst is in KiB.
    pub fn of(fields: &Fields) -> Shaping {
        if fields.flag("enabled") == Some(false) {
            return Shaping::Off;
        }
        let number = |key: &str, unit: u64| number(fields.text(key)?)?.checked_mul(unit);
        let rates =
            (number("averagebandwidth", 1000), number("peakbandwidth", 1000), number("burstsize", 1024));
        match (fields.flag("enabled"), rates) {
            (Some(true), (Some(average), Some(peak), Some(burst))) => Shaping::On { average, peak, burst },
            _ => Shaping::Unusable(fields.written()),
        }
    }
}

/// A number, with its unit or without.
fn number(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let unit = unit.trim().to_ascii_lowercase();
    ["", "kbps", "kbit/s", "kib", "kb"].contains(&unit.as_str()).then(|| number.parse().ok())?
}

impl Failover {
    pub fn of(fields: &Fields) -> Failover {
        Failover {
            balancing: fields.text("loadbalancing").map(Balancing::parse),
            active: fields.list("activeadapters"),
            standby: fields.list("standbyadapters"),
            notify: fields.flag("notifyswitches"),
            failback: fields.flag("failback"),
            beacon: fields.text("networkfailuredetection") == Some("beacon"),
        }
    }
}
