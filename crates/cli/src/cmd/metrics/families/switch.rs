//! The switch: NICs, uplinks, teams, mirrors.

use std::fmt;

use prometheus_client::metrics::MetricType;
use vmlane_api::{NicStats, NicStatus, VmStats};

use super::{Families, Scrape, Shown, family, shown, shown_bytes};

/// Of a NIC's port. Sent and received are the guest's view.
const NICS: [Shown; 13] = [
    shown("tx_frames", "nic_sent_frames", "Frames taken from the guest; a super-frame counts once"),
    shown_bytes("tx_bytes", "nic_sent", "Bytes of frames taken from the guest"),
    shown("tx_tso", "nic_sent_super_frames", "Super-frames among the frames taken from the guest"),
    shown("rx_frames", "nic_received_frames", "Frames given to the guest"),
    shown_bytes("rx_bytes", "nic_received", "Bytes of frames given to the guest"),
    shown("rx_aggregates", "nic_received_super_frames", "Super-frames given to the guest whole"),
    shown("rx_segments", "nic_received_segments", "Frames cut from super-frames for the guest"),
    shown("rx_checksums", "nic_received_checksums", "Frames whose checksum was completed for the guest"),
    shown(
        "rx_coalesced",
        "nic_received_merged_frames",
        "Super-frames that were merged from segments for the guest",
    ),
    shown("rx_coalesced_segments", "nic_received_merged_segments", "Segments in those merged super-frames"),
    shown("pending", "nic_waiting_frames", "Frames that had to wait for the guest's buffers"),
    shown(
        "multicast_refused",
        "nic_multicast_refused",
        "Multicast groups that the guest joined beyond its bound",
    ),
    shown("panics", "nic_faults", "Faults of ours contained while serving the NIC's port"),
];

/// Of an uplink's port. In is into the switch.
const UPLINKS: [Shown; 6] = [
    shown("tx_frames", "uplink_in_frames", "Frames that came from the uplink into the switch"),
    shown_bytes("tx_bytes", "uplink_in", "Bytes that came from the uplink into the switch"),
    shown("rx_frames", "uplink_out_frames", "Frames that left the switch through the uplink"),
    shown_bytes("rx_bytes", "uplink_out", "Bytes that left the switch through the uplink"),
    shown("pending", "uplink_waiting_frames", "Frames that had to wait for room in the uplink"),
    shown("panics", "uplink_faults", "Faults of ours contained while serving the uplink's port"),
];

const TEAMS: [Shown; 4] = [
    shown("failovers", "team_failovers", "Times a member that was in use lost its link"),
    shown("failbacks", "team_failbacks", "Times a member took its place back"),
    shown("notified", "team_notices", "Announcements to the network of where an address is now"),
    shown(
        "not_notified",
        "team_notices_left_out",
        "Addresses that were not announced to the network: too many at once",
    ),
];

pub fn write(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    nics(scrape, families)?;
    uplinks(scrape, families)?;
    teams(scrape, families)?;
    mirrors(scrape, families)
}

fn of<'s>(vm: &'s str, nic: &'s str) -> [(&'static str, &'s str); 2] {
    [("vm", vm), ("nic", nic)]
}

fn nics(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    let status = || scrape.vms().iter().flat_map(|vm| vm.nics.iter().map(move |nic| (vm.name.as_str(), nic)));
    let about = family("nic", "A NIC, with its switch and its port group");
    families.write(&about, MetricType::Info, |samples| {
        let label = |(vm, nic): (&str, &NicStatus)| {
            let place = [("switch", nic.switch.as_str()), ("port_group", nic.port_group.as_str())];
            samples.add(&[of(vm, &nic.name), place].concat(), true)
        };
        status().try_for_each(label)
    })?;
    let mut state = |name, help, is: fn(&NicStatus) -> bool| {
        families.each(&family(name, help), status(), |(vm, nic)| (of(vm, &nic.name), is(nic)))
    };
    state("nic_attached", "1 if a VMM is connected to the NIC", |nic| nic.attached)?;
    state("nic_active", "1 if the guest's driver has activated the NIC", |nic| nic.active)?;
    state("nic_link_up", "0 if the operator set the NIC's link down", |nic| !nic.link_down)?;
    let bound = status().filter_map(|(vm, nic)| Some((vm, nic, nic.ovn.as_ref()?)));
    let family_of_ovn =
        family("nic_ovn_bound", "1 if OVN has bound the logical port of the NIC here; of NICs that have one");
    families.each(&family_of_ovn, bound, |(vm, nic, ovn)| (of(vm, &nic.name), ovn.state == "bound"))?;

    let nics = || {
        scrape
            .vm_stats()
            .iter()
            .flat_map(|vm: &VmStats| vm.nics.iter().map(move |nic| (vm.name.as_str(), nic)))
    };
    let ports = nics().map(|(vm, nic)| (of(vm, &nic.name), &nic.port));
    families.counters(&NICS, ports.clone())?;
    let drops = family("nic_drops", "Frames dropped, by reason, at the port that was the cause");
    families.reasons(&drops, "drop_", ports)?;
    shaping(nics, families)?;
    let events = family(
        "nic_device_events",
        "What the NIC's registers or control queue did, by kind, as in `vmlane stats`",
    );
    families.counter(&events, |samples| {
        for (vm, nic) in nics() {
            for (event, value) in nic.device.iter().take(super::MOST_REASONS) {
                samples.add(&[("vm", vm), ("nic", &nic.name), ("event", event)], value)?;
            }
        }
        Ok(())
    })
}

