//! The threads of a simulated machine and the CPUs that they share: who runs, who waits for a CPU, who
//! sleeps. Threads have a CPU each, in the order of their start, and share only where there are more
//! of them: then a CPU changes when its thread sleeps, ends, has used up its slice, or is preempted by
//! one that wakes up and has not run for much longer than it, as by Linux's fair class.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;

use anyhow::{Context, Result};

use super::Machine;
use super::costs::Picoseconds;
use super::fiber::Fiber;

/// The number of a thread, in the order of their start.
pub(crate) type ThreadNumber = usize;

/// What a thread does when it wakes up on a CPU that is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakes {
    /// It runs at once, unless it has had a slice more of the CPU than the one that runs.
    Preempting,
    /// It waits its turn, as with `SCHED_BATCH`.
    Waiting,
}

/// A CPU.
#[derive(Debug, Default)]
pub(super) struct Cpu {
    pub(super) clock: Picoseconds,
    /// Who runs here; none: idle.
    pub(super) current: Option<ThreadNumber>,
    /// Who could.
    queue: VecDeque<ThreadNumber>,
    /// Since when the one that runs does.
    since: Picoseconds,
    slice_end: Picoseconds,
}

/// A thread.
#[derive(Debug)]
pub(super) struct Thread {
    cpu: usize,
    wakes: Wakes,
    /// Time that it had its CPU, without its present turn.
    ran: Picoseconds,
    /// None while it runs, and when it has ended.
    fiber: Option<Fiber>,
    is_done: bool,
    /// Who waits for its end.
    joiners: Vec<ThreadNumber>,
}

impl Machine {
    /// A new thread, which begins when a sleeper would that is woken now.
    pub(super) fn start(&mut self, body: Box<dyn FnOnce()>, wakes: Wakes) -> Result<ThreadNumber> {
        let number = self.threads.len();
        let fiber = Fiber::new(body).context("no stack for a simulated thread")?;
        let cpu = number % self.shape.cpus;
        let fiber = Some(fiber);
        self.threads.push(Thread {
            cpu,
            wakes,
            ran: 0,
            fiber,
            is_done: false,
            joiners: Vec::new(),
        });
        self.make_ready(number);
        Ok(number)
    }

    /// The thread whose CPU has the smallest clock, to be resumed.
    pub(super) fn next(&mut self) -> Option<(ThreadNumber, Fiber)> {
        let Reverse((_, cpu)) = self.ready.pop()?;
        self.running = cpu;
        let number = self.cpus[cpu].current?;
        Some((number, self.threads[number].fiber.take()?))
    }

    pub(super) fn put_back(&mut self, number: ThreadNumber, fiber: Fiber) {
        self.threads[number].fiber = Some(fiber);
    }

    /// Whether another CPU is behind this one, or another thread has a right to it. If so, the thread
    /// that runs will be resumed when that has changed.
    pub(super) fn must_give_way(&mut self) -> bool {
        let cpu = self.running;
        let here = &self.cpus[cpu];
        let is_over = !here.queue.is_empty() && here.clock >= here.slice_end;
        if is_over && let Some(current) = self.leave(cpu) {
            self.cpus[cpu].queue.push_back(current);
            self.change(cpu);
            return true;
        }
        let own = (self.cpus[cpu].clock, cpu);
        let is_behind = self.ready.peek().is_some_and(|Reverse(other)| *other < own);
        if is_behind {
            self.ready.push(Reverse(own));
        }
        is_behind
    }

    /// The thread that runs sleeps on a word until it is woken.
    pub(super) fn fall_asleep(&mut self, word: usize) {
        let cpu = self.running;
        if let Some(current) = self.leave(cpu) {
            self.sleepers.entry(word).or_default().push_back(current);
        }
        self.change(cpu);
    }

