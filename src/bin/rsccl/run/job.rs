//! The life of a job: it ends when all ranks have ended, when one fails, or when the user or the deadline ends it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rsccl::internals::sys::clock;
use rsccl::internals::sys::process::{Exit, Group, Signal, Signals, Want, wait_ready};
use rsccl::{Error, Result};

use super::ends::{Ends, cause};
use super::input::Input;
use super::output::{Inlet, Outlets, OutputEnd, Prefix, STDERR, STDOUT, Speaker};

/// What the user asked for beside the ranks.
#[derive(Debug)]
pub(crate) struct Wishes {
    pub(crate) timeout: Option<Duration>,
    /// The ranks' log files, in rank order; none if they have none.
    pub(crate) logs: Vec<File>,
    /// What stands before the lines of the ranks.
    pub(crate) prefix: Prefix,
}

/// The ranks, their output, and the phase of the job.
#[derive(Debug)]
pub(crate) struct Job {
    ranks: Vec<RankProcess>,
    /// The order in which ranks end.
    ends: Ends,
    signals: Signals,
    /// Standard output and standard error; one outlet if they are one file.
    outlets: Outlets,
    /// Standard input, while rank 0 may take more of it.
    input: Option<Input>,
    timeout_at: Option<Instant>,
    phase: Phase,
    /// The exit code, once the job has failed.
    code: Option<u8>,
    /// The ranks that failed, in the order in which they ended, until the cause is named.
    failures: Vec<(usize, Exit)>,
    /// The ranks that had ended well before the first that failed: those that failed may have waited for them.
    ended_before: Vec<usize>,
    /// The user's signal to end the job, once it was passed on.
    asked: Option<Signal>,
    /// When to say that the ranks have not ended since, and what a second signal does.
    hint_at: Option<Instant>,
    /// Why standard output cannot be written, once that was said.
    lost_output: Option<String>,
    /// The bytes that have come from the ranks' pipes after all ranks had ended.
    drained_bytes: usize,
}

#[derive(Debug)]
struct RankProcess {
    group: Group,
    exit: Option<Exit>,
    inlets: [Option<Inlet>; 2],
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Ranks are running.
    Running,
    /// A rank has failed. Until this time the others may end by themselves, so that each can write the error that it
    /// got and the likeliest cause is found among all failures.
    Settling(Instant),
    /// Ranks were asked to end; they are killed at this time.
    Ending(Instant),
    /// Ranks were killed.
    Killed,
    /// All ranks have ended; output pipes that are still open are closed at this time.
    Draining(Instant),
}

impl Phase {
    /// Whether ranks go on undisturbed.
    fn is_running(self) -> bool {
        matches!(self, Phase::Running | Phase::Settling(_))
    }
}

/// A descriptor that the job waits for.
#[derive(Debug, Clone, Copy)]
enum Part {
    Signals,
    Inlet {
        rank: usize,
        stream: usize,
    },
    Outlet(usize),
    /// The launcher's standard input has bytes.
    InputSource,
    /// Rank 0's standard input has room.
    InputSink,
}

impl Job {
    /// The job of `groups`, in rank order.
    pub(crate) fn new((mut groups, ends): (Vec<Group>, Ends), signals: Signals, wishes: Wishes) -> Result<Job> {
        let Wishes { timeout, logs, prefix } = wishes;
        let outlets = Outlets::of_this_process(prefix)
            .map_err(|error| Error::system("duplicating standard output and error", error))?;
        // If the launcher's standard input is closed, rank 0 sees the end of its input.
        let input =
            groups.first_mut().and_then(Group::take_input).and_then(|pipe| Input::new(std::io::stdin(), pipe).ok());
        let start = |(rank, mut group): (usize, Group)| -> Result<RankProcess> {
            let (stdout, stderr) = group.take_output();
            let inlet = |pipe: OwnedFd, stream| {
                let log = logs.get(rank).map(File::try_clone).transpose();
                let log = log.map_err(|error| Error::system("duplicating a log file", error))?;
                Ok(Inlet::new(pipe, Speaker { rank, stream }, log))
            };
            let stdout = stdout.map(|pipe| inlet(pipe.into(), STDOUT)).transpose()?;
            let stderr = stderr.map(|pipe| inlet(pipe.into(), STDERR)).transpose()?;
            Ok(RankProcess { group, exit: None, inlets: [stdout, stderr] })
        };
        Ok(Job {
            ranks: groups.into_iter().enumerate().map(start).collect::<Result<_>>()?,
            ends,
            signals,
            outlets,
            input,
            timeout_at: timeout.and_then(|timeout| clock::now().checked_add(timeout)),
            phase: Phase::Running,
            code: None,
            failures: Vec::new(),
            ended_before: Vec::new(),
            asked: None,
            hint_at: None,
            lost_output: None,
            drained_bytes: 0,
        })
    }

