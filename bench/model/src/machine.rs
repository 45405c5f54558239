//! A simulated machine: CPUs with clocks of their own, threads on them, and a directory of cache
//! lines. Conservative: always the CPU with the smallest clock goes on, until its next access, so
//! every access sees what happened before it in simulated time, and two runs are equal.
//!
//! [`run`] starts a machine on this thread of the system; the `sync` module reports every access to it
//! through the functions below. Outside of a run they do nothing.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::mem::ManuallyDrop;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};

pub use crate::cache_lines::{
    Access, CPUS_MAX, CoherenceEvent, Costs, Counts, Directory, Distance, LINE_BYTES, Picoseconds,
    Shape, picoseconds,
};
use crate::cache_lines::{ArrayPlaces, numbered};
use crate::fiber::{Fiber, give_way};

thread_local! {
    /// The machine that runs on this thread of the system.
    static CURRENT: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// What was counted at a moment of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moment {
    /// The clock of the CPU that asked.
    pub at: Picoseconds,
    /// Accesses of all CPUs until then.
    pub counts: Counts,
    /// Wake-ups by system call.
    pub wakes: u64,
}

impl Moment {
    /// What happened after `earlier`: nanoseconds, accesses and wake-ups.
    pub fn since(&self, earlier: &Self) -> (f64, Counts, u64) {
        let nanoseconds = (self.at - earlier.at) as f64 / 1e3;
        let (now, then) = (self.counts, earlier.counts);
        let counts =
            Counts { moves: now.moves - then.moves, upgrades: now.upgrades - then.upgrades };
        (nanoseconds, counts, self.wakes - earlier.wakes)
    }
}

#[derive(Default)]
struct Machine {
    shape: Shape,
    costs: Costs,
    directory: Directory,
    places: ArrayPlaces,
    cpus: Vec<Cpu>,
    threads: Vec<Thread>,
    /// CPUs that have something to run, by their clocks; the one that runs is not among them.
    ready: BinaryHeap<Reverse<(Picoseconds, usize)>>,
    /// The CPU that runs.
    running: usize,
    /// Who sleeps on a word, first come first; who waits for the end of a thread, by its number, which is no address.
    sleepers: BTreeMap<usize, VecDeque<ThreadNumber>>,
    wakes: u64,
    /// Work that goes through one place of the machine, such as a memory channel: busy until then.
    servers: BTreeMap<usize, Picoseconds>,
}

/// Runs `main` as the first thread of a machine and gives what it returned. The run ends with it:
/// threads that it did not wait for are dropped where they stand.
///
/// # Errors
/// When the shape is impossible, a stack cannot be had, or all threads sleep for ever.
///
/// # Panics
/// With the panic of `main`, or of a thread that lets one through.
pub fn run<R: 'static>(
    shape: Shape,
    costs: Costs,
    main: impl FnOnce() -> R + 'static,
) -> Result<R> {
    ensure!((1..=CPUS_MAX).contains(&shape.cpus), "{} CPUs, 1 to {CPUS_MAX} can be", shape.cpus);
    let answer = Rc::new(RefCell::new(None));
    let slot = Rc::clone(&answer);
    let mut machine = Machine {
        shape,
        costs,
        directory: Directory::new(shape, costs),
        cpus: (0..shape.cpus).map(|_| Cpu::default()).collect(),
        ..Machine::default()
    };
    machine.start(Box::new(move || *slot.borrow_mut() = Some(main())), Wakes::Preempting)?;
    ensure!(CURRENT.with_borrow(Option::is_none), "a machine runs on this thread already");
    CURRENT.set(Some(machine));
    let over = Over;
    let is_done = run_all();
    drop(over);
    ensure!(is_done, "every simulated thread sleeps, and nobody is left to wake one");
    let value = answer.borrow_mut().take();
    value.context("the first simulated thread has returned nothing")
}

/// Ends the run, after a panic, too. It leaves threads that have not ended as they are: nobody would end what they do on
/// their way out. Their stacks are never given back.
struct Over;

impl Drop for Over {
    fn drop(&mut self) {
        for thread in CURRENT.take().into_iter().flat_map(|machine| machine.threads) {
            let _left = ManuallyDrop::new(thread.fiber);
        }
    }
}

/// Resumes the thread whose CPU has the smallest clock, again and again. True when the first thread
/// has ended, false when nobody can go on before it has.
fn run_all() -> bool {
    loop {
        let Some((number, mut fiber)) = with(Machine::next).flatten() else { return false };
        let is_done = fiber.resume();
        with(|machine| match is_done {
            true => machine.end(number),
            false => machine.threads[number].fiber = Some(fiber),
        });
        if is_done && number == 0 {
            return true;
        }
    }
}