    pub(super) fn wake(&mut self, word: usize, count: usize) {
        for _ in 0..count {
            let Some(number) = self.sleepers.get_mut(&word).and_then(VecDeque::pop_front) else {
                return;
            };
            self.wakes += 1;
            self.make_ready(number);
        }
    }

    /// The thread that runs waits for the end of another; false if that has ended already.
    pub(super) fn await_end(&mut self, thread: ThreadNumber) -> bool {
        let cpu = self.running;
        if self.threads[thread].is_done {
            return false;
        }
        let sleep = self.prices.sleep;
        self.cpus[cpu].clock += sleep;
        if let Some(current) = self.leave(cpu) {
            self.threads[thread].joiners.push(current);
        }
        self.change(cpu);
        true
    }

    /// The thread that ran has ended.
    pub(super) fn end(&mut self, number: ThreadNumber) {
        let cpu = self.running;
        self.threads[number].is_done = true;
        for joiner in std::mem::take(&mut self.threads[number].joiners) {
            self.make_ready(joiner);
        }
        self.cpus[cpu].current = None;
        self.change(cpu);
    }

    /// Leaves threads that have not ended as they are: after a panic or a standstill nobody would end
    /// what they do on their way out. Their stacks are never given back.
    pub(super) fn abandon(self) {
        for thread in self.threads {
            let _left = ManuallyDrop::new(thread.fiber);
        }
    }

    /// Takes the CPU from the thread that runs.
    fn leave(&mut self, cpu: usize) -> Option<ThreadNumber> {
        let here = &mut self.cpus[cpu];
        let current = here.current.take()?;
        self.threads[current].ran += here.clock.saturating_sub(here.since);
        Some(current)
    }

    /// How long the thread that runs keeps its CPU when another one wakes up there: not at all while that has had no more
    /// than a slice beyond it, and then until both have had as much. Who slept for long has no more than a slice to make
    /// up for. (Seen on Linux 6.18: some fifty preemptions in a row, then none for 2.9 ms.)
    fn stay(&mut self, cpu: usize, current: ThreadNumber, woken: ThreadNumber) -> Picoseconds {
        let here = &self.cpus[cpu];
        let ran = self.threads[current].ran + here.clock.saturating_sub(here.since);
        let woken = &mut self.threads[woken];
        woken.ran = woken.ran.max(ran.saturating_sub(self.prices.slice));
        let lead = woken.ran.saturating_sub(ran);
        if lead < self.prices.slice { 0 } else { lead }
    }

    /// Lets the CPU's next thread run, if it has one; who ran has been put elsewhere.
    fn change(&mut self, cpu: usize) {
        let (switch, slice) = (self.prices.switch, self.prices.slice);
        let here = &mut self.cpus[cpu];
        here.current = here.queue.pop_front();
        if here.current.is_some() {
            here.clock += switch;
            here.since = here.clock;
            here.slice_end = here.clock + slice;
            self.ready.push(Reverse((here.clock, cpu)));
        }
    }

    /// A thread that slept, or is new, can run.
    fn make_ready(&mut self, number: ThreadNumber) {
        let now = self.cpus[self.running].clock;
        let Thread { cpu, wakes, .. } = self.threads[number];
        let (latency, switch, slice) = (self.prices.latency, self.prices.switch, self.prices.slice);
        let is_here = cpu == self.running;
        let current = self.cpus[cpu].current;
        let stay = current.map_or(0, |current| self.stay(cpu, current, number));
        let there = &mut self.cpus[cpu];
        match current {
            None => {
                there.clock = there.clock.max(now + latency);
                there.since = there.clock;
                there.slice_end = there.clock + slice;
                there.current = Some(number);
                self.ready.push(Reverse((there.clock, cpu)));
            }
            // The one that runs will find its slice used up and give way to the first of the queue.
            Some(_) if is_here && wakes == Wakes::Preempting => {
                there.clock += switch;
                there.slice_end = there.clock + stay;
                there.queue.push_front(number);
            }
            Some(_) => there.queue.push_back(number),
        }
    }
}