    /// Serves the job until it ends, and returns its exit code.
    pub(crate) fn serve(mut self) -> Result<u8> {
        while !self.is_over() {
            let parts = self.wait()?;
            for part in parts {
                match part {
                    Part::Signals => self.take_signals()?,
                    Part::Inlet { rank, stream } => self.pass_on(rank, stream),
                    Part::Outlet(stream) => self.outlets[stream].write_some(),
                    Part::InputSource => {
                        self.input = self.input.take().and_then(|mut input| input.read_some().then_some(input))
                    }
                    Part::InputSink => {
                        self.input = self.input.take().and_then(|mut input| input.write_some().then_some(input))
                    }
                }
            }
            self.look_at_output();
            self.keep_deadlines(clock::now());
        }
        // What ranks have said on a standard error that cannot be written is lost, and there is nobody to tell.
        let is_lost = matches!(self.outlets[STDERR].end(), Some(OutputEnd::Failed(_)));
        Ok(self.code.unwrap_or(u8::from(is_lost)))
    }

    /// Ends the job when standard output takes no more, as a rank's own write to it would.
    fn look_at_output(&mut self) {
        let end = match self.outlets[STDOUT].end() {
            // All ranks may have ended before their last words were found not to fit.
            Some(OutputEnd::Failed(error)) if self.lost_output.is_none() => error.to_string(),
            // The reader of the ranks' output has gone (`rsccl run .. | head`).
            Some(OutputEnd::ReaderGone) if self.phase.is_running() => {
                self.code.get_or_insert(exit_code(Exit::Signal(Signal::PIPE)));
                return self.end(Signal::TERMINATE, GRACE);
            }
            Some(OutputEnd::Failed(_) | OutputEnd::ReaderGone) | None => return,
        };
        self.code.get_or_insert(1);
        let running = self.phase.is_running() && self.ranks.iter().any(|rank| rank.exit.is_none());
        let rest = if running { "; all ranks are ended" } else { "" };
        self.say(&format!("standard output cannot be written: {end}{rest}"));
        self.lost_output = Some(end);
        if running {
            self.end(Signal::TERMINATE, GRACE);
        }
    }

    fn is_over(&self) -> bool {
        let ended = matches!(self.phase, Phase::Draining(_));
        let silent = self.ranks.iter().all(|rank| rank.inlets.iter().all(Option::is_none));
        ended && silent && self.outlets.are_empty()
    }

    /// Waits until a descriptor is ready, and says which.
    fn wait(&self) -> Result<Vec<Part>> {
        let mut parts = vec![(Part::Signals, self.signals.as_fd(), Want::Read)];
        for (rank, process) in self.ranks.iter().enumerate() {
            for (stream, inlet) in process.inlets.iter().enumerate() {
                if let (Some(inlet), false) = (inlet, self.outlets[stream].is_full()) {
                    parts.push((Part::Inlet { rank, stream }, inlet.as_fd(), Want::Read));
                }
            }
        }
        for (stream, outlet) in self.outlets.iter().filter(|(_, outlet)| !outlet.is_empty()) {
            parts.push((Part::Outlet(stream), outlet.as_fd(), Want::Write));
        }
        if let (Some(input), true) = (&self.input, self.phase.is_running()) {
            parts.extend(input.wants().map(|fd| (Part::InputSource, fd, Want::Read)));
            parts.extend(input.has().map(|fd| (Part::InputSink, fd, Want::Write)));
        }
        let now = clock::now();
        let phase_at = match self.phase {
            Phase::Settling(moment) | Phase::Ending(moment) | Phase::Draining(moment) => Some(moment),
            Phase::Running | Phase::Killed => None,
        };
        let timeout_at = self.timeout_at.filter(|_| self.phase.is_running());
        let moments = [phase_at, timeout_at, self.hint_at, self.show_at()];
        let next = moments.into_iter().flatten().min().map(|moment| moment.saturating_duration_since(now));
        let wants: Vec<_> = parts.iter().map(|(_, fd, want)| (*fd, *want)).collect();
        let ready = wait_ready(&wants, next)?;
        Ok(parts.iter().zip(ready).filter(|(_, ready)| *ready).map(|((part, ..), _)| *part).collect())
    }

    fn pass_on(&mut self, rank: usize, stream: usize) {
        let (inlet, outlet) = (&mut self.ranks[rank].inlets[stream], &mut self.outlets[stream]);
        match inlet.as_mut().and_then(|inlet| inlet.pass_on(outlet)) {
            Some(count) if matches!(self.phase, Phase::Draining(_)) => {
                self.drained_bytes += count;
                if self.drained_bytes > MAX_DRAINED_BYTES * self.ranks.len() {
                    // A process that escaped from its rank's group is still writing.
                    self.give_up_inlets();
                }
            }
            Some(_) => {}
            None => {
                if let Some(inlet) = inlet.take() {
                    inlet.finish(outlet);
                }
            }
        }
    }

