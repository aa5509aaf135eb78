//! Plans that are valid, and the errors of those that are not.

use super::*;
use crate::steps::Step;

const PLAN: &str = r#"
name = "t"
title = "T"
runs = 2
seconds = 1.5

[fixed]
buffer = "64k"

[matrix]
device = ["vmci", "vmxnet3", "qemu-e1000"]
message = [512, "4k"]
sessions = [1, 5]
"#;

fn error_of(change: impl Fn(&str) -> String) -> String {
    Plan::parse(&change(PLAN), false).map(|_| String::new()).unwrap_or_else(|error| format!("{error:#}"))
}

#[test]
fn a_matrix_is_crossed_and_the_devices_take_turns() {
    let plan = Plan::parse(PLAN, false).unwrap();
    assert_eq!(plan.combinations.len(), 12);
    assert_eq!(plan.named, ["device", "message", "buffer", "sessions"]);
    let boots = plan.boots();
    assert_eq!((boots.len(), boots[0].devices.len(), boots[0].steps.len()), (1, 3, 24));
    let devices = |steps: &[Step]| steps.iter().map(|s| s.factors.device.to_string()).collect::<Vec<_>>();
    let (first, second) = boots[0].steps.split_at(12);
    let mut back = second.to_vec();
    back.reverse();
    let ids = |steps: &[Step]| steps.iter().map(|step| step.factors.id()).collect::<Vec<_>>();
    assert_eq!(ids(first), ids(&back), "a round of all, and one backwards");
    for combination in first.chunks(3) {
        assert!(combination.iter().all(|step| step.combination == combination[0].combination));
    }
    // No device is always first.
    assert_ne!(devices(&first[..1]), devices(&first[3..4]));
}

#[test]
fn cases_add_to_what_is_fixed_and_need_their_own_labs() {
    let text = r#"
name = "t"
title = "T"
runs = 1
seconds = 1
[fixed]
device = "vmxnet3"
[[case]]
mtu = [1500, 9000]
[[case]]
guests = 4
message = ["1k", "2k"]
[[case]]
to = "host"
guests = 3
rate = "1G"
"#;
    let plan = Plan::parse(text, false).unwrap();
    assert_eq!(plan.combinations.len(), 5);
    let boots = plan.boots();
    assert_eq!(boots.len(), 4);
    assert_eq!(boots[1].guest_script(), "set -e\nip link set eth0 mtu 9000\n");
    assert_eq!((boots[2].steps.len(), boots[2].spec("x").guests), (2, 4));
    assert_eq!((boots[3].spec("x").uplinks, boots[2].spec("x").uplinks), (1, 0));
}

#[test]
fn cards_multiply_and_crowds_do_not_share() {
    let text = PLAN.replace("[fixed]", "[fixed]\nguests = 8").replace("\"vmci\", ", "");
    let boots = Plan::parse(&text, false).unwrap().boots();
    assert_eq!(boots.len(), 2);
    let text = PLAN.replace("[fixed]", "[fixed]\nnics = 3").replace("\"vmci\", ", "");
    let boots = Plan::parse(&text, false).unwrap().boots();
    assert_eq!((boots.len(), boots[0].spec("x").devices.len()), (1, 6));
}

#[test]
fn a_boot_of_its_own_changes_nothing_else() {
    let boots = Plan::parse(&PLAN.replace("[fixed]", "[fixed]\nboot = [1, 2, 3]"), false).unwrap().boots();
    let (first, last) = (&boots[0], &boots[2]);
    assert_eq!((boots.len(), first.steps.len()), (3, 24));
    assert_eq!(format!("{:?}", first.spec("x")), format!("{:?}", last.spec("x")));
    assert_ne!(first.steps[0].factors.id(), last.steps[0].factors.id());
}

