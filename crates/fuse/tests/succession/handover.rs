//! A model of protocol R (docs/survival.md): the former holder and its server, the new holder and its server, and the
//! messages between them. All interleavings of their steps are tried, with deaths of any of them after any step.

use std::collections::{HashSet, VecDeque};

/// A process that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Server {
    /// It opens the image.
    Opening,
    /// KR3: it waits for its turn.
    Prepared,
    /// KR5: it may go on.
    HasTurn,
    /// It reads requests.
    Reading,
    /// It has told the former holder.
    Told,
    /// It has told its own holder, too, if it is the new one.
    Ready,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum PreviousHolder {
    /// It holds the mount.
    Holds,
    /// KR5: it has taken *go*.
    Asked,
    /// KR5: it has ended its server.
    Retired,
    /// KR5: it has sent *handed*.
    Handed,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum New {
    Preparing,
    /// KR4.
    SentGo,
    /// The former holder has ended without *handed*, and its server has not.
    Orphaned,
    /// KR5: its server has the turn.
    GaveTurn,
    /// Its server has ended in between, and it waits for an answer.
    GaveUp,
    Holds,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Message {
    Go,
    Refused,
    Handed,
    Done,
    GiveUp,
    TakenBack,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    previous: PreviousHolder,
    previous_server: Server,
    new: New,
    new_server: Server,
    to_previous: VecDeque<Message>,
    to_new: VecDeque<Message>,
    /// Whether the server is the one of the offer, which the new program watches.
    is_watched_server: bool,
    /// Whether the former holder has withdrawn its offer, or taken *go*.
    is_offer_used: bool,
    kills: u8,
    killed_holders: u8,
    killed_servers: u8,
}

fn reads(server: Server) -> bool {
    matches!(server, Server::Reading | Server::Told | Server::Ready)
}

impl State {
    fn new(kills: u8) -> Self {
        Self {
            previous: PreviousHolder::Holds,
            previous_server: Server::Ready,
            new: New::Preparing,
            new_server: Server::Opening,
            to_previous: VecDeque::new(),
            to_new: VecDeque::new(),
            is_watched_server: true,
            is_offer_used: false,
            kills,
            killed_holders: 0,
            killed_servers: 0,
        }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    fn next(&self, setting: Setting) -> Vec<Self> {
        let mut all = Vec::new();
        if self.kills > 0 {
            self.deaths(&mut all);
        }
        self.previous_steps(setting, &mut all);
        self.new_steps(setting, &mut all);
        self.new_server_steps(&mut all);
        all
    }

    fn deaths(&self, all: &mut Vec<Self>) {
        let killed = |change: fn(&mut Self)| {
            let mut next = self.with(change);
            next.kills -= 1;
            next
        };
        if self.previous_server != Server::Dead {
            all.push(killed(|next| {
                next.previous_server = Server::Dead;
                next.killed_servers += 1;
            }));
        }
        if self.new_server != Server::Dead {
            all.push(killed(|next| {
                next.new_server = Server::Dead;
                next.killed_servers += 1;
            }));
        }
        if self.previous != PreviousHolder::Ended {
            all.push(killed(|next| {
                next.previous = PreviousHolder::Ended;
                next.killed_holders += 1;
            }));
        }
        if self.new != New::Ended {
            all.push(killed(|next| {
                next.new = New::Ended;
                next.killed_holders += 1;
            }));
        }
    }

    fn previous_steps(&self, setting: Setting, all: &mut Vec<Self>) {
        let message = self.to_previous.front().copied();
        let take = |change: fn(&mut Self)| {
            self.with(|next| {
                next.to_previous.pop_front();
                change(next);
            })
        };
        let is_other_end_closed = self.new == New::Ended && self.new_server == Server::Dead;
        // KR2: a newer program takes the place of this one.
        if self.previous == PreviousHolder::Holds && setting.has_rival && !self.is_offer_used {
            all.push(self.with(|next| {
                next.is_offer_used = true;
                next.to_new.push_back(Message::Refused);
            }));
        }
        match (self.previous, message) {
            // Its server has ended by itself: KD3, after the offer was withdrawn.
            (PreviousHolder::Holds, _) if self.previous_server == Server::Dead => {
                all.push(self.with(|next| match next.is_offer_used {
                    false => {
                        next.is_offer_used = true;
                        next.to_new.push_back(Message::Refused);
                    }
                    true => {
                        next.previous_server = Server::Ready;
                        next.is_watched_server = false;
                    }
                }));
            }
            (PreviousHolder::Holds, Some(Message::Go)) if self.is_offer_used => {
                all.push(take(|_| {}));
            }
            (PreviousHolder::Holds, Some(Message::Go)) => all.push(take(|next| {
                next.is_offer_used = true;
                next.previous = PreviousHolder::Asked;
            })),
            (PreviousHolder::Asked, _) => all.push(self.with(|next| {
                next.previous_server = Server::Dead;
                next.previous = PreviousHolder::Retired;
            })),
            (PreviousHolder::Retired, _) => all.push(self.with(|next| {
                next.previous = PreviousHolder::Handed;
                next.to_new.push_back(Message::Handed);
            })),
            (PreviousHolder::Handed, Some(Message::Done)) => {
                all.push(take(|next| next.previous = PreviousHolder::Ended));
            }
            (PreviousHolder::Handed, Some(Message::GiveUp)) => all.push(take(|next| {
                next.previous = PreviousHolder::Holds;
                next.to_new.push_back(Message::TakenBack);
            })),
            (PreviousHolder::Handed, None) if is_other_end_closed => {
                all.push(self.with(|next| next.previous = PreviousHolder::Holds));
            }
            _ => {}
        }
    }

    /// Whether the server of the offer has ended.
    fn has_watched_ended(&self) -> bool {
        !self.is_watched_server || self.previous_server == Server::Dead
    }

    fn new_steps(&self, setting: Setting, all: &mut Vec<Self>) {
        let message = self.to_new.front().copied();
        let is_closed = message.is_none() && self.previous == PreviousHolder::Ended;
        let is_server_dead = self.new_server == Server::Dead;
        let to = |new: New| self.with(|next| next.new = new);
        // It kills its server, which waits.
        let end = || self.with(|next| (next.new, next.new_server) = (New::Ended, Server::Dead));
        match self.new {
            New::Preparing | New::SentGo if is_closed && setting.is_server_watched => {
                all.push(to(New::Orphaned));
            }
            New::Preparing | New::SentGo
                if is_server_dead || is_closed || message == Some(Message::Refused) =>
            {
                all.push(end());
            }
            New::Preparing if self.new_server == Server::Prepared => {
                all.push(self.with(|next| {
                    next.new = New::SentGo;
                    next.to_previous.push_back(Message::Go);
                }));
            }
            New::SentGo if message == Some(Message::Handed) => all.push(self.with(|next| {
                next.to_new.pop_front();
                next.new = New::GaveTurn;
                next.new_server = Server::HasTurn;
            })),
            // Its server has the turn as soon as it is prepared, or is started again.
            New::Orphaned if self.has_watched_ended() => all.push(to(New::Holds)),
            // After the time limit, or since it has no server.
            New::Orphaned => all.push(end()),
            New::GaveTurn if is_closed || self.new_server == Server::Ready => {
                all.push(to(New::Holds));
            }
            New::GaveTurn if is_server_dead => all.push(self.with(|next| {
                next.new = New::GaveUp;
                next.to_previous.push_back(Message::GiveUp);
            })),
            New::GaveUp if message == Some(Message::TakenBack) => all.push(to(New::Ended)),
            New::GaveUp if is_closed => all.push(to(New::Holds)),
            New::Holds if is_server_dead => {
                all.push(self.with(|next| next.new_server = Server::Ready));
            }
            _ => {}
        }
    }

    fn new_server_steps(&self, all: &mut Vec<Self>) {
        let to = |server: Server| self.with(|next| next.new_server = server);
        match self.new_server {
            // It waits for its turn, and ends with its holder.
            Server::Opening | Server::Prepared if self.new == New::Ended => {
                all.push(to(Server::Dead));
            }
            Server::Opening => all.push(to(Server::Prepared)),
            Server::Prepared if self.new == New::Holds => all.push(to(Server::HasTurn)),
            Server::HasTurn => all.push(to(Server::Reading)),
            Server::Reading => all.push(self.with(|next| {
                next.new_server = Server::Told;
                next.to_previous.push_back(Message::Done);
            })),
            Server::Told => all.push(to(Server::Ready)),
            Server::Prepared | Server::Ready | Server::Dead => {}
        }
    }

    fn check(&self) {
        let both = reads(self.previous_server) && reads(self.new_server);
        assert!(!both, "two servers read: {self:?}");
        let holds = (self.previous == PreviousHolder::Holds, self.new == New::Holds);
        assert_ne!(holds, (true, true), "two holders: {self:?}");
        assert!(!(holds.0 && reads(self.new_server)), "the wrong holder: {self:?}");
    }

    /// Whether somebody serves and somebody holds the mount, once no process has anything to do.
    fn is_alive(&self) -> bool {
        let is_served = reads(self.previous_server) || reads(self.new_server);
        let is_held = (self.previous == PreviousHolder::Holds) != (self.new == New::Holds);
        // A server outlives its holder, as without a handover.
        is_served && (is_held || self.killed_holders > 0)
    }

    fn check_final(&self) {
        if self.previous == PreviousHolder::Holds {
            assert!(reads(self.previous_server), "not served: {self:?}");
        }
        if self.new == New::Holds {
            assert!(reads(self.new_server), "not served: {self:?}");
        }
    }
}

/// What a run of the model tries.
#[derive(Clone, Copy, Debug)]
struct Setting {
    kills: u8,
    /// Whether the new program knows the server of the former holder. It does not if that is an older version.
    is_server_watched: bool,
    /// Whether a newer program asks for the mount.
    has_rival: bool,
}

/// Tries everything; returns the number of states, and the final ones in which the mount is dead.
fn explore(setting: Setting) -> (usize, Vec<State>) {
    let first = State::new(setting.kills);
    let mut known = HashSet::from([first.clone()]);
    let mut queue = VecDeque::from([first]);
    let mut dead = Vec::new();
    while let Some(state) = queue.pop_front() {
        state.check();
        let steps = state.next(setting);
        // Without a further death.
        if steps.iter().all(|next| next.kills < state.kills) {
            state.check_final();
            if !state.is_alive() {
                dead.push(state.clone());
            }
        }
        for next in steps {
            if known.insert(next.clone()) {
                queue.push_back(next);
            }
        }
    }
    (known.len(), dead)
}

// A-REPLACE-MODEL
#[test]
fn no_death_in_a_handover_leaves_two_servers_or_none() {
    let started_at = std::time::Instant::now();
    for has_rival in [false, true] {
        let setting = |kills| Setting { kills, is_server_watched: true, has_rival };
        let (states, dead) = explore(setting(3));
        eprintln!("{states} states of a handover, {:?}", started_at.elapsed());
        assert!(states > 400, "{states}");
        // One death never costs the mount. Two do if they are those of a holder and of what it needs.
        for state in &dead {
            assert!(state.killed_holders > 0, "{state:?}");
            assert!(state.killed_holders + state.killed_servers > 1, "{state:?}");
        }
        let (_, dead) = explore(setting(1));
        assert!(dead.is_empty(), "{dead:?}");
    }
}

#[test]
fn a_former_holder_of_an_older_version_can_take_the_mount_with_it() {
    let setting = Setting { kills: 1, is_server_watched: false, has_rival: false };
    let (_, dead) = explore(setting);
    assert!(!dead.is_empty() && dead.iter().all(|state| state.killed_holders == 1), "{dead:?}");
}