    fn take_signals(&mut self) -> Result<()> {
        while let Some(signal) = self.signals.next()? {
            match signal {
                Signal::CHILD => self.look_after_ranks()?,
                Signal::USER_1 | Signal::USER_2 => self.send(signal),
                // All ranks have ended; the user does not wait for the remaining output.
                _ if matches!(self.phase, Phase::Draining(_)) => self.give_up_output(),
                // The user asked a second time, and does not want to wait.
                _ if self.asked.is_some() => self.kill(),
                _ => {
                    self.asked = Some(signal);
                    self.hint_at = Some(clock::now() + HINT_AFTER);
                    self.end(signal, USER_GRACE);
                }
            }
        }
        Ok(())
    }

    /// Finds ranks that have ended, and those that failed.
    fn look_after_ranks(&mut self) -> Result<()> {
        // Those whose order is known, then all others.
        for number in self.ends.seen()?.into_iter().chain(0..self.ranks.len()) {
            let rank = &mut self.ranks[number];
            if rank.exit.is_some() {
                continue;
            }
            rank.exit = rank.group.exit()?;
            match rank.exit {
                Some(Exit::Code(0)) if self.failures.is_empty() => self.ended_before.push(number),
                Some(Exit::Code(0)) | None => {}
                Some(exit) => self.failures.push((number, exit)),
            }
        }
        let all_ended = self.ranks.iter().all(|rank| rank.exit.is_some());
        if all_ended || !self.phase.is_running() {
            self.name_failure();
        } else if let (Phase::Running, false) = (self.phase, self.failures.is_empty()) {
            self.phase = Phase::Settling(clock::now() + SETTLE);
        }
        if all_ended && !matches!(self.phase, Phase::Draining(_)) {
            // Processes that the ranks started and left behind end with them.
            self.send(Signal::KILL);
            self.phase = Phase::Draining(clock::now() + DRAIN);
        }
        Ok(())
    }

    /// Says which rank failed, and takes its exit code for the job's: of several, the likeliest cause of the others.
    fn name_failure(&mut self) {
        let failures = std::mem::take(&mut self.failures);
        let (Some((number, exit)), None) = (cause(&failures), self.code) else { return };
        self.code = Some(exit_code(exit));
        // The effect of the user's own signal needs no message.
        if self.asked.is_some_and(|asked| exit == Exit::Signal(asked)) {
            return;
        }
        let (ranks, id) = (self.ranks.len(), self.ranks[number].group.id());
        let how = match exit {
            Exit::Code(code) => format!("exited with code {code}"),
            Exit::Signal(signal) => format!("was ended by {}", signal.name()),
        };
        let running = self.ranks.iter().any(|rank| rank.exit.is_none());
        let rest = if running { "; the other ranks are ended" } else { "" };
        let before = self.who_had_ended();
        self.say(&format!("rank {number} of {ranks} (process {id}) {how}{before}{rest}"));
    }

    /// Which ranks had ended well before, as words that follow those of a failure.
    fn who_had_ended(&self) -> String {
        let mut names: Vec<String> = self.ended_before.iter().map(usize::to_string).collect();
        names.truncate(MOST_NAMED);
        let more = if names.len() < self.ended_before.len() { " and others" } else { "" };
        match &names[..] {
            [] => String::new(),
            [one] => format!("; rank {one} had ended with code 0 before"),
            several => format!("; ranks {}{more} had ended with code 0 before", several.join(", ")),
        }
    }

    /// When the next line that has begun is to be shown without its end.
    fn show_at(&self) -> Option<Instant> {
        let inlets = self.ranks.iter().flat_map(|rank| rank.inlets.iter().enumerate());
        let watched = inlets.filter(|(stream, _)| self.outlets[*stream].is_watched());
        watched.filter_map(|(_, inlet)| inlet.as_ref()?.show_at()).min()
    }

    /// Shows lines that have begun and whose ends do not come; says what a second signal does, if the first has not
    /// ended the ranks.
    fn keep_company(&mut self, now: Instant) {
        for rank in &mut self.ranks {
            for (stream, inlet) in rank.inlets.iter_mut().enumerate() {
                let outlet = &mut self.outlets[stream];
                if let (Some(inlet), true) = (inlet, outlet.is_watched()) {
                    inlet.show_begun(now, outlet);
                }
            }
        }
        if self.hint_at.is_some_and(|moment| now >= moment) {
            self.hint_at = None;
            if let (Phase::Ending(moment), Some(signal)) = (self.phase, self.asked) {
                let left_s = moment.saturating_duration_since(now).as_secs_f64().round();
                let (running, name) = (self.running(), signal.name());
                self.say(&format!(
                    "{running} did not end at {name} so far: killed in {left_s} s (the signal again: at once)"
                ));
            }
        }
    }

