//! Each bound of the daemon has a test in which it is filled: the table of SECURITY.md, the code and the
//! tests are compared, so that a bound without a test is found.

use std::collections::BTreeSet;

use vmlane_tests::tree;

use crate::docs::named;

vmlane_tests::tests! {
    plain {
        every_bound_of_the_table_has_tests_that_fill_it,
        places_that_vms_share_are_bounds_of_the_table,
    }
}

/// First cells of the table's rows, and for each bound the tests that fill it, as PROMISES.md names them.
const ROWS: &[(&str, &[&str])] = &[
    (
        "queue pairs, bytes in them",
        &["device: vmci::queue_pairs::quotas_are_checked_before_anything_is_kept"],
    ),
    (
        "connections",
        &[
            "device: vmci::refusals::connections_have_a_quota",
            "device: vsock::hostile::connections_are_bounded_both_ways",
            "device: vsock::share::siblings_are_bounded_by_their_own_limits",
            "host: hybrid::a_vm_has_so_many_connections_and_no_more",
        ],
    ),
    ("doorbells, datagram maps", &["device: vmci::calls::a_doorbell_outside_the_rules_is_refused"]),
    (
        "datagrams waiting for a VM",
        &["device: vmci::datagrams::a_sender_takes_no_more_of_a_queue_than_it_leaves_to_others"],
    ),
    (
        "unread data of streams the VM has closed",
        &["device: vmci::ends::a_vm_cannot_leave_more_behind_than_it_may"],
    ),
    (
        "control packets the device sends to the VM itself",
        &["device: vmci::hostile::events_that_are_not_fetched_do_not_pile_up"],
    ),
    (
        "addresses that are announced when they move to another uplink of a team",
        &["switch: teams::announcements_are_bounded_and_leave_over_several_rounds"],
    ),
    (
        "how often a NIC is announced to the network, however often its guest or its VMM cause it",
        &[
            "switch: announce::queue::a_port_waits_once_and_has_one_turn_in_its_time",
            "switch: announce::a_vm_is_announced_when_it_comes_and_when_its_vmm_asks",
        ],
    ),
    (
        "connections to the socket of an uplink with `role = \"server\"`",
        &["host: vhost_user_uplink::a_second_peer_is_turned_away_and_the_first_one_stays"],
    ),
    (
        "connections to another switch that breaks a rule of its rings",
        &["host: vhost_user_uplink::a_peer_that_breaks_a_rule_of_its_rings_loses_its_connection_and_no_more"],
    ),
    (
        "VMs that are added at run time; bytes of a description",
        &[
            "daemon: assembly::so_many_vms_are_added_and_no_more",
            "config: added::descriptions_and_their_number_are_bounded",
            "cli: vms::what_is_in_use_is_refused_and_the_error_names_its_user",
        ],
    ),
    (
        "files in `conf.d`; bytes of each",
        &["config: merge::a_pipe_is_not_waited_for_and_what_is_too_much_is_refused"],
    ),
    (
        "captures",
        &[
            "cli: capture::a_client_that_is_killed_leaves_nothing_and_places_are_limited",
            "cli: capture::a_client_that_is_too_slow_loses_exactly_as_many_records_as_the_file_counts",
            "cli: capture::mistakes_are_named_with_the_way_out",
            "capture: ring::what_does_not_fit_is_lost_counted_and_reported_with_the_next_record",
        ],
    ),
    (
        "what `vmlane doctor --pcap` remembers of a file",
        &[
            "doctor: captures::a_flood_of_connections_is_bounded",
            "doctor: capture::addresses::so_many_addresses_are_remembered_and_no_more",
            "doctor: capture::file::a_file_of_too_many_interfaces_is_read_until_there",
        ],
    ),
    (
        "what `vmlane doctor` reads of a tool (ip, tc, nft, iptables-save)",
        &["doctor: facts::tools::a_tool_that_prints_without_end_or_hangs_is_ended"],
    ),
    (
        "mirrors",
        &[
            "config: mirror::mistakes_name_the_mirror_the_value_and_the_way_out",
            "switch: mirror::ring::a_full_ring_takes_nothing_until_what_was_read_is_free",
            "switch: mirror::copies_beyond_the_mirrors_part_of_a_round_are_dropped_and_counted",
        ],
    ),
    ("memory regions of a device", &["mem: ::so_many_regions_are_mapped_and_the_next_one_is_refused"]),
    (
        "memory that a device maps",
        &[
            "mem: ::no_more_is_mapped_than_the_limit_allows",
            "cli: hostile_vmm::sparse_files_of_one_vm_leave_address_space_for_others_and_the_next_daemon",
        ],
    ),
    ("frames of a queue that are in use", &["device: vmxnet3::hostile::unfinished_frames_are_bounded"]),
    (
        "frames waiting for a receiver",
        &[
            "switch: pending::the_number_is_bounded_and_senders_are_taken_out",
            "switch: pending::two_slow_receivers_leave_an_uplink_its_frames_for_others",
            "switch: pending::no_frame_waits_longer_than_it_may_though_its_receiver_takes_some",
        ],
    ),
    (
        "time for which a virtio-vsock guest's packets wait for a receiver's buffers",
        &["device: vsock::hostile::a_receiver_that_is_slow_does_not_stop_its_senders_packets_to_others"],
    ),
    (
        "payload of a virtio-vsock packet",
        &["device: vsock::share::a_packet_has_64_kib_at_most_whatever_its_pieces_overlap"],
    ),
    (
        "connects waiting for a virtio-vsock guest, or for the host and VMs with hybrid sockets",
        &[
            "device: vsock::hostile::requests_that_wait_for_a_guest_are_bounded_and_one_client_leaves_places_for_others",
            "host: sockets::inbox::a_guest_that_opens_and_gives_up_faster_than_it_is_served_fills_nothing",
        ],
    ),
    (
        "connections of virtio-vsock guests with VMCI guests and the host",
        &["device: vsock::hostile::one_guest_with_all_the_connections_it_can_get_leaves_others_theirs"],
    ),
    (
        "connections that a server has closed before their clients know",
        &["device: vsock::orders::so_many_clients_may_be_late_and_no_more"],
    ),
    (
        "connections of host programs and of VMs with hybrid sockets; those without a request yet",
        &["host: sockets::server::clients::one_user_fills_its_part_and_another_is_served"],
    ),
    (
        "what a VMM with a hybrid socket answers to a connect",
        &[
            "host: sockets::client::an_answer_comes_in_pieces_and_what_follows_it_stays",
            "host: hybrid::hostile_answers_end_their_own_connection_only",
        ],
    ),
    (
        "bytes that one user's or VM's host streams move before others have their turn",
        &[
            "host: sockets::server::turns::one_that_has_had_its_part_waits_for_the_next_round_and_others_do_not",
        ],
    ),
    (
        "frames of a NIC that go to several receivers, or to none",
        &["switch: policy::floods_are_bounded_and_do_not_hurt_others"],
    ),
    (
        "frames waiting for tokens of a shaped port",
        &["switch: shaping::a_full_queue_drops_what_comes_and_gives_what_it_holds_in_order"],
    ),
    (
        "frames on their way over an impaired wire, each direction",
        &[
            "switch: impair::a_line_holds_so_many_frames_and_what_is_too_much_is_dropped",
            "switch: impair::no_more_arrives_than_the_rate_and_what_waits_is_bounded",
        ],
    ),
    (
        "multicast groups that a port is in (`multicast = \"snoop\"`)",
        &[
            "switch: multicast::memberships_come_go_and_are_bounded",
            "switch: multicast::groups_reach_who_asked_and_no_one_pays_for_a_guest_that_asks_for_all",
        ],
    ),
    (
        "log lines of a session's thread, and of each port, stream or guest that a worker serves; of all other threads of the \
         daemon; of a helper",
        &[
            "daemon: log::a_guest_gets_so_many_lines_and_the_rest_is_counted",
            "daemon: log::what_one_port_of_a_worker_causes_takes_no_line_from_another",
            "daemon: log::no_thread_of_any_process_writes_without_end",
        ],
    ),
    (
        "streams of other hosts; calls that wait for another host; bytes of those that the helper has not read",
        &[
            "host: routes::a_host_has_so_many_streams_and_calls_and_no_more",
            "host: routes::connects_that_are_given_up_leave_nothing_where_the_helper_does_not_read",
        ],
    ),
    (
        "hosts that have not proved a name, at a time, and of those that prove none in a second; how long that may take",
        &[
            "route: hostile::slow_handshakes_end_and_leave_places_for_others",
            "route: hostile::a_peers_address_has_places_while_strangers_of_many_addresses_take_all_others",
            "route: hostile::hellos_that_are_sent_again_and_again_are_answered_a_few_times_a_second",
        ],
    ),
    (
        "bytes of a frame of another host; of a stream that its reader has not taken",
        &[
            "route: hostile::frames_that_no_peer_may_send_end_their_connection_and_no_other",
            "cli: route::a_slow_reader_holds_up_its_own_writer_and_no_other",
        ],
    ),
    (
        "bytes behind the ring of a stream of another host; of all streams of one host; of all",
        &["route: credit::windows_of_a_peer_and_of_all_have_a_bound"],
    ),
    ("control clients", &["daemon: control::one_client_too_many_gets_a_reason"]),
];

