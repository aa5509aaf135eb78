//! What a stream connection allows, and when: a pure function from state and packet to a verdict.
//!
//! ```text
//! client            device            server
//! REQUEST2     -->  Requested    -->            backlog, ring size
//!              <--  Negotiated   <--  NEGOTIATE2
//! ALLOC create, OFFER -> Offered -->            ALLOC attach
//!              <--  Established  <--  ATTACH
//! ```
//! Only what the table allows is passed on. That also protects guests whose kernels take control
//! packets for a bound port from anyone.

use vmlane_vsock::Role;
use vmlane_wire::vmci_stream::PacketType;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Requested,
    Negotiated,
    Offered,
    Established,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Requested => "requested",
            State::Negotiated => "negotiated",
            State::Offered => "offered",
            State::Established => "established",
        }
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass it on; the connection is in this state afterwards.
    Forward(State),
    /// The client's offer of a queue pair: check the pair, then forward.
    Offer,
    /// The server announces that it attached: check that it did, then forward.
    Attach,
    /// About bytes and room: the engine's business, never passed on.
    Notice,
    /// A direction closes, behind its bytes.
    Shutdown,
    /// Ends the connection: at once before it is established, behind its bytes after.
    Reset,
}

/// The verdict on `kind` sent by `role`; `None`: out of turn, answer with RST.
pub fn verdict(state: State, role: Role, kind: PacketType) -> Option<Verdict> {
    use PacketType as P;
    Some(match (state, role, kind) {
        (_, _, P::Rst) => Verdict::Reset,
        // Repeated with the older protocol after the server answered INVALID.
        (State::Requested, Role::Client, P::Request | P::Request2) => Verdict::Forward(State::Requested),
        (State::Requested, Role::Server, P::Invalid) => Verdict::Forward(State::Requested),
        (State::Requested, Role::Server, P::Negotiate | P::Negotiate2) => Verdict::Forward(State::Negotiated),
        (State::Negotiated, Role::Client, P::Offer) => Verdict::Offer,
        (State::Offered, Role::Server, P::Attach) => Verdict::Attach,
        // The server may write, wait and close before its ATTACH has been passed on.
        (State::Offered, Role::Server, P::Wrote | P::Read | P::WaitingRead | P::WaitingWrite) => {
            Verdict::Notice
        }
        (State::Offered, Role::Server, P::Shutdown) => Verdict::Shutdown,
        (State::Established, _, P::Wrote | P::Read | P::WaitingRead | P::WaitingWrite) => Verdict::Notice,
        (State::Established, _, P::Shutdown) => Verdict::Shutdown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use PacketType as P;

    /// The whole table, so that a change of it is a change of this text.
    #[test]
    fn allows_exactly_the_handshake() {
        let states = [State::Requested, State::Negotiated, State::Offered, State::Established];
        let mut allowed = Vec::new();
        for state in states {
            for role in [Role::Client, Role::Server] {
                let kinds: Vec<_> = (0..=12)
                    .filter_map(P::from_wire)
                    .filter(|kind| verdict(state, role, *kind).is_some())
                    .collect();
                allowed.push((state, role, kinds));
            }
        }
        let data = [P::Wrote, P::Read, P::Rst, P::Shutdown, P::WaitingWrite, P::WaitingRead].to_vec();
        assert_eq!(
            allowed,
            [
                (State::Requested, Role::Client, vec![P::Request, P::Rst, P::Request2]),
                (State::Requested, Role::Server, vec![P::Invalid, P::Negotiate, P::Rst, P::Negotiate2]),
                (State::Negotiated, Role::Client, vec![P::Offer, P::Rst]),
                (State::Negotiated, Role::Server, vec![P::Rst]),
                (State::Offered, Role::Client, vec![P::Rst]),
                (
                    State::Offered,
                    Role::Server,
                    vec![P::Attach, P::Wrote, P::Read, P::Rst, P::Shutdown, P::WaitingWrite, P::WaitingRead]
                ),
                (State::Established, Role::Client, data.clone()),
                (State::Established, Role::Server, data),
            ]
        );
    }
}
