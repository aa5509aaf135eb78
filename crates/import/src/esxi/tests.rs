//! Listings as hosts print them, with and without their commands.

use super::networks::MOST;
use super::*;
use crate::network::Switch;

const ESXCLI: &str = "\
Name                    Virtual Switch  Active Clients  VLAN ID
----------------------  --------------  --------------  -------
Management Network      vSwitch0                     1        0
VM Network              vSwitch0                     3       10
Trünk                   vSwitch1                     0     4095
";
const ESXCFG: &str = "\
Switch Name      Num Ports   Used Ports  Configured Ports  MTU     Uplinks   \n\
vSwitch0         2560        6           128               1500    vmnic0    \n\
\n\
  PortGroup Name                            VLAN ID  Used Ports  Uplinks   \n\
  VM Network                                10       3           vmnic0    \n\
  Management Network                        0        1           vmnic0    \n\
\n\
Switch Name      Num Ports   Used Ports  Configured Ports  MTU     Uplinks   \n\
vSwitch1         2560        1           128               9000              \n\
\n\
  PortGroup Name                            VLAN ID  Used Ports  Uplinks   \n\
  storage                                   4095     0                     \n";

fn read(text: &str) -> Host {
    host("esx1", text).unwrap()
}

fn listed(text: &str) -> Vec<(String, String, Vlan)> {
    let groups = read(text).port_groups.into_iter();
    let switch = |of: Option<Switch>| of.map(|of| of.wish()).unwrap_or_default();
    groups.map(|group| (group.name, switch(group.switch), group.vlan.unwrap())).collect()
}

fn of(name: &str, switch: &str, vlan: Vlan) -> (String, String, Vlan) {
    (name.to_owned(), switch.to_owned(), vlan)
}

