//! Other hosts, and the streams between them and this one.

use std::fmt;

use super::{Families, Scrape, Shown, family, shown, shown_bytes};

const PEERS: [Shown; 20] = [
    shown("calls", "peer_calls", "Streams to the peer that were asked for here"),
    shown("calls_refused", "peer_calls_refused", "Of those, that did not come about"),
    shown("opens", "peer_opens", "Streams that the peer asked for"),
    shown("opens_refused", "peer_opens_refused", "Of those, refused, for whatever reason"),
    shown(
        "forged",
        "peer_forged",
        "Streams refused because the peer does not own the client's CID, or this host the server's",
    ),
    shown(
        "forbidden",
        "peer_forbidden",
        "Streams refused because their client is in no group that the peer may reach",
    ),
    shown("over_streams", "peer_over_streams", "Streams for which no place was left"),
    shown("established", "peer_established", "Streams that came about"),
    shown("links", "peer_links", "Connections on which both ends have proved their names"),
    shown("links_lost", "peer_links_lost", "Of those, that have ended"),
    shown("violations", "peer_violations", "Connections ended because the peer broke the protocol"),
    shown(
        "handshakes_failed",
        "peer_handshakes_failed",
        "Connections that ended before both ends had proved their names",
    ),
    shown(
        "certificates_expired",
        "peer_certificates_expired",
        "Connections ended, or refused, for a certificate that had expired or was not valid yet",
    ),
    shown(
        "certificates_foreign",
        "peer_certificates_foreign",
        "Connections ended, or refused, for a certificate of a foreign authority",
    ),
    shown(
        "certificates_revoked",
        "peer_certificates_revoked",
        "Connections ended, or refused, for a certificate that was revoked or is not one of those pinned",
    ),
    shown("unknown_names", "peer_unknown_names", "Connections refused for a name that is no peer's"),
    shown(
        "handshakes_late",
        "peer_handshakes_late",
        "Connections ended because their handshake took too long",
    ),
    shown(
        "over_handshakes",
        "peer_over_handshakes",
        "Connections for which there was no place: too many at a time, or within a second",
    ),
    shown_bytes("bytes_sent", "peer_sent", "Bytes of streams sent to the peer"),
    shown_bytes("bytes_received", "peer_received", "Bytes of streams received from the peer"),
];

pub fn write(scrape: &Scrape, families: &mut Families<'_>) -> fmt::Result {
    let peers = || scrape.status().into_iter().flat_map(|status| &status.peers);
    let named = || peers().filter(|peer| !peer.name.is_empty());
    let up = family("peer_up", "1 if the other host is connected");
    families.each(&up, named(), |peer| ([("peer", peer.name.as_str())], peer.state == "up"))?;
    let streams = family("peer_streams", "Streams between this host and the peer that have a place");
    families.each(&streams, named(), |peer| ([("peer", peer.name.as_str())], peer.streams))?;
    families.counters(&PEERS, peers().map(|peer| ([("peer", peer.name.as_str())], &peer.counters)))
}