/// Something about the running machine; none outside of a run.
fn with<R>(query: impl FnOnce(&mut Machine) -> R) -> Option<R> {
    CURRENT.with_borrow_mut(|current| current.as_mut().map(query))
}

/// Gives way until no other CPU is behind this one.
fn take_turn() {
    while with(Machine::must_give_way) == Some(true) {
        give_way();
    }
}

/// An access to the bytes of a value.
pub(crate) fn access<T>(value: *const T, access: Access) {
    take_turn();
    with(|machine| {
        machine
            .places
            .lines(value.addr(), size_of::<T>())
            .for_each(|line| machine.touch(line, access));
    });
}

/// An access to a line that has no address: a line of data which only has a number.
pub(crate) fn access_line(number: u64, access: Access) {
    take_turn();
    with(|machine| machine.touch(numbered(number), access));
}

/// Time that this thread computes.
pub(crate) fn work(duration: Picoseconds) {
    with(|machine| machine.cpu().clock += duration);
}

/// What a step of this thread costs, in nanoseconds.
fn spend(cost: fn(&Costs) -> f64) {
    with(|machine| machine.cpu().clock += picoseconds(cost(&machine.costs)));
}

pub(crate) fn fence() {
    spend(|costs| costs.locked);
}

/// The hint in a loop that waits. Nothing ends such a loop but another CPU, so it takes turns, too.
pub(crate) fn pause() {
    spend(|costs| costs.pause);
    take_turn();
}

/// The clock of this CPU, which takes time to read; zero outside of a run.
pub(crate) fn now() -> Picoseconds {
    spend(|costs| costs.clock);
    with(|machine| machine.cpu().clock).unwrap_or(0)
}

/// What was counted until now; free of charge. Nothing outside of a run.
pub(crate) fn moment() -> Moment {
    take_turn();
    let look = |machine: &mut Machine| {
        let at = machine.cpu().clock;
        Moment { at, counts: machine.directory.counts, wakes: machine.wakes }
    };
    with(look).unwrap_or_default()
}

/// Goes through the one place of that number for so long, after all that came before, while this CPU works, which may take
/// longer.
pub(crate) fn serve(server: usize, duration: Picoseconds, work: Picoseconds) {
    take_turn();
    with(|machine| {
        let now = machine.cpu().clock;
        let free_at = machine.servers.entry(server).or_default();
        *free_at = now.max(*free_at) + duration;
        let end = *free_at;
        machine.cpu().clock = end.max(now + work);
    });
}

/// The CPU that runs; 0 outside of a run.
pub(crate) fn current_cpu() -> usize {
    with(|machine| machine.running).unwrap_or(0)
}

/// The thread that runs; 0 outside of a run.
pub(crate) fn current_thread() -> ThreadNumber {
    with(|machine| machine.cpu().current.unwrap_or(0)).unwrap_or(0)
}

/// Gives an array a place in simulated memory, so that which of its values share a line does not
/// depend on where the allocator put it. It begins 16 bytes into a line, as behind the header that
/// the C library's allocator writes.
pub(crate) fn place<T>(values: &[T]) {
    with(|machine| machine.places.add(values.as_ptr().addr(), size_of_val(values)));
}

/// Starts a thread on the next CPU.
///
/// # Errors
/// Outside of a run, and when there is no memory for a stack.
pub(crate) fn spawn(body: Box<dyn FnOnce()>, wakes: Wakes) -> Result<ThreadNumber> {
    take_turn();
    spend(|costs| costs.start);
    with(|machine| machine.start(body, wakes)).context("no machine runs")?
}

/// Waits for the end of a thread.
pub(crate) fn join(thread: ThreadNumber) {
    take_turn();
    if with(|machine| machine.await_end(thread)) == Some(true) {
        give_way();
    }
}

/// Sleeps on a word if `is_expected` still holds when the kernel looks.
pub(crate) fn sleep_on<T>(word: *const T, is_expected: impl FnOnce() -> bool) {
    spend(|costs| costs.sleep);
    if is_expected() && with(|machine| machine.fall_asleep(word.addr())).is_some() {
        give_way();
    }
}

/// Wakes up to `count` threads that sleep on a word.
pub(crate) fn wake<T>(word: *const T, count: usize) {
    spend(|costs| costs.wake);
    take_turn();
    with(|machine| machine.wake(word.addr(), count));
    take_turn();
}

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

