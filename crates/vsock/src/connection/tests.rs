//! Every state and every event, and sequences of them.

use super::*;

const STREAM: StreamId = StreamId { worker: 0, number: 7 };

type Event = super::Event<u8>;
type State = super::State<u8>;
type Action = super::Action<u8>;

/// Its name in the table, and how to make one.
type Named<T> = (&'static str, fn() -> T);

/// One of every kind.
fn states() -> Vec<Named<State>> {
    const E: fn() -> Early = Early::default;
    vec![
        ("requested", || State::Requested { client: None, early: E() }),
        ("requested with an end", || State::Requested { client: Some(1), early: E() }),
        ("accepted", || State::Accepted { server: 2, client: E(), early: E() }),
        ("accepted and closed", || State::Accepted {
            server: 2,
            client: E(),
            early: Early { closed: true, ..E() },
        }),
        ("joining", || State::Joining { client: E(), server: E(), certain: true }),
        ("joining uncertain", || State::Joining { client: E(), server: E(), certain: false }),
        ("joining late", || State::Joining {
            client: Early { receive: true, ..E() },
            server: Early { receive: true, send: true, reset: true, closed: true },
            certain: true,
        }),
        ("attached", || State::Attached { stream: STREAM }),
        ("joined", || State::Joined { stream: STREAM }),
        ("client left", || State::Left { stream: STREAM, who: Role::Client }),
        ("server left", || State::Left { stream: STREAM, who: Role::Server }),
        ("over", || State::Over),
    ]
}

fn events() -> Vec<Named<Event>> {
    use Role::{Client, Server};
    vec![
        ("Accept", || Event::Accept(2)),
        ("Attach", || Event::Attach(2)),
        ("Confirm", || Event::Confirm),
        ("Supply", || Event::Supply(1)),
        ("Started", || Event::Started(STREAM)),
        ("client shuts", || Event::Shutdown(Client, Shutdown::Send)),
        ("server shuts", || Event::Shutdown(Server, Shutdown::Send)),
        ("client closes", || Event::Close(Client)),
        ("server closes", || Event::Close(Server)),
        ("client resets", || Event::Reset(Client)),
        ("server resets", || Event::Reset(Server)),
        ("client withdraws", || Event::Withdraw(Client, Failed::Gone)),
        ("server withdraws", || Event::Withdraw(Server, Failed::Refused)),
        ("client has left", || Event::Left(Client)),
        ("server has left", || Event::Left(Server)),
    ]
}

fn role(role: Role) -> &'static str {
    if role == Role::Client { "client" } else { "server" }
}

fn early(early: Early) -> String {
    let bits = [(early.receive, "r"), (early.send, "s"), (early.reset, "x"), (early.closed, "c")];
    bits.iter().filter(|(set, _)| *set).map(|(_, letter)| *letter).collect()
}

fn state(state: &State) -> String {
    match state {
        State::Requested { client, early: own } => format!("Requested({client:?}, {})", early(*own)),
        State::Accepted { server, client, early: own } => {
            format!("Accepted({server}, {}, {})", early(*client), early(*own))
        }
        State::Joining { client, server, certain } => {
            format!("Joining({}, {}, {certain})", early(*client), early(*server))
        }
        State::Attached { .. } => "Attached".into(),
        State::Joined { .. } => "Joined".into(),
        State::Left { who, .. } => format!("Left({})", role(*who)),
        State::Over => "Over".into(),
    }
}

fn action(action: &Action) -> String {
    match action {
        Action::Ignore => "ignored".into(),
        Action::Join(ends) => format!("join {ends:?}"),
        Action::Accepted => "notify client accepted".into(),
        Action::NotifyJoined(who, _) => format!("notify {} joined", role(*who)),
        Action::NotifyFailed(who, why) => format!("notify {} {why:?}", role(*who)),
        Action::NotifyLeft(who) => format!("notify {} left", role(*who)),
        Action::Shutdown(_, who, what) => format!("{} shuts {what:?}", role(*who)),
        Action::Reset(_, who) => format!("{} resets", role(*who)),
        Action::Leave(_, who) => format!("{} leaves", role(*who)),
    }
}

/// The whole table, so that a change of it is a change of this text. What is not listed is ignored, and
/// leaves the state as it was.
#[test]
fn every_state_and_every_event() {
    let mut table = String::new();
    for (from, make) in states() {
        for (name, event) in events() {
            let before = state(&make());
            let (next, actions) = make().on(event());
            if actions == [Action::Ignore] {
                assert_eq!(state(&next), before, "{from}, {name}");
                continue;
            }
            let actions: Vec<String> = actions.iter().map(action).collect();
            table += &format!("{from} | {name} | {} | {}\n", state(&next), actions.join(", "));
        }
    }
    assert!(table == include_str!("table.txt"), "{table}");
}

/// Whatever happens in whatever order: each end is notified at most once that it is joined, never that it
/// failed after that, leaves at most once, and a connection that both have left is over.
#[test]
fn sequences_of_events_keep_the_promises() {
    for first in [None, Some(1)] {
        walk(State::new(first), &mut Notified::default(), 5);
    }
}

#[derive(Clone, Debug, Default)]
struct Notified {
    joins: usize,
    joined: [usize; 2],
    failed: [usize; 2],
    leaves: [usize; 2],
}

impl Notified {
    fn record(&mut self, action: &Action) {
        match action {
            Action::Join(_) => self.joins += 1,
            Action::NotifyJoined(role, _) => self.joined[*role as usize] += 1,
            Action::NotifyFailed(role, _) => self.failed[*role as usize] += 1,
            Action::Leave(_, role) => self.leaves[*role as usize] += 1,
            _ => {}
        }
        assert!(self.joins <= 1 && self.leaves.iter().all(|count| *count <= 1), "{self:?}");
        for end in 0..2 {
            assert!(self.joined[end] + self.failed[end] <= 1, "{self:?}");
            assert!(self.failed[end] == 0 || self.joins == 0, "failed though joined: {self:?}");
        }
    }
}

fn again(state: &State) -> State {
    match state {
        State::Requested { client, early } => State::Requested { client: *client, early: *early },
        State::Accepted { server, client, early } => {
            State::Accepted { server: *server, client: *client, early: *early }
        }
        State::Joining { client, server, certain } => {
            State::Joining { client: *client, server: *server, certain: *certain }
        }
        State::Attached { stream } => State::Attached { stream: *stream },
        State::Joined { stream } => State::Joined { stream: *stream },
        State::Left { stream, who } => State::Left { stream: *stream, who: *who },
        State::Over => State::Over,
    }
}

fn walk(state: State, notified: &mut Notified, depth: usize) {
    if matches!(state, State::Over) || depth == 0 {
        return;
    }
    for (name, event) in events() {
        if name == "Started" {
            continue;
        }
        let mut notified = notified.clone();
        let (mut next, actions) = again(&state).on(event());
        let joins = actions.iter().any(|action| matches!(action, Action::Join(_)));
        actions.iter().for_each(|action| notified.record(action));
        if joins {
            // The router does this at once.
            let (after, actions) = next.on(Event::Started(STREAM));
            actions.iter().for_each(|action| notified.record(action));
            next = after;
        }
        walk(next, &mut notified, depth - 1);
    }
}