/// In is from the guest into the switch.
const SHAPED: [(&str, &str, &str); 2] =
    [("in", "tx_shaped_bytes", "tx_shaped_us"), ("out", "rx_shaped_bytes", "rx_shaped_us")];

fn shaping<'s, I: Iterator<Item = (&'s str, &'s NicStats)>>(
    nics: impl Fn() -> I,
    families: &mut Families<'_>,
) -> fmt::Result {
    let bytes =
        family("nic_shaped", "Bytes that passed while the NIC was shaped in that direction").in_bytes();
    let waited = family("nic_shaping_wait", "Time for which frames waited for tokens").in_seconds();
    families.counter(&bytes, |samples| {
        for (vm, nic) in nics() {
            for (direction, bytes, _) in SHAPED {
                let value = nic.port.get(bytes);
                samples.add(&[("vm", vm), ("nic", &nic.name), ("direction", direction)], value)?;
            }
        }
        Ok(())
    })?;
    families.counter(&waited, |samples| {
        for (vm, nic) in nics() {
            for (direction, _, microseconds) in SHAPED {
                let value = nic.port.get(microseconds) as f64 / 1e6;
                samples.add(&[("vm", vm), ("nic", &nic.name), ("direction", direction)], value)?;
            }
        }
        Ok(())
    })
}

fn uplinks(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    let status = || scrape.status().into_iter().flat_map(|status| &status.uplinks);
    let about = family("uplink", "An uplink, with its switch and what it leads to");
    families.write(&about, MetricType::Info, |samples| {
        status().try_for_each(|uplink| {
            samples.add(&[("uplink", &uplink.name), ("switch", &uplink.switch), ("to", &uplink.to)], true)
        })
    })?;
    let attached = family("uplink_attached", "1 if the uplink's port has its interface or its connection");
    families.each(&attached, status(), |uplink| ([("uplink", uplink.name.as_str())], uplink.attached))?;
    let link = family("uplink_link_up", "0 if the operator set the uplink's link down");
    families.each(&link, status(), |uplink| ([("uplink", uplink.name.as_str())], !uplink.link_down))?;
    let since = family(
        "uplink_counted_since",
        "When the counters of the uplink's port were 0, since 1970: they continue with the next daemon",
    );
    let counted = status().filter_map(|uplink| Some((uplink.name.as_str(), uplink.since?)));
    families.each(&since.in_seconds(), counted, |(name, since)| ([("uplink", name)], since))?;
    let stats = scrape.stats().into_iter().flat_map(|stats| &stats.uplinks);
    let ports = stats.map(|uplink| ([("uplink", uplink.name.as_str())], &uplink.port));
    families.counters(&UPLINKS, ports.clone())?;
    let drops = family("uplink_drops", "Frames dropped, by reason, at the uplink's port");
    families.reasons(&drops, "drop_", ports.clone())?;
    let lost = family(
        "uplink_interface_lost_frames",
        "Frames that the host's kernel lost for an AF_XDP uplink, by reason",
    );
    families.reasons(&lost, "xdp_rx_", ports)
}

fn teams(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    let teams = || scrape.status().into_iter().flat_map(|status| &status.teams);
    let members =
        || teams().flat_map(|team| team.members.iter().map(move |member| (team.name.as_str(), member)));
    let active = family("team_member_active", "1 if frames leave through this uplink of the team");
    families.each(&active, members(), |(team, member)| {
        ([("team", team), ("uplink", member.uplink.as_str())], member.active)
    })?;
    let count = family("team_active_members", "Uplinks of the team through which frames leave");
    families.each(&count, teams(), |team| {
        let active = team.members.iter().filter(|member| member.active).count();
        ([("team", team.name.as_str())], active)
    })?;
    families.counters(&TEAMS, teams().map(|team| ([("team", team.name.as_str())], &team.counters)))
}

fn mirrors(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    let mirrors = || scrape.stats().into_iter().flat_map(|stats| &stats.mirrors);
    families.counter(&family("mirror_frames", "Copies that a mirror delivered"), |samples| {
        mirrors().try_for_each(|mirror| samples.add(&[("mirror", &mirror.name)], mirror.frames))
    })?;
    families.counter(&family("mirror_copied", "Bytes that a mirror delivered").in_bytes(), |samples| {
        mirrors().try_for_each(|mirror| samples.add(&[("mirror", &mirror.name)], mirror.bytes))
    })?;
    let drops = family("mirror_drops", "Copies that a mirror did not deliver, by reason");
    families.reasons(
        &drops,
        "drop_",
        mirrors().map(|mirror| ([("mirror", mirror.name.as_str())], &mirror.drops)),
    )
}