/// Where places that VMs share are given out, and the bound's row.
const SHARED: &[(&str, &str, &str)] = &[
    (
        "vsock/src/router.rs",
        "SharedPlaces::new(MOST_CLOSED_EARLY)",
        "connections that a server has closed before their clients know",
    ),
    (
        "vsock/src/waiting.rs",
        "SharedPlaces::new(most)",
        "connects waiting for a virtio-vsock guest, or for the host and VMs with hybrid sockets",
    ),
    (
        "host/src/sockets/inbox.rs",
        "WaitingCalls::new(MOST_REQUESTS)",
        "connects waiting for a virtio-vsock guest, or for the host and VMs with hybrid sockets",
    ),
    (
        "device/src/virtio/vsock/bridge/inbox.rs",
        "WaitingCalls::new(MOST_REQUESTS)",
        "connects waiting for a virtio-vsock guest, or for the host and VMs with hybrid sockets",
    ),
    (
        "device/src/virtio/vsock/bridge.rs",
        "SharedPlaces::new(most)",
        "connections of virtio-vsock guests with VMCI guests and the host",
    ),
    (
        "host/src/sockets/server/clients.rs",
        "SharedPlaces::new(bounds.clients)",
        "connections of host programs and of VMs with hybrid sockets; those without a request yet",
    ),
    (
        "host/src/sockets/server/clients.rs",
        "SharedPlaces::new(bounds.unasked)",
        "connections of host programs and of VMs with hybrid sockets; those without a request yet",
    ),
    (
        "host/src/sockets/server/clients.rs",
        "SharedPlaces::new(bounds.routed)",
        "streams of other hosts; calls that wait for another host; bytes of those that the helper has not read",
    ),
    (
        "host/src/sockets/server/route_table.rs",
        "SharedPlaces::new(bounds.calls)",
        "streams of other hosts; calls that wait for another host; bytes of those that the helper has not read",
    ),
];