#[track_caller]
fn noted(host: &Host, parts: &[&str]) {
    let mut notes = host.notes.iter().map(ToString::to_string);
    assert!(notes.any(|note| parts.iter().all(|part| note.contains(part))), "{parts:?}: {:#?}", host.notes);
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn both_tables_are_read() {
    assert_eq!(
        listed(ESXCLI),
        [
            of("Management Network", "vSwitch0", Vlan::None),
            of("VM Network", "vSwitch0", Vlan::Tagged(10)),
            of("Trünk", "vSwitch1", Vlan::ALL)
        ]
    );
    assert_eq!(
        listed(ESXCFG),
        [
            of("VM Network", "vSwitch0", Vlan::Tagged(10)),
            of("Management Network", "vSwitch0", Vlan::None),
            of("storage", "vSwitch1", Vlan::ALL)
        ]
    );
    let switches = read(ESXCFG).switches.into_iter().map(|switch| (switch.mtu, switch.uplinks));
    assert_eq!(
        switches.collect::<Vec<_>>(),
        [(Some(1500), Some(strings(&["vmnic0"]))), (Some(9000), Some(Vec::new()))]
    );
}

#[test]
fn names_may_be_longer_than_their_column() {
    let text = "\
~ # esxcfg-vswitch -l
    Switch Name      Num Ports   Used Ports  Configured Ports  MTU     Uplinks
    vSwitch 0         1536        3           128               1500    vmnic1,vmnic0

      PortGroup Name        VLAN ID  Used Ports  Uplinks
      Standard Switch - L2VPN - Trunk  4095     0           vmnic1,vmnic0
      Customer networks room 12 b  3120     0           vmnic1
      room 12  7     0
      12  7     0

DVS Name         Num Ports   Used Ports  Configured Ports  MTU     Uplinks
dvSwitch 1         1536        3           128               1500    vmnic1
  DVPort ID           In Use      Client
  130                 1           vmnic0
  131 2 3  4
~ #
";
    assert_eq!(
        listed(text),
        [
            of("Standard Switch - L2VPN - Trunk", "vSwitch 0", Vlan::ALL),
            of("Customer networks room 12 b", "vSwitch 0", Vlan::Tagged(3120)),
            of("room 12", "vSwitch 0", Vlan::Tagged(7)),
            of("12", "vSwitch 0", Vlan::Tagged(7)),
        ]
    );
    assert_eq!(read(text).switches[0].uplinks, Some(strings(&["vmnic1", "vmnic0"])));
    noted(&read(text), &["distributed switch \"dvSwitch 1\"", "net-dvs -l"]);
    let old = "Switch Name    Num Ports   Used Ports  Configured Ports  Uplinks\n\
               vSwitch0       64          4           64                vmnic0\n\
               PortGroup Name      Internal ID    VLAN ID  Used Ports  Uplinks\n\
               Service Console     portgroup0     0        1           vmnic0\n";
    assert_eq!(listed(old), [of("Service Console", "vSwitch0", Vlan::None)]);
    // Copied without its blanks, and with a prompt behind it.
    let squeezed = ESXCLI.replace("Trünk                   vSwitch1", "a b vSwitch1") + "\n[root@esx:~]\n";
    let names: Vec<String> = listed(&squeezed).into_iter().map(|(name, _, _)| name).collect();
    assert_eq!(names, ["Management Network", "VM Network", "a b"]);
}

const RECORDS: &str = "\
[root@esx1:~] esxcli network vswitch standard list
vSwitch0
   Name: vSwitch0
   Class: cswitch
   Num Ports: 2816
   MTU: 9000
   CDP Status: both
   Beacon Required By:
   Uplinks: vmnic0, vmnic1
   Portgroups: VM Network, Trünk

inside
   Name: inside
   MTU: 1500
   Uplinks:
   Portgroups: lab
[root@esx1:~] esxcli network vswitch standard policy security get -v vSwitch0
   Allow Promiscuous: false
   Allow MAC Address Change: false
   Allow Forged Transmits: true
[root@esx1:~] esxcli network vswitch standard portgroup policy security get -p 'VM Network'
   Allow Promiscuous: true
   Allow MAC Address Change: false
   Allow Forged Transmits: true
   Override Vswitch Allow Promiscuous: true
[root@esx1:~] esxcli network vswitch standard portgroup policy shaping get -p VM Network
   Enabled: true
   Average Bandwidth: 100000 Kbps
   Peak Bandwidth: 200000
   Burst Size: 1024 Kib
[root@esx1:~] esxcli network vswitch standard policy failover get -v vSwitch0
   Load Balancing: iphash
   Network Failure Detection: beacon
   Notify Switches: true
   Failback: false
   Active Adapters: vmnic1, vmnic0
   Standby Adapters:
   Unused Adapters:
[root@esx1:~] esxcli network nic list
Name    PCI Device    Driver  Admin Status  Link Status  Speed  Duplex  MAC Address         MTU  Description
------  ------------  ------  ------------  -----------  -----  ------  -----------------  ----  -----------
vmnic0  0000:01:00.0  ixgben  Up            Up           10000  Full    00:25:90:00:00:01  9000  Some card (2)
vmnic1  Pseudo        r8152   Up            Down             0  Half    00:25:90:XX:XX:XX  1500  Unknown Unknown
[root@esx1:~] esxcli network ip interface list
vmk0
   Name: vmk0
   MTU: 1500
";

fn check_records(host: &Host) {
    let [outside, inside] = &host.switches[..] else { panic!("{:?}", host.switches) };
    assert_eq!((outside.mtu, outside.uplinks.clone()), (Some(9000), Some(strings(&["vmnic0", "vmnic1"]))));
    assert_eq!((inside.of.wish().as_str(), inside.uplinks.clone()), ("inside", Some(Vec::new())));
    let security =
        Security { promiscuous: Some(false), mac_changes: Some(false), forged_transmits: Some(true) };
    assert_eq!(outside.policies.security, Some(security));
    let failover = outside.policies.failover.as_ref().unwrap();
    assert_eq!(failover.balancing, Some(Ok(Balancing::IpHash)));
    assert_eq!(failover.active, ["vmnic1", "vmnic0"]);
    assert_eq!((failover.failback, failover.notify, failover.beacon), (Some(false), Some(true), true));
    let group = &host.port_groups[0];
    assert_eq!(group.policies.security, Some(Security { promiscuous: Some(true), ..security }));
    let shaping = Shaping::On { average: 100_000_000, peak: 200_000_000, burst: 1 << 20 };
    assert_eq!(group.policies.shaping, Some(shaping));
    let adapters: Vec<_> = host.adapters.iter().map(|card| (card.name.as_str(), card.mac.as_str())).collect();
    assert_eq!(adapters, [("vmnic0", "00:25:90:00:00:01"), ("vmnic1", "00:25:90:XX:XX:XX")]);
    noted(host, &["CDP Status", "\"both\""]);
    noted(host, &["failover get", "untried"]);
    noted(host, &["shaping get", "untried"]);
}

#[test]
fn records_are_read_with_their_commands() {
    let host = read(RECORDS);
    check_records(&host);
    noted(&host, &["network ip interface list", "is not read"]);
    assert!(host.port_groups.iter().all(|group| group.vlan == Err(Unknown::Missing)));
    // A copy that has lost its indentation, and one with blank lines between all others.
    let flat: String = RECORDS.lines().map(|line| format!("{}\n", line.trim_start())).collect();
    check_records(&read(&flat));
    check_records(&read(&RECORDS.replace('\n', "\n\n")));
    // With their VLANs.
    let both = read(&format!("{ESXCLI}{RECORDS}"));
    let vlans: Vec<_> = both.port_groups.iter().filter_map(|group| group.vlan.as_ref().ok()).collect();
    assert_eq!(vlans, [&Vlan::None, &Vlan::Tagged(10), &Vlan::ALL]);
}

#[test]
fn a_policy_without_its_command_is_left_out_with_a_line() {
    let text: String =
        RECORDS.lines().filter(|line| !line.contains("esxcli")).map(|line| format!("{line}\n")).collect();
    let host = read(&text);
    assert!(host.switches.iter().all(|switch| switch.policies == Policies::default()));
    noted(&host, &["a policy", "keep the command"]);
    let stray = "esxcli network vswitch standard policy security get -v vSwitch7\nAllow Promiscuous: true\n";
    noted(&read(&format!("{ESXCLI}{stray}")), &["\"vSwitch7\"", "nothing else of it"]);
}

#[test]
fn json_is_read_as_text_is() {
    let text = r#"
[root@esx1:~] esxcli --formatter=json network vswitch standard list
[
   {"Name": "vSwitch0", "MTU": 9000, "CDPStatus": "both", "Uplinks": ["vmnic0", "vmnic1"],
    "Portgroups": ["VM Network", "Trünk"], "BeaconRequiredBy": []},
   {"Name": "inside", "MTU": 1500, "Uplinks": [], "Portgroups": ["lab"]}
]
+ esxcli --formatter=json network vswitch standard policy security get -v vSwitch0
{"AllowPromiscuous": false, "AllowMACAddressChange": false, "AllowForgedTransmits": true}
+ esxcli --formatter=json network vswitch standard portgroup policy security get -p VM Network
{"AllowPromiscuous": true, "AllowMACAddressChange": false, "AllowForgedTransmits": true}
+ esxcli --formatter=json network vswitch standard portgroup policy shaping get -p VM Network
{"Enabled": true, "AverageBandwidth": 100000, "PeakBandwidth": 200000, "BurstSize": 1024}
+ esxcli --formatter=json network vswitch standard policy failover get -v vSwitch0
{"LoadBalancing": "iphash", "NetworkFailureDetection": "beacon", "NotifySwitches": true, "Failback": false,
 "ActiveAdapters": ["vmnic1", "vmnic0"], "StandbyAdapters": [], "UnusedAdapters": []}
+ esxcli --formatter=json network nic list
[{"Name": "vmnic0", "MACAddress": "00:25:90:00:00:01", "MTU": 9000, "PCIDevice": "0000:01:00.0"},
 {"Name": "vmnic1", "MACAddress": "00:25:90:XX:XX:XX", "MTU": 1500, "PCIDevice": "Pseudo"}]
"#;
    let host = read(text);
    check_records(&host);
    noted(&host, &["JSON", "untried"]);
    let groups = r#"[{"ActiveClients": 1, "Name": "VM Network", "VLANID": 10, "VirtualSwitch": "vSwitch0"}]"#;
    assert_eq!(listed(groups), [of("VM Network", "vSwitch0", Vlan::Tagged(10))]);
    let dvs = r#"[{"Name": "d", "VDSID": "50 1E 00 00 00 00 00 00-00 00 00 00 00 00 00 01", "Uplinks": ["vmnic2"],
        "DVPort": [{"PortID": "8", "InUse": true, "Client": "vmnic2", "DVPortgroupID": "dvportgroup-1"},
                   {"PortID": "9", "InUse": true, "Client": "web.eth0", "DVPortgroupID": "dvportgroup-2"}]}]"#;
    let names: Vec<String> = read(dvs).port_groups.into_iter().map(|group| group.name).collect();
    assert_eq!(names, ["dvportgroup-2"]);
    let cut = host_error("\n[root@e:~] esxcli network nic list\n[{\"Name\": \"a\",\n");
    assert!(cut.contains("line 4") && cut.contains("--formatter=json"), "{cut}");
}

