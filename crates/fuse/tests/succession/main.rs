//! A model of protocol K (docs/survival.md): the kernel's lists of requests, the journal, the holder, and servers that die
//! after any step. All interleavings of all steps are tried, and in each state the invariants are checked.

#[cfg(test)]
mod handover;

use std::collections::{HashSet, VecDeque};

/// Callers, each with one request.
const REQUESTS: usize = 3;
/// Listeners of a server, and so slots of the journal.
const LISTENERS: usize = 2;
/// Crashes in a row, one of them alone, after which a request is banned.
const CRASHES_MAX: u8 = 2;

/// Where the kernel has a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum InKernel {
    /// Its caller has not called yet.
    NotCalled,
    /// It waits to be read; whether it was read before.
    Queued { is_resent: bool },
    /// It was read.
    Read,
    /// Its caller has the result.
    Answered(Answer),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Data,
    Eio,
}

/// The number of a request. The kernel changes it when it sends the request again for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Number {
    request: usize,
    is_resent: bool,
}

/// A slot of the journal: the number in the buffer, and the one beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    buffer: Option<Number>,
    handled: Option<Number>,
}

impl Slot {
    /// The request that is in flight.
    fn in_flight(&self) -> Option<usize> {
        self.buffer.filter(|_| self.buffer != self.handled).map(|number| number.request)
    }

    fn finish(&mut self) {
        self.handled = self.buffer;
    }
}

/// What a listener does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Listener {
    /// It is about to empty its buffer.
    Initial,
    /// It is about to remove the number beside the buffer.
    Emptied,
    /// It waits in `read`.
    Reading,
    /// It handles the request.
    Handling(usize),
    /// It has replied, and not yet written so into the journal.
    Replied(usize),
}

/// The steps of the serving process; the numbers are those of docs/survival.md.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Server {
    /// KS1: it opens the image.
    Opening,
    /// KS2 is done: it knows what was in flight.
    Examined { in_flight: Vec<usize>, is_trial: bool },
    /// KS3 and, without RESEND, KS4, up to this number of requests.
    Forgetting { in_flight: Vec<usize>, is_trial: bool, done: usize },
    /// Between the answer of a request and its removal from the journal.
    Failing { in_flight: Vec<usize>, done: usize },
    /// KS5: it serves; in the trial the first listener only.
    Serving { listeners: [Listener; LISTENERS], is_trial: bool },
    /// It has died, by a crash or by SIGKILL.
    Dead { has_crashed: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    kernel: [InKernel; REQUESTS],
    journal: [Slot; LISTENERS],
    /// Crashes in a row that each request was in flight in; 0: no suspect.
    suspects: [u8; REQUESTS],
    banned: [bool; REQUESTS],
    server: Server,
    is_first: bool,
    /// Whether the last server, or the present one, has begun to read: the journal has its number.
    has_read: bool,
    /// How many more times somebody kills.
    kills: u8,
    /// Deaths that the killing request has caused.
    crashes: u8,
    /// Whether each request was in flight at a death: only then may it get EIO on an old kernel.
    was_in_flight: [bool; REQUESTS],
}

/// What a run of the model tries.
#[derive(Clone, Copy, Debug)]
struct Setting {
    has_resend: bool,
    kills: u8,
    /// The request that crashes each server that handles it.
    killer: Option<usize>,
}

impl State {
    fn new(setting: Setting) -> Self {
        Self {
            kernel: [InKernel::NotCalled; REQUESTS],
            journal: [Slot::default(); LISTENERS],
            suspects: [0; REQUESTS],
            banned: [false; REQUESTS],
            server: Server::Opening,
            is_first: true,
            has_read: false,
            kills: setting.kills,
            crashes: 0,
            was_in_flight: [false; REQUESTS],
        }
    }

    fn is_final(&self) -> bool {
        let is_answered = |request: &InKernel| matches!(request, InKernel::Answered(_));
        self.kernel.iter().all(is_answered)
            && matches!(&self.server, Server::Serving { listeners, is_trial: false }
                if listeners.iter().all(|listener| *listener == Listener::Reading))
    }

    /// The requests of the journal that are in flight.
    fn in_flight(&self) -> Vec<usize> {
        self.journal.iter().filter_map(Slot::in_flight).collect()
    }

    /// A reply: the kernel drops it if it does not have the request among those that were read.
    fn reply(&mut self, request: usize, answer: Answer) {
        if self.kernel[request] == InKernel::Read {
            self.kernel[request] = InKernel::Answered(answer);
        }
    }

