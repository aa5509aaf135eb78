//! What checks of captures share: one finding for each pair of machines and direction, of the connection that
//! has it worst.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::capture::Way;
use crate::prelude::*;

/// Findings of a check: more would not be read.
const MOST: usize = 4;

/// Judges each direction of each connection; of those between the same two machines, the one that loses most
/// speaks for all.
pub fn each(evidence: &Evidence, judge: impl Fn(&Way) -> Option<Finding>) -> Vec<Finding> {
    let mut worst: BTreeMap<(IpAddr, IpAddr), (Finding, usize, &Way)> = BTreeMap::new();
    for way in evidence.captures.iter().flat_map(|capture| &capture.ways) {
        let Some(finding) = judge(way) else { continue };
        let pair = (way.from.ip(), way.to.ip());
        match worst.get_mut(&pair) {
            None => {
                worst.insert(pair, (finding, 0, way));
            }
            Some(known) => {
                // The same connection at another point is not one more.
                let others = known.1 + usize::from((way.from, way.to) != (known.2.from, known.2.to));
                if finding.cost.share > known.0.cost.share {
                    *known = (finding, others, way);
                } else {
                    known.1 = others;
                }
            }
        }
    }
    let mut found: Vec<Finding> = worst
        .into_values()
        .map(|(mut finding, others, way)| {
            let more =
                if others > 0 { format!(", and {others} more between the two") } else { String::new() };
            finding.evidence.push(format!("{}: {}{more}", way.point, way.name()));
            finding.evidence.extend(between(evidence, way));
            finding
        })
        .collect();
    found.sort_by(|one, other| other.cost.share.total_cmp(&one.cost.share));
    found.truncate(MOST);
    found
}

/// What became of the data between two points that both saw the whole connection.
fn between(evidence: &Evidence, way: &Way) -> Option<String> {
    let ways = evidence.captures.iter().flat_map(|capture| &capture.ways);
    let mut same = ways.filter(|other| (other.from, other.to) == (way.from, way.to) && other.is_whole);
    let (one, other) = (same.next()?, same.next()?);
    let (more, fewer) = if one.seen.bytes >= other.seen.bytes { (one, other) } else { (other, one) };
    // What a capture has itself missed shows nothing of the path.
    if more.seen.missed + fewer.seen.missed > 0 {
        return None;
    }
    // One that goes on for longer has more in it, whatever was lost.
    let (most, least) =
        (one.seen.delivered.max(other.seen.delivered), one.seen.delivered.min(other.seen.delivered));
    if most - least > most / 100 {
        return Some(format!(
            "{} and {} are not of the same part of the connection: what was lost between the two is not known",
            one.point, other.point
        ));
    }
    let lost = more.seen.bytes - fewer.seen.bytes;
    Some(if lost > 0 {
        format!(
            "of {} bytes in {}, {lost} did not come to {}: lost between the two",
            more.seen.bytes, more.point, fewer.point
        )
    } else {
        format!(
            "all {} bytes are in {} and in {}: nothing was lost between the two",
            more.seen.bytes, one.point, other.point
        )
    })
}
