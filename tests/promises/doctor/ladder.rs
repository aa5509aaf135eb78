//! The ladder of the article of 2013 (experiments/esxi-throughput-2013/ladder.toml): at each rung the doctor
//! names what is wrong first or second, and the way up is measured, outbound and inbound apart.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use vmlane_api::call;
use vmlane_lab::Running;
use vmlane_tests::{Bed, kept, tree};

use super::proofs;

/// Where a table of what was found goes: `make experiments`.
const OUT: &str = "VMLANE_LADDER";
/// Only some rungs: `make experiments QUICK=1`.
const QUICK: &str = "VMLANE_QUICK";

#[derive(Deserialize)]
struct Ladder {
    rung: Vec<Rung>,
}

/// What is done in guests before the doctor runs, and what it must report.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rung {
    name: String,
    #[serde(default = "vmxnet3")]
    device: String,
    #[serde(default)]
    quick: bool,
    /// Frames on their way to b that are longer are lost; 0: none.
    #[serde(default)]
    longest: u32,
    /// Lines for a shell in guests a and b.
    #[serde(default)]
    a: String,
    #[serde(default)]
    b: String,
    /// The check, and part of its sentence; none: nothing may be found.
    finds: Option<String>,
    #[serde(default)]
    phrase: String,
    /// What the remedies of what is found must improve.
    proves: Option<String>,
}

fn vmxnet3() -> String {
    "vmxnet3".to_owned()
}

/// A rung as it was found, in Mbit/s.
struct Climbed {
    name: String,
    out: f64,
    into: f64,
    first: String,
}

/// Mbit/s from a to b, and from b to a.
fn throughput(report: &Value) -> [f64; 2] {
    ["near", "far"].map(|from| {
        let runs = report["measurements"].as_array().into_iter().flatten();
        let mut of = runs.filter(|run| run["what"] == "throughput" && run["from"] == from);
        of.next().and_then(|run| run["throughput_bps"].as_f64()).unwrap_or(0.0) / 1e6
    })
}

/// Two guests with this card, and a server in b.
fn boot(device: &str, config: &Path) -> (Bed, Running) {
    let mut spec = super::lab("doctorl", &[device]);
    spec.daemon_config = (device == "vmxnet3").then(|| config.to_owned());
    let bed = Bed::up(&spec);
    let server = super::server(&bed, "b", "tcp:0.0.0.0");
    (bed, server)
}

fn climb(bed: &Bed, rung: &Rung) -> Result<Climbed, String> {
    if rung.device == "vmxnet3" {
        bed.call(&call::DebugImpair {
            vm: "b".into(),
            at: "nic0-port".into(),
            loss: 0,
            reorder: 0,
            delay_us: 0,
            longest: Some(rung.longest),
            seed: 1,
        })
        .unwrap();
    }
    for (guest, line) in [("a", &rung.a), ("b", &rung.b)] {
        bed.guest(guest).sh(line).unwrap_or_else(|error| panic!("{}: {error:#}", rung.name));
    }
    let (report, _) = super::examine(bed, super::TO, false);
    let sentences = super::sentences(&report);
    let [out, into] = throughput(&report);
    let first = sentences.first().map_or("nothing", String::as_str).to_owned();
    println!("  {}: outbound {out:.0} Mbit/s, inbound {into:.0} Mbit/s; {first}", rung.name);
    let is_it = |check: &String| {
        let mut top = sentences.iter().take(2);
        top.any(|sentence| sentence.starts_with(&format!("{check}: ")) && sentence.contains(&rung.phrase))
    };
    if rung.finds.as_ref().map_or(sentences.is_empty(), is_it) {
        return Ok(Climbed { name: rung.name.clone(), out, into, first });
    }
    let why = format!("{}: not {:?}: {sentences:#?}\n{}", rung.name, rung.finds, super::measured(&report));
    println!("NOT FOUND {why}");
    Err(why)
}

fn table(rungs: &[Climbed]) -> String {
    let mut table =
        "| rung | outbound, Mbit/s | inbound, Mbit/s | found first |\n| --- | --- | --- | --- |\n".to_owned();
    for rung in rungs {
        let _ = writeln!(table, "| {} | {:.0} | {:.0} | {} |", rung.name, rung.out, rung.into, rung.first);
    }
    table
}

fn ladder() -> Ladder {
    toml::from_str(&tree::read("experiments/esxi-throughput-2013/ladder.toml")).unwrap()
}

/// The climb takes minutes, and so is not part of every run.
pub fn the_rungs_can_be_read() {
    let rungs = ladder().rung;
    assert!(rungs.iter().any(|rung| rung.quick) && rungs.iter().any(|rung| rung.proves.is_some()));
}

pub fn the_ladder_of_2013_is_climbed() {
    let mut ladder = ladder();
    let is_whole = std::env::var_os(QUICK).is_none();
    ladder.rung.retain(|rung| is_whole || rung.quick);
    let mut config = tempfile::NamedTempFile::new().unwrap();
    config.write_all(b"[daemon]\nfault_injection = true\ncoalesce = false\n").unwrap();
    let (mut rungs, mut wrong) = (Vec::new(), Vec::new());
    for rungs_of_card in ladder.rung.chunk_by(|one, next| one.device == next.device) {
        let (bed, server) = boot(&rungs_of_card[0].device, config.path());
        for rung in rungs_of_card {
            match climb(&bed, rung) {
                Ok(climbed) => rungs.push(climbed),
                Err(why) => wrong.push(why),
            }
            if let (Some(check), Some(gauge)) = (&rung.finds, &rung.proves) {
                proofs::prove_here(&bed, check, gauge);
            }
        }
        drop(server);
        bed.lab_down();
    }
    if let Some(out) = std::env::var_os(OUT) {
        std::fs::write(&out, table(&rungs)).unwrap_or_else(|error| panic!("{}: {error}", out.display()));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let of = |name: &str| rungs.iter().find(|rung| rung.name == name).unwrap();
    let (broken, cured) = (of("jumbo frames, broken LSO"), of("LSO off"));
    assert!(cured.out > 5.0 * broken.out, "LSO off is the cure: {} to {}", broken.out, cured.out);
    if is_whole {
        let (small, large) = (of("inbound, small buffers"), of("TCP buffers of 4 MiB"));
        assert!(large.into > small.into, "buffers cure inbound: {} to {}", small.into, large.into);
    }
    let shown = |rung: &Climbed| format!("{} {:.0}/{:.0}", rung.name, rung.out, rung.into);
    let shown: Vec<String> = rungs.iter().map(shown).collect();
    kept(
        "doctor",
        &format!("the ladder of 2013, each rung found, outbound/inbound in Mbit/s: {}", shown.join(", ")),
    );
}