#[test]
fn a_thin_slice_keeps_some() {
    let text =
        format!("{PLAN}\n[quick]\nruns = 1\nseconds = 0.5\n[quick.keep]\nsessions = 1\nmessage = [\"4k\"]\n");
    assert_eq!(Plan::parse(&text, false).unwrap().combinations.len(), 12);
    let plan = Plan::parse(&text, true).unwrap();
    assert_eq!((plan.combinations.len(), plan.runs, plan.seconds), (3, 1, 0.5));
}

#[test]
fn errors_name_line_and_key() {
    for (from, to, line, words) in [
        ("sessions = [1, 5]", "colour = 3", 13, "colour is no factor"),
        ("\"qemu-e1000\"", "\"vmxnet4\"", 11, "device: device \"vmxnet4\""),
        ("\"4k\"", "\"18446744073709551615k\"", 12, "message: \"18446744073709551615k\""),
        ("\"4k\"", "99999999999", 12, "message: \"99999999999\""),
        ("[1, 5]", "[1, 4294967297]", 13, "sessions: \"4294967297\""),
        ("[1, 5]", "[]", 13, "sessions has no value"),
        ("runs = 2", "runs = 2\nwithin = 5", 5, "needs most_runs"),
        ("runs = 2", "runs = 2\nmost_runs = 9", 5, "needs within"),
        ("runs = 2", "runs = 2\nwithin = 5\nmost_runs = 2", 6, "most_runs = 2: 3 or more"),
        ("runs = 2", "runs = 2\nwithin = 0\nmost_runs = 9", 5, "within = 0"),
        ("runs = 2", "runs = 0", 4, "runs = 0"),
        ("seconds = 1.5", "seconds = 1e99", 5, "seconds = "),
        ("buffer = \"64k\"", "mtu = 9000", 8, "mtu = \"9000\" is impossible"),
        ("buffer = \"64k\"", "guests = 3", 8, "do not make pairs"),
        ("title = \"T\"", "titel = \"T\"", 3, "titel"),
    ] {
        let error_of = error_of(|plan| plan.replace(from, to));
        assert!(error_of.contains(&format!("line {line}:")) && error_of.contains(words), "{to}: {error_of}");
    }
    let figure = |x: &str| error_of(|plan| format!("{plan}\n[[figure]]\ntitle = \"f\"\nx = {x}\n"));
    assert!(figure("\"size\"").contains("\"size\" is no factor"));
    assert!(figure("[\"message\", \"size\"]").contains("\"size\" is no factor"));
    assert!(figure("[]").contains("x needs a factor"));
    let paper = |values: &str| figure(&format!("\"message\"\npaper = [{{ value = 27 }}, {{ {values} }}]"));
    assert!(paper("value = 27, at = { sessions = 5 }").contains("at \"sessions\", which is not in its x"));
    assert!(paper("value = -1.5").contains("-1.5 as a value of the paper: more than 0"));
    assert_eq!(paper("value = 1.5, text = \"the post:\", at = { message = \"4k\" }"), "");
    assert_eq!((figure("\"message\""), figure("[\"message\", \"buffer\"]")), (String::new(), String::new()));
}

/// The rows carry the plan's text, from which a report concludes what is missing.
#[test]
fn a_demo_without_root_leaves_the_card_that_needs_it_out_of_its_plan() {
    for full in [false, true] {
        let [root, user] = [true, false].map(|is_root| crate::demo(full, is_root));
        let is_left_out = |factors: &&Factors| factors.device == vmlane_lab::Device::UmlVector;
        let count = root.combinations.iter().filter(is_left_out).count();
        assert!(count > 0, "full: {full}");
        assert_eq!(user.combinations.len() + count, root.combinations.len());
        assert!(!user.combinations.iter().any(|factors| is_left_out(&factors)));
        let carried = Plan::parse(&user.source, false).unwrap();
        assert_eq!(carried.combinations.len(), user.combinations.len());
        assert!(user.notes.iter().any(|note| note.contains("needs root")), "{:?}", user.notes);
    }
}