#[derive(Debug, Default)]
struct Cpu {
    clock: Picoseconds,
    /// Who runs here; none: idle.
    current: Option<ThreadNumber>,
    /// Who could.
    queue: VecDeque<ThreadNumber>,
    /// Since when the one that runs does.
    since: Picoseconds,
    slice_end: Picoseconds,
}

struct Thread {
    cpu: usize,
    wakes: Wakes,
    /// Time that it had its CPU, without its present turn.
    ran: Picoseconds,
    /// None while it runs, and when it has ended.
    fiber: Option<Fiber>,
}

impl Machine {
    fn cpu(&mut self) -> &mut Cpu {
        &mut self.cpus[self.running]
    }

    fn touch(&mut self, line: u64, access: Access) {
        let clock = &mut self.cpus[self.running].clock;
        (_, *clock) = self.directory.access(self.running, line, access, *clock);
    }

    /// A new thread, which begins when a sleeper would that is woken now.
    fn start(&mut self, body: Box<dyn FnOnce()>, wakes: Wakes) -> Result<ThreadNumber> {
        let number = self.threads.len();
        let fiber = Some(Fiber::new(body).context("no stack for a simulated thread")?);
        let cpu = number % self.shape.cpus;
        self.threads.push(Thread { cpu, wakes, ran: 0, fiber });
        self.make_ready(number);
        Ok(number)
    }

    /// The thread whose CPU has the smallest clock, to be resumed.
    fn next(&mut self) -> Option<(ThreadNumber, Fiber)> {
        let Reverse((_, cpu)) = self.ready.pop()?;
        self.running = cpu;
        let number = self.cpus[cpu].current?;
        Some((number, self.threads[number].fiber.take()?))
    }

    /// Whether another CPU is behind this one, or another thread has a right to it. If so, the thread
    /// that runs will be resumed when that has changed.
    fn must_give_way(&mut self) -> bool {
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
    fn fall_asleep(&mut self, word: usize) {
        let current = self.leave(self.running);
        self.sleepers.entry(word).or_default().extend(current);
        self.change(self.running);
    }

    fn wake(&mut self, word: usize, count: usize) {
        for _ in 0..count {
            let Some(number) = self.sleepers.get_mut(&word).and_then(VecDeque::pop_front) else {
                return;
            };
            self.wakes += 1;
            self.make_ready(number);
        }
    }

    /// The thread that runs waits for the end of another; false if that has ended already.
    fn await_end(&mut self, thread: ThreadNumber) -> bool {
        // It is another one, which does not run now.
        let waits = self.threads[thread].fiber.is_some();
        if waits {
            self.cpu().clock += picoseconds(self.costs.sleep);
            self.fall_asleep(thread);
        }
        waits
    }

    /// The thread that ran has ended.
    fn end(&mut self, number: ThreadNumber) {
        self.wake(number, usize::MAX);
        self.cpu().current = None;
        self.change(self.running);
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
        woken.ran = woken.ran.max(ran.saturating_sub(picoseconds(self.costs.slice)));
        let lead = woken.ran.saturating_sub(ran);
        if lead < picoseconds(self.costs.slice) { 0 } else { lead }
    }

    /// Lets a thread run on a CPU from now on.
    fn switch_to(&mut self, cpu: usize, thread: ThreadNumber, now: Picoseconds) {
        let slice_end = now + picoseconds(self.costs.slice);
        let here = &mut self.cpus[cpu];
        (here.current, here.clock, here.since, here.slice_end) =
            (Some(thread), now, now, slice_end);
        self.ready.push(Reverse((now, cpu)));
    }

    /// Lets the CPU's next thread run, if it has one; who ran has been put elsewhere.
    fn change(&mut self, cpu: usize) {
        if let Some(next) = self.cpus[cpu].queue.pop_front() {
            self.switch_to(cpu, next, self.cpus[cpu].clock + picoseconds(self.costs.switch));
        }
    }

    /// A thread that slept, or is new, can run.
    fn make_ready(&mut self, number: ThreadNumber) {
        let Thread { cpu, wakes, .. } = self.threads[number];
        let Some(current) = self.cpus[cpu].current else {
            let now = self.cpu().clock + picoseconds(self.costs.latency);
            return self.switch_to(cpu, number, now.max(self.cpus[cpu].clock));
        };
        let stay = self.stay(cpu, current, number);
        let there = &mut self.cpus[cpu];
        if cpu == self.running && wakes == Wakes::Preempting {
            // The one that runs will find its slice used up and give way to the first of the queue.
            there.clock += picoseconds(self.costs.switch);
            there.slice_end = there.clock + stay;
            there.queue.push_front(number);
        } else {
            there.queue.push_back(number);
        }
    }
}