fn host_error(text: &str) -> String {
    host("esx1", text).unwrap_err().to_string()
}

const DVS: &str = "\
~ # esxcli network vswitch dvs vmware list
DSwitch
   Name: DSwitch
   VDS ID: 50 1e 00 00 00 00 00 00-00 00 00 00 00 00 00 01
   Class: cswitch
   MTU: 1500
   Uplinks: vmnic3, vmnic2
   VMware Branded: true
   DVPort:
         Client: vmnic2
         DVPortgroup ID: dvportgroup-10
         In Use: true
         Port ID: 100

         Client: vmnic3
         DVPortgroup ID: dvportgroup-10
         In Use: true
         Port ID: 101

         Client: web.eth0
         DVPortgroup ID: dvportgroup-11
         In Use: true
         Port ID: 0

         Client:
         DVPortgroup ID: dvportgroup-12
         In Use: false
         Port ID: 8
~ # net-dvs -l
switch 50 1e 00 00 00 00 00 00-00 00 00 00 00 00 00 01 (etherswitch)
        max ports: 256
        global properties:
                com.vmware.common.alias = DSwitch ,     propType = CONFIG
                com.vmware.common.uplinkPorts:
                        Uplink 1, Uplink 2
                        propType = CONFIG
        host properties:
                com.vmware.common.host.uplinkPorts:
                        100, 101
                        propType = CONFIG
        port 100:
                com.vmware.common.port.alias = Uplink 1 ,       propType = CONFIG
                com.vmware.common.port.portgroupid = dvportgroup-10 ,   propType = CONFIG
                com.vmware.etherswitch.port.vlan = Guest VLAN tagging
                        ranges = 0-4094
                        propType = CONFIG
        port 101:
                com.vmware.common.port.alias = Uplink 2 ,       propType = CONFIG
                com.vmware.common.port.portgroupid = dvportgroup-10 ,   propType = CONFIG
        port 0:
                com.vmware.common.port.alias =  ,       propType = CONFIG
                com.vmware.common.port.portgroupid = dvportgroup-11 ,   propType = CONFIG
                com.vmware.etherswitch.port.teaming:
                        load balancing = source virtual port id
                        link selection = link state up;
                        link behavior = notify switch; best effort on failure;
                        active = Uplink 2; Uplink 1;
                        standby =
                        propType = CONFIG
                com.vmware.etherswitch.port.security = deny promiscuous; allow mac change; deny forged frames
                        propType = CONFIG
                com.vmware.etherswitch.port.vlan = VLAN 98
                        propType = CONFIG
                com.vmware.etherswitch.port.shaperSomething = x ,       propType = CONFIG
                com.vmware.common.port.volatile.vlan = VLAN 98
                        propType = RUNTIME VOLATILE