    fn die(&self, has_crashed: bool) -> Self {
        let mut next = self.clone();
        for request in self.in_flight() {
            next.was_in_flight[request] = true;
        }
        next.server = Server::Dead { has_crashed };
        next
    }

    /// All states that one step leads to.
    fn next(&self, setting: Setting) -> Vec<Self> {
        let mut all = Vec::new();
        for request in 0..REQUESTS {
            if self.kernel[request] == InKernel::NotCalled {
                let mut next = self.clone();
                next.kernel[request] = InKernel::Queued { is_resent: false };
                all.push(next);
            }
        }
        if self.kills > 0 && !matches!(self.server, Server::Dead { .. }) {
            // A server that does not serve yet may also end by itself, since it cannot open the image.
            let is_starting = !matches!(self.server, Server::Serving { .. });
            all.push(Self { kills: self.kills - 1, ..self.die(is_starting) });
        }
        match &self.server {
            // KD1 to KD3; the first server has no predecessor.
            Server::Dead { has_crashed } => {
                let suspects_crash = *has_crashed;
                let mut next = Self { server: Server::Opening, is_first: false, ..self.clone() };
                // The holder remembers how it ended until the successor examines.
                next.server = Server::Examined { in_flight: Vec::new(), is_trial: suspects_crash };
                all.push(next.examined(suspects_crash));
                // It may be killed before it has examined anything.
                if self.kills > 0 {
                    let mut next = self.die(true);
                    (next.is_first, next.has_read) = (false, false);
                    all.push(Self { kills: self.kills - 1, ..next });
                }
            }
            Server::Opening => all.push(self.serving(false)),
            Server::Examined { in_flight, is_trial } => {
                let (in_flight, is_trial) = (in_flight.clone(), *is_trial);
                let server = Server::Forgetting { in_flight, is_trial, done: 0 };
                all.push(Self { server, ..self.clone() });
            }
            Server::Forgetting { in_flight, is_trial, done } => {
                all.push(self.forget_next(setting, in_flight, *is_trial, *done));
            }
            Server::Failing { in_flight, done } => {
                let mut next = self.clone();
                next.remove_from_journal(in_flight[*done]);
                let (in_flight, done) = (in_flight.clone(), done + 1);
                next.server = Server::Forgetting { in_flight, is_trial: false, done };
                all.push(next);
            }
            Server::Serving { listeners, is_trial } => {
                for index in 0..LISTENERS {
                    self.listen(setting, *listeners, *is_trial, index, &mut all);
                }
            }
        }
        all
    }

    /// KS2.
    fn examined(mut self, has_crashed: bool) -> Self {
        let in_flight = self.in_flight();
        let has_crashed = has_crashed && self.has_read;
        let is_evidence = std::mem::take(&mut self.has_read);
        for request in 0..REQUESTS {
            if !in_flight.contains(&request) {
                self.suspects[request] = 0;
                continue;
            }
            self.suspects[request] =
                (self.suspects[request] + u8::from(has_crashed)).min(CRASHES_MAX);
            let is_worst = self.suspects[request] >= CRASHES_MAX && in_flight.len() == 1;
            if is_worst && is_evidence {
                self.banned[request] = true;
                self.suspects[request] = 0;
            }
        }
        let is_trial = self.suspects.iter().any(|crashes| *crashes > 0);
        self.server = Server::Examined { in_flight, is_trial };
        self
    }

    fn remove_from_journal(&mut self, request: usize) {
        let is_its = |slot: &&mut Slot| slot.in_flight() == Some(request);
        self.journal.iter_mut().filter(is_its).for_each(Slot::finish);
    }

    fn forget_next(
        &self,
        setting: Setting,
        in_flight: &[usize],
        is_trial: bool,
        done: usize,
    ) -> Self {
        let mut next = self.clone();
        match in_flight.get(done) {
            None if setting.has_resend => {
                for request in &mut next.kernel {
                    if *request == InKernel::Read {
                        *request = InKernel::Queued { is_resent: true };
                    }
                }
                next.serving(is_trial)
            }
            None => next.serving(false),
            Some(request) if setting.has_resend => {
                next.remove_from_journal(*request);
                let in_flight = in_flight.to_vec();
                next.server = Server::Forgetting { in_flight, is_trial, done: done + 1 };
                next
            }
            Some(request) => {
                next.reply(*request, Answer::Eio);
                next.server = Server::Failing { in_flight: in_flight.to_vec(), done };
                next
            }
        }
    }

    fn serving(&self, is_trial: bool) -> Self {
        let server = Server::Serving { listeners: [Listener::Initial; LISTENERS], is_trial };
        Self { server, has_read: true, ..self.clone() }
    }