    fn keep_deadlines(&mut self, now: Instant) {
        self.keep_company(now);
        match self.phase {
            Phase::Settling(moment) if now >= moment => {
                self.name_failure();
                self.end(Signal::TERMINATE, GRACE);
            }
            Phase::Running | Phase::Settling(_) if self.timeout_at.is_some_and(|moment| now >= moment) => {
                self.name_failure();
                self.code.get_or_insert(EXIT_TIMEOUT);
                self.say(&format!("the time is over; {} had not ended: all are ended", self.running()));
                self.end(Signal::TERMINATE, GRACE);
            }
            Phase::Ending(moment) if now >= moment => {
                self.say(&format!("{} did not end when asked to: killed", self.running()));
                self.kill();
            }
            // A slow reader of our output is waited for; an open pipe without data is not.
            Phase::Draining(moment) if now >= moment && self.outlets.are_empty() => self.give_up_inlets(),
            Phase::Draining(moment) if now >= moment => self.phase = Phase::Draining(now + DRAIN),
            Phase::Running | Phase::Settling(_) | Phase::Ending(_) | Phase::Killed | Phase::Draining(_) => {}
        }
    }

    fn end(&mut self, signal: Signal, grace: Duration) {
        self.phase = Phase::Ending(clock::now() + grace);
        self.send(signal);
    }

    fn kill(&mut self) {
        self.phase = Phase::Killed;
        self.send(Signal::KILL);
    }

    fn send(&mut self, signal: Signal) {
        let errors: Vec<String> = self
            .ranks
            .iter()
            .filter_map(|rank| rank.group.signal(signal).err())
            .map(|error| error.to_string())
            .collect();
        errors.iter().for_each(|error| self.say(error));
    }

    fn say(&mut self, text: &str) {
        self.outlets[STDERR].say(&format!("rsccl run: {text}"));
    }

    fn give_up_inlets(&mut self) {
        for rank in &mut self.ranks {
            for (stream, inlet) in rank.inlets.iter_mut().enumerate() {
                if let Some(inlet) = inlet.take() {
                    inlet.finish(&mut self.outlets[stream]);
                }
            }
        }
    }

    fn give_up_output(&mut self) {
        self.give_up_inlets();
        self.outlets.give_up();
    }

    /// The running ranks in words, such as "ranks 0, 2-3".
    fn running(&self) -> String {
        let running: Vec<usize> = (0..self.ranks.len()).filter(|rank| self.ranks[*rank].exit.is_none()).collect();
        let ranges = running.chunk_by(|a, b| a + 1 == *b).map(|range| match range {
            [only] => only.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        });
        let ranges: Vec<String> = ranges.collect();
        format!("{} {}", if running.len() == 1 { "rank" } else { "ranks" }, ranges.join(", "))
    }
}

/// The code that shells use.
fn exit_code(exit: Exit) -> u8 {
    match exit {
        Exit::Code(code) => u8::try_from(code & 0xff).unwrap_or(1),
        Exit::Signal(signal) => u8::try_from(128 + signal.number()).unwrap_or(u8::MAX),
    }
}

/// The signals that the launcher receives: its children's exits, and those it passes on.
pub(crate) const TAKEN_SIGNALS: &[Signal] = &[
    Signal::CHILD,
    Signal::HANGUP,
    Signal::INTERRUPT,
    Signal::QUIT,
    Signal::TERMINATE,
    Signal::USER_1,
    Signal::USER_2,
];
/// How long ranks go on after the first has failed. rsccl's errors reach the other ranks within milliseconds; the rest
/// of the time is theirs to write them.
const SETTLE: Duration = Duration::from_secs(2);
/// How long ranks may clean up after another one has failed.
const GRACE: Duration = Duration::from_secs(3);
/// How long ranks may take to end when the user asks them to, for instance to write a checkpoint.
const USER_GRACE: Duration = Duration::from_secs(30);
/// How long ranks may take to end at the user's signal before a word is said about it.
const HINT_AFTER: Duration = Duration::from_secs(1);
/// How long the launcher waits for a pipe that an escaped process holds open.
const DRAIN: Duration = Duration::from_secs(1);
/// The most that two pipes of a rank hold when it ends.
const MAX_DRAINED_BYTES: usize = 2 << 20;
/// The most ranks that are named in a sentence.
const MOST_NAMED: usize = 8;
/// The code that `timeout` uses.
const EXIT_TIMEOUT: u8 = 124;
