//! Ranks: as threads of this process, as processes that it starts, or as this one process of somebody else's.
//!
//! The launcher makes the unique id and hands it to each rank on its standard input: no port is guessed, and the secret
//! stands neither in the environment nor among the arguments. Rank 0 prints.

use std::io::{PipeReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use rsccl::config::{Config, Environment, Launch};
use rsccl::internals::sys::clock;
use rsccl::internals::sys::limits::OpenFiles;
use rsccl::internals::sys::process::{Exit, Group, Signal, Signals, Want, wait_ready};
use rsccl::{Communicator, Error, Result, UniqueId};

use super::job::{Job, Ranks};
use super::{Arguments, Transport, session, table};

/// Runs the job of `arguments` on its ranks; yields whether every element was right.
///
/// # Errors
/// A bad option; of the ranks: the error that most likely caused the others'; of starting processes.
pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    if let Some(rank) = arguments.worker {
        return work(rank, &own_job(arguments)?);
    }
    if let Some(launch) = outer_launch(arguments)? {
        return launched(arguments, &launch);
    }
    if arguments.transport.unwrap_or(Transport::Local) == Transport::Local {
        let job = own_job(arguments)?;
        job.open_files()?;
        return threads(&job);
    }
    // Before any thread starts, which would inherit the old mask: the driver of GPUs starts some.
    let signals = Signals::take_over(&[Signal::CHILD])?;
    let job = own_job(arguments)?;
    job.open_files()?;
    processes(&job, &signals)
}

/// The job of ranks that this command itself starts.
fn own_job(arguments: &Arguments) -> Result<Job> {
    let transport = arguments.transport.unwrap_or(Transport::Local);
    Job::new(arguments, Ranks { count: arguments.ranks.unwrap_or(DEFAULT_RANKS), transport, launched: false })
}

/// The launcher's facts if this process is one of its ranks: if it has started several, or the user says so.
fn outer_launch(arguments: &Arguments) -> Result<Option<Launch>> {
    let environment = Environment::capture();
    if !arguments.launched && !Launch::is_rank(&environment) {
        return Ok(None);
    }
    match Launch::learn(&environment, &Config::default().resolve_in(&environment)?) {
        Ok(launch) if arguments.launched || launch.world.size > 1 => Ok(Some(launch)),
        Err(error) if arguments.launched => Err(error),
        // Variables that a shell has left behind do not make this process a rank.
        Ok(_) | Err(_) => Ok(None),
    }
}

fn threads(job: &Job) -> Result<bool> {
    let right = rsccl::local::run_with(job.ranks, &job.config, |comm| {
        let right = session::run(&comm, job)?;
        comm.finalize()?;
        Ok(right)
    })?;
    Ok(right.into_iter().all(|right| right))
}

/// Runs this process as one rank of a launcher.
fn launched(arguments: &Arguments, launch: &Launch) -> Result<bool> {
    let (size, source) = (launch.world.size, launch.source);
    let refused = |option: String| {
        Err(Error::invalid_argument(format!(
            "{option}: {source} has started this process as one of the {size} ranks of a job; omit the option"
        )))
    };
    if let Some(ranks) = arguments.ranks.filter(|ranks| *ranks != size) {
        return refused(format!("--ranks {ranks}"));
    }
    if arguments.transport == Some(Transport::Local) && size > 1 {
        return refused("--transport local".to_owned());
    }
    let transport = match arguments.transport {
        None | Some(Transport::Local) => Transport::Auto,
        Some(forced) => forced,
    };
    let job = Job::new(arguments, Ranks { count: size, transport, launched: true })?;
    if launch.world.rank.get() == 0 {
        job.open_files()?;
    }
    let comm = Communicator::from_env_with(&job.config)?;
    let right = session::run(&comm, &job)?;
    comm.finalize()?;
    Ok(right)
}

/// This process is one rank.
fn work(rank: u32, job: &Job) -> Result<bool> {
    let mut bytes = [0; UniqueId::BYTES];
    let read = std::io::stdin().lock().read_exact(&mut bytes);
    read.map_err(|error| Error::system("reading the unique id from standard input", error))?;
    let comm = Communicator::init(&UniqueId::from_bytes(&bytes)?, rank, job.ranks, &job.config)?;
    let right = session::run(&comm, job)?;
    comm.finalize()?;
    Ok(right)
}

/// Starts the ranks and waits for them.
fn processes(job: &Job, signals: &Signals) -> Result<bool> {
    let _files = OpenFiles::need(u64::from(job.ranks) + OWN_FILES);
    let id = Communicator::unique_id(&job.config)?;
    let mut ranks = Vec::with_capacity(job.ranks as usize);
    for rank in 0..job.ranks {
        let started = Group::start(&mut command(rank, hand_over(&id)?)?);
        ranks.push(started.map_err(|error| Error::system(format!("starting the process of rank {rank}"), error))?);
    }
    // Dropping the groups ends what still runs.
    wait(&mut ranks, signals)
}

/// The reading end of a pipe that holds the id.
fn hand_over(id: &UniqueId) -> Result<PipeReader> {
    let system = |error| Error::system("a pipe for the unique id", error);
    let (reader, mut writer) = std::io::pipe().map_err(system)?;
    // An empty pipe has room for far more, so this does not wait.
    writer.write_all(id.as_bytes()).map_err(system)?;
    Ok(reader)
}

fn command(rank: u32, id: PipeReader) -> Result<Command> {
    let program =
        std::env::current_exe().map_err(|error| Error::system("looking for the path of this program", error))?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg("--worker").arg(rank.to_string());
    let stdout = if rank == 0 { Stdio::inherit() } else { Stdio::null() };
    command.stdin(id).stdout(stdout).stderr(Stdio::inherit());
    Ok(command)
}

/// Waits until all have ended; once one has failed, the others get a little time to say why.
fn wait(ranks: &mut [Group], signals: &Signals) -> Result<bool> {
    let mut give_up_at = None;
    loop {
        let mut running = 0u32;
        for (rank, group) in ranks.iter_mut().enumerate() {
            match group.exit()? {
                None => running += 1,
                Some(Exit::Code(0)) => {}
                Some(exit) if give_up_at.is_none() => {
                    if let Exit::Signal(signal) = exit {
                        table::complain(&format!("rsccl perf: rank {rank} was ended by {}", signal.name()));
                    }
                    give_up_at = Some(clock::now() + GRACE);
                }
                Some(_) => {}
            }
        }
        if running == 0 {
            return Ok(give_up_at.is_none());
        }
        let left = give_up_at.map(|moment| moment.saturating_duration_since(clock::now()));
        if left.is_some_and(|left| left.is_zero()) {
            table::complain(&format!(
                "rsccl perf: {running} ranks have not ended after another failed; they are ended"
            ));
            return Ok(false);
        }
        wait_ready(&[(std::os::fd::AsFd::as_fd(signals), Want::Read)], left)?;
        while signals.next()?.is_some() {}
    }
}

/// The default number of ranks.
const DEFAULT_RANKS: u32 = 2;
/// The launcher's own descriptors.
const OWN_FILES: u64 = 64;
/// How long ranks may take to end by themselves after another has failed.
const GRACE: Duration = Duration::from_secs(10);