/// First cells of the table of bounds.
fn documented() -> Vec<String> {
    let text = tree::read("SECURITY.md");
    let table = text.split("| bound | key |").nth(1).expect("the table of bounds");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.filter_map(|line| Some(line.split('|').nth(1)?.trim().to_owned())).collect()
}

fn every_bound_of_the_table_has_tests_that_fill_it() {
    for name in documented() {
        let known = ROWS.iter().any(|(row, _)| *row == name);
        assert!(known, "SECURITY.md: no test is named for the bound {name:?}");
    }
    for (row, tests) in ROWS {
        assert!(documented().iter().any(|name| name == row), "SECURITY.md does not list the bound {row:?}");
        let missing: Vec<&&str> = tests.iter().filter(|test| !named::exists(test)).collect();
        assert!(missing.is_empty() && !tests.is_empty(), "{row}: no such tests: {missing:?}");
    }
}

fn places_that_vms_share_are_bounds_of_the_table() {
    let crates = tree::root().join("crates");
    let mut found = BTreeSet::new();
    for name in ["daemon", "device", "host", "state", "stream", "switch", "transport", "vsock", "worker"] {
        let files = tree::files(&crates.join(name).join("src"), "rs");
        for file in files.into_iter().filter(|file| !file.ends_with("tests.rs")) {
            let text = tree::read(&file);
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for call in ["SharedPlaces::new(", "WaitingCalls::new("] {
                for (at, _) in code.match_indices(call) {
                    let end = code[at..].find(')').expect("an end of the call") + at + 1;
                    let file = file.strip_prefix(&crates).expect("a file of a crate").display().to_string();
                    found.insert((file, code[at..end].to_owned()));
                }
            }
        }
    }
    let listed = SHARED.iter().map(|(file, call, _)| ((*file).to_owned(), (*call).to_owned()));
    assert_eq!(found, listed.collect(), "each place where bounds are shared needs a row here");
    for (_, _, row) in SHARED {
        assert!(ROWS.iter().any(|(name, _)| name == row), "{row:?} has no tests");
    }
}