";

#[test]
fn distributed_switches_have_the_vlans_that_net_dvs_lists() {
    let host = read(DVS);
    let groups: Vec<_> =
        host.port_groups.iter().map(|group| (group.name.as_str(), group.vlan.clone())).collect();
    assert_eq!(groups, [("dvportgroup-11", Ok(Vlan::Tagged(98))), ("dvportgroup-12", Err(Unknown::Missing))]);
    let [switch] = &host.switches[..] else { panic!("{:?}", host.switches) };
    assert_eq!((switch.name.as_deref(), switch.mtu), (Some("DSwitch"), Some(1500)));
    let policies = &host.port_groups[0].policies;
    let failover = policies.failover.as_ref().unwrap();
    assert_eq!((failover.active.clone(), failover.notify), (strings(&["vmnic3", "vmnic2"]), Some(true)));
    assert_eq!(policies.security.unwrap().forged_transmits, Some(false));
    noted(&host, &["dvportgroup-10", "uplinks"]);
    noted(&host, &["dvportgroup-11", "shaperSomething"]);
    let vlan = |text: &str| {
        let text = DVS.replace("VLAN 98\n                        propType = CONFIG", text);
        read(&text).port_groups[0].vlan.clone()
    };
    for (text, expected) in [
        ("VLAN 0", Ok(Vlan::None)),
        ("Guest VLAN tagging\n ranges = 0-4094", Ok(Vlan::ALL)),
        ("Guest VLAN tagging\n ranges = 100, 7-9", Ok(Vlan::Trunk(vec![7, 8, 9, 100]))),
        (
            "Guest VLAN tagging\n ranges = 9-x",
            Err(Unknown::Setting("Guest VLAN tagging, ranges = 9-x".into())),
        ),
        ("Private VLAN 101", Err(Unknown::Setting("Private VLAN 101".into()))),
    ] {
        assert_eq!(vlan(text), expected, "{text}");
    }
}

