//! A model of protocol R (docs/survival.md): the former holder and its server, the new holder and its server, and the
//! messages between them. All interleavings of their steps are tried, with deaths of any of them after any step.

use std::collections::{HashSet, VecDeque};

/// A process that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Server {
    /// It opens the image.
    Starting,
    /// R3: it waits for its turn.
    Prepared,
    /// R5: it may go on.
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
enum Former {
    /// It holds the mount.
    Holds,
    /// R5: its server has ended, and it has sent *handed*.
    Handed,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum New {
    Preparing,
    /// R4.
    SentGo,
    /// R5: its server has the turn.
    GaveTurn,
    /// Its server has ended in between, and it waits for an answer.
    GaveUp,
    Holds,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Message {
    Go,
    Handed,
    Done,
    GiveUp,
    TakenBack,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    former: Former,
    former_server: Server,
    new: New,
    new_server: Server,
    to_former: VecDeque<Message>,
    to_new: VecDeque<Message>,
    kills: u8,
    /// Whether somebody has killed a holder.
    is_holder_killed: bool,
}

fn reads(server: Server) -> bool {
    matches!(server, Server::Reading | Server::Told | Server::Ready)
}

impl State {
    fn new(kills: u8) -> Self {
        Self {
            former: Former::Holds,
            former_server: Server::Ready,
            new: New::Preparing,
            new_server: Server::Starting,
            to_former: VecDeque::new(),
            to_new: VecDeque::new(),
            kills,
            is_holder_killed: false,
        }
    }

    fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    fn next(&self) -> Vec<Self> {
        let mut all = Vec::new();
        if self.kills > 0 {
            self.deaths(&mut all);
        }
        self.former_steps(&mut all);
        self.new_steps(&mut all);
        self.new_server_steps(&mut all);
        all
    }

    fn deaths(&self, all: &mut Vec<Self>) {
        let killed = |change: fn(&mut Self)| {
            let mut next = self.with(change);
            next.kills -= 1;
            next
        };
        if self.former_server != Server::Dead {
            all.push(killed(|next| next.former_server = Server::Dead));
        }
        if self.new_server != Server::Dead {
            all.push(killed(|next| next.new_server = Server::Dead));
        }
        if self.former != Former::Ended {
            all.push(killed(|next| {
                (next.former, next.is_holder_killed) = (Former::Ended, true);
            }));
        }
        if self.new != New::Ended {
            all.push(killed(|next| (next.new, next.is_holder_killed) = (New::Ended, true)));
        }
    }

    fn former_steps(&self, all: &mut Vec<Self>) {
        let message = self.to_former.front().copied();
        let take = |change: fn(&mut Self)| {
            self.with(|next| {
                next.to_former.pop_front();
                change(next);
            })
        };
        let is_other_end_closed = self.new == New::Ended && self.new_server == Server::Dead;
        match (self.former, message) {
            // Its server has ended by itself: D3. `Go` is answered for the present server only, which is the same here.
            (Former::Holds, _) if self.former_server == Server::Dead => {
                all.push(self.with(|next| next.former_server = Server::Ready));
            }
            (Former::Holds, Some(Message::Go)) => all.push(take(|next| {
                next.former_server = Server::Dead;
                next.former = Former::Handed;
                next.to_new.push_back(Message::Handed);
            })),
            (Former::Handed, Some(Message::Done)) => {
                all.push(take(|next| next.former = Former::Ended));
            }
            (Former::Handed, Some(Message::GiveUp)) => all.push(take(|next| {
                next.former = Former::Holds;
                next.to_new.push_back(Message::TakenBack);
            })),
            (Former::Handed, None) if is_other_end_closed => {
                all.push(self.with(|next| next.former = Former::Holds));
            }
            _ => {}
        }
    }

    fn new_steps(&self, all: &mut Vec<Self>) {
        let message = self.to_new.front().copied();
        let is_closed = message.is_none() && self.former == Former::Ended;
        let is_server_dead = self.new_server == Server::Dead;
        let to = |new: New| self.with(|next| next.new = new);
        match self.new {
            New::Preparing | New::SentGo if is_server_dead || is_closed => {
                // It kills its server, which waits.
                all.push(
                    self.with(|next| (next.new, next.new_server) = (New::Ended, Server::Dead)),
                );
            }
            New::Preparing if self.new_server == Server::Prepared => {
                all.push(self.with(|next| {
                    next.new = New::SentGo;
                    next.to_former.push_back(Message::Go);
                }));
            }
            New::SentGo if message == Some(Message::Handed) => all.push(self.with(|next| {
                next.to_new.pop_front();
                next.new = New::GaveTurn;
                next.new_server = Server::HasTurn;
            })),
            New::GaveTurn if is_closed || self.new_server == Server::Ready => {
                all.push(to(New::Holds));
            }
            New::GaveTurn if is_server_dead => all.push(self.with(|next| {
                next.new = New::GaveUp;
                next.to_former.push_back(Message::GiveUp);
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
            Server::Starting | Server::Prepared if self.new == New::Ended => {
                all.push(to(Server::Dead));
            }
            Server::Starting => all.push(to(Server::Prepared)),
            Server::HasTurn => all.push(to(Server::Reading)),
            Server::Reading => all.push(self.with(|next| {
                next.new_server = Server::Told;
                next.to_former.push_back(Message::Done);
            })),
            Server::Told => all.push(to(Server::Ready)),
            Server::Prepared | Server::Ready | Server::Dead => {}
        }
    }

    fn check(&self) {
        let both = reads(self.former_server) && reads(self.new_server);
        assert!(!both, "two servers read: {self:?}");
        let holds = (self.former == Former::Holds, self.new == New::Holds);
        assert_ne!(holds, (true, true), "two holders: {self:?}");
        assert!(!(holds.0 && reads(self.new_server)), "the wrong holder: {self:?}");
    }

    /// No process has anything to do.
    fn check_final(&self) {
        let is_served = reads(self.former_server) || reads(self.new_server);
        let is_held = (self.former == Former::Holds) != (self.new == New::Holds);
        // A holder that was killed may have taken its mount with it, as without a handover.
        assert!(self.is_holder_killed || (is_served && is_held), "not served: {self:?}");
        if self.former == Former::Holds {
            assert!(reads(self.former_server), "not served: {self:?}");
        }
        if self.new == New::Holds {
            assert!(reads(self.new_server), "not served: {self:?}");
        }
    }
}

// A-REPLACE-MODEL
#[test]
fn no_death_in_a_handover_leaves_two_servers_or_none() {
    let first = State::new(3);
    let mut known = HashSet::from([first.clone()]);
    let mut queue = VecDeque::from([first]);
    let mut finals = 0;
    while let Some(state) = queue.pop_front() {
        state.check();
        let steps = state.next();
        // Without a further death.
        if steps.iter().all(|next| next.kills < state.kills) {
            state.check_final();
            finals += 1;
        }
        for next in steps {
            if known.insert(next.clone()) {
                queue.push_back(next);
            }
        }
    }
    eprintln!("{} states, {finals} final", known.len());
    assert!(known.len() > 300 && finals > 10, "{} {finals}", known.len());
}
