//! VMs that report their settings while they are examined from their host, through a `vmlane bench server
//! --doctor` on their CID.

use std::time::Duration;

use vmlane_bench::address::DEFAULT_PORT;
use vmlane_bench::{Address, Options};

use crate::evidence::{Evidence, PathEnd};
use crate::facts::{Facts, Path};
use crate::host::{Host, Vm};
use crate::question::Question;

const TIMEOUT: Duration = Duration::from_secs(5);

/// What the host knows, and what those VMs report of themselves that answer, if they are to be asked.
pub fn join(host: Host, options: Option<&Options>, progress: &dyn Fn(&str)) -> Evidence {
    let mut evidence = Evidence::default();
    for vm in &host.vms {
        if let Some(why) = &vm.unread {
            evidence.notes.push(format!("how VM {} was started cannot be read: {why}", vm.name));
        }
    }
    for (vm, end) in host.vms.iter().zip(PathEnd::BOTH) {
        let Some(options) = options else { break };
        progress(&format!("asking VM {}", vm.name));
        match ask(vm, options) {
            Ok(facts) if end == PathEnd::Near => evidence.near = facts,
            Ok(facts) => evidence.far = Some(facts),
            Err(why) => evidence.notes.push(format!(
                "VM {} reports nothing of itself ({why}); a `vmlane bench server --doctor --listen vsock:` in it would",
                vm.name
            )),
        }
    }
    evidence.host = Some(host);
    lead(&mut evidence);
    evidence
}

fn ask(vm: &Vm, options: &Options) -> Result<Facts, String> {
    let Some(cid) = vm.cid.filter(|_| vm.ready) else {
        return Err(match vm.state.as_str() {
            "" | "none" => "no device for sockets is ready".to_owned(),
            state => format!("its device for sockets is not ready; vmlane status: {state}"),
        });
    };
    let address: Address =
        format!("vsock:{cid}:{DEFAULT_PORT}").parse().map_err(|error| format!("{error}"))?;
    let reply = vmlane_bench::ask(&address, options, &Question::Facts.to_value(), TIMEOUT);
    Facts::from_answer(reply.map_err(|error| error.to_string())?.answer)
}

/// Over vsock nothing shows which card leads to the other VM: it is the one that the switch has in the
/// other's port group.
fn lead(evidence: &mut Evidence) {
    let Some(host) = &evidence.host else { return };
    let [one, other] = host.vms.as_slice() else { return };
    let cards = one.nics.iter().flat_map(|mine| other.nics.iter().map(move |its| (mine, its)));
    let Some((mine, its)) = cards.into_iter().find(|(mine, its)| mine.port_group == its.port_group) else {
        return;
    };
    let (mine, its) = (mine.mac.clone(), its.mac.clone());
    let card = |facts: &Facts, mac: &str| {
        let found = facts.interfaces.iter().find(|card| card.mac.eq_ignore_ascii_case(mac))?;
        let address =
            *found.addresses.iter().find(|address| address.is_ipv4()).or(found.addresses.first())?;
        Some((found.name.clone(), address))
    };
    let Some(far) = &mut evidence.far else { return };
    let (Some((here, local)), Some((there, peer))) = (card(&evidence.near, &mine), card(far, &its)) else {
        return;
    };
    let path = |interface, local, peer| Some(Path { interface, local, peer, on_link: true, mtu: None });
    evidence.near.path = path(here, local, peer);
    far.path = path(there, peer, local);
}