/// As long as a file may be: neither time nor memory grows faster than it does.
#[test]
fn a_record_and_a_list_of_ranges_may_be_as_long_as_a_listing() {
    let port = "Client: web.eth0\nDVPortgroup ID: dvportgroup-11\nIn Use: true\nPort ID: 7\n";
    let id = "50 1e 00 00 00 00 00 00-00 00 00 00 00 00 00 01";
    let ports = format!("Name: DSwitch\nVDS ID: {id}\n{}", port.repeat(80_000));
    assert_eq!(read(&ports).port_groups.len(), 1);
    let vlan = |count| {
        let ranges = format!("Guest VLAN tagging\n ranges = {}", "0-4094, ".repeat(count));
        read(&DVS.replace("VLAN 98\n                        propType = CONFIG", &ranges)).port_groups[0]
            .vlan
            .clone()
    };
    assert_eq!(vlan(4095), Ok(Vlan::ALL));
    assert!(matches!(vlan(900_000), Err(Unknown::Setting(_))));
}

#[test]
fn what_is_no_listing_is_refused_and_what_is_no_vlan_is_kept_as_it_is() {
    assert_eq!(host("esx1", "hello\n"), Err(Error::NoPortGroup));
    let bad = read(&ESXCLI.replace("4095", "5000"));
    assert_eq!(
        (bad.port_groups.len(), &bad.port_groups[2].vlan),
        (3, &Err(Unknown::NoNumber("5000".into())))
    );
    // One switch has two VLANs for a name.
    let twice = read(&format!("{ESXCLI}VM Network              vSwitch0                     3       11\n"));
    assert_eq!(twice.port_groups[1].vlan, Err(Unknown::Several));
    let many: String = (0..5000).map(|number| format!("n{number}  vSwitch0  1  7\n")).collect();
    assert_eq!(host("esx1", ESXCLI.to_owned() + &many), Err(Error::TooManyPortGroups(MOST)));
}