    /// The steps of one listener.
    fn listen(
        &self,
        setting: Setting,
        listeners: [Listener; LISTENERS],
        is_trial: bool,
        index: usize,
        all: &mut Vec<Self>,
    ) {
        let with = |listener: Listener, is_trial: bool| {
            let mut next = self.clone();
            let mut listeners = listeners;
            listeners[index] = listener;
            next.server = Server::Serving { listeners, is_trial };
            next
        };
        match listeners[index] {
            Listener::Initial | Listener::Reading if is_trial && index > 0 => {}
            Listener::Initial => {
                let mut next = with(Listener::Emptied, is_trial);
                next.journal[index].buffer = None;
                all.push(next);
            }
            Listener::Emptied => {
                let mut next = with(Listener::Reading, is_trial);
                next.journal[index].handled = None;
                all.push(next);
            }
            Listener::Reading => {
                let is_resent =
                    |request: &InKernel| *request == InKernel::Queued { is_resent: true };
                // Resent requests are in front of the queue.
                let has_resent = self.kernel.iter().any(is_resent);
                if is_trial && !has_resent {
                    all.push(with(Listener::Reading, false));
                    return;
                }
                for request in 0..REQUESTS {
                    if self.kernel[request] != (InKernel::Queued { is_resent: has_resent }) {
                        continue;
                    }
                    // `read` moves it and copies it to the buffer; SIGKILL takes effect after that.
                    let mut next = with(Listener::Handling(request), is_trial);
                    next.kernel[request] = InKernel::Read;
                    next.journal[index].buffer = Some(Number { request, is_resent: has_resent });
                    all.push(next);
                }
            }
            Listener::Handling(request) if self.banned[request] => {
                let mut next = with(Listener::Replied(request), is_trial);
                next.reply(request, Answer::Eio);
                all.push(next);
            }
            Listener::Handling(request) if setting.killer == Some(request) => {
                all.push(Self { crashes: self.crashes + 1, ..self.die(true) });
            }
            Listener::Handling(request) => {
                let mut next = with(Listener::Replied(request), is_trial);
                next.reply(request, Answer::Data);
                all.push(next);
            }
            Listener::Replied(_) => {
                let mut next = with(Listener::Reading, is_trial);
                next.journal[index].finish();
                all.push(next);
            }
        }
    }

    fn check(&self, setting: Setting) {
        for request in 0..REQUESTS {
            let is_failed = self.kernel[request] == InKernel::Answered(Answer::Eio);
            let may_fail = match setting.killer {
                Some(killer) if killer == request => true,
                _ => !setting.has_resend && self.was_in_flight[request],
            };
            assert!(!is_failed || may_fail, "request {request} fails: {self:?}");
            let is_banned = self.banned[request];
            assert!(!is_banned || setting.killer == Some(request), "{request} is banned: {self:?}");
            // What was read is in the journal, unless a successor has just forgotten it, or will resend it.
            let is_in_journal = self.in_flight().contains(&request);
            if self.kernel[request] == InKernel::Read && !is_in_journal {
                assert!(setting.has_resend, "request {request} hangs: {self:?}");
            }
        }
        // One crash with others, one in each trial that somebody's kill cuts short, and the last one alone.
        let crashes_max = 3 + setting.kills * 2;
        assert!(self.crashes <= crashes_max, "{} crashes: {self:?}", self.crashes);
    }
}

/// Tries everything; returns the number of states.
fn explore(setting: Setting) -> usize {
    let first = State::new(setting);
    let mut known = HashSet::from([first.clone()]);
    let mut queue = VecDeque::from([first]);
    let mut finals = 0;
    while let Some(state) = queue.pop_front() {
        state.check(setting);
        let steps = state.next(setting);
        // Whatever happened, there is a next step until everybody has an answer. Deaths are finite, so all get one.
        assert!(!steps.is_empty() || state.is_final(), "stuck: {state:?}");
        finals += usize::from(state.is_final());
        for next in steps {
            if known.insert(next.clone()) {
                queue.push_back(next);
            }
        }
    }
    assert!(finals > 0, "{setting:?}");
    known.len()
}

// A-KEEP-MODEL
#[test]
fn no_interleaving_of_steps_and_deaths_loses_a_request() {
    let started_at = std::time::Instant::now();
    let mut states = 0;
    for has_resend in [true, false] {
        for (kills, killer) in [(3, None), (0, Some(0)), (2, Some(0))] {
            states += explore(Setting { has_resend, kills, killer });
        }
    }
    eprintln!("{states} states of a succession, {:?}", started_at.elapsed());
    assert!(states > 10_000, "{states}");
}
