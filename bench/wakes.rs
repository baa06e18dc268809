//! How soon the library's thread moves what is left to it: `cargo bench --bench wakes`.
//!
//! Two ranks, each a thread. Rank 0 leaves the receive of 8 bytes to the library, as a task does that sleeps, and the
//! library's thread parks. Rank 1 waits for 2 ms and posts the message. The time is from before that call until the
//! library's thread, which has moved the message, has written to a pipe for the task.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock, and waits between two samples")]

use std::io::Write;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rsccl::{Config, Error, Result, local};

const SAMPLES: usize = 1000;
const APART: Duration = Duration::from_millis(2);

/// Writes a byte, and tells when the write has returned.
struct Writes(Mutex<std::io::PipeWriter>, Sender<Instant>);

impl Wake for Writes {
    fn wake(self: Arc<Self>) {
        let written = self.0.lock().expect("one thread has it").write_all(&[1]);
        written.expect("the pipe has room: each byte is read before the next");
        // The other end may have gone with an error.
        let _unheard = self.1.send(Instant::now());
    }
}

fn main() -> Result<()> {
    println!("| between | median, us | nine of ten below | most |");
    println!("|---|---|---|---|");
    row("ranks that share memory", &Config::default())?;
    row("ranks that have sockets", &Config::default().with_p2p_disable(true).with_shm_disable(true))
}

fn row(name: &str, config: &Config) -> Result<()> {
    let (arms, armed) = channel::<()>();
    let (posts, posted) = channel::<Instant>();
    let ends = Mutex::new((Some((arms, posted)), Some((armed, posts))));
    let times = local::run_with(2, config, |comm| {
        if comm.rank() == 1 {
            let (armed, posts) = ends.lock().expect("no rank panics").1.take().expect("one rank takes it");
            for _ in 0..SAMPLES {
                armed.recv().map_err(|_| Error::internal("rank 0 has gone"))?;
                std::thread::sleep(APART);
                let post = Instant::now();
                comm.send(&[1u8; 8], 0)?;
                posts.send(post).map_err(|_| Error::internal("rank 0 has gone"))?;
            }
            return Ok(Vec::new());
        }
        let (arms, posted) = ends.lock().expect("no rank panics").0.take().expect("one rank takes it");
        (0..SAMPLES).map(|_| sample(&comm, &arms, &posted)).collect()
    })?;
    let mut times: Vec<f64> = times.into_iter().flatten().collect();
    times.sort_by(f64::total_cmp);
    let [median, nine_of_ten] = [times[SAMPLES / 2], times[SAMPLES * 9 / 10]];
    println!("| {name} | {median:.1} | {nine_of_ten:.1} | {:.1} |", times[SAMPLES - 1]);
    Ok(())
}

fn sample(comm: &rsccl::Communicator, arms: &Sender<()>, posted: &Receiver<Instant>) -> Result<f64> {
    let (mut reader, writer) = std::io::pipe().map_err(|error| Error::internal(error.to_string()))?;
    let (tells, told) = channel();
    let waker = Waker::from(Arc::new(Writes(Mutex::new(writer), tells)));
    let mut received = comm.start([0u8; 8], |calls, bytes| calls.recv(bytes, 1))?.into_future();
    let mut context = Context::from_waker(&waker);
    let polled = Pin::new(&mut received).poll(&mut context);
    arms.send(()).map_err(|_| Error::internal("rank 1 has gone"))?;
    let written = match polled {
        Poll::Pending => told.recv().map_err(|_| Error::internal("nobody has woken the task"))?,
        Poll::Ready(_) => return Err(Error::internal("rank 1 has not posted yet")),
    };
    std::io::Read::read_exact(&mut reader, &mut [0]).map_err(|error| Error::internal(error.to_string()))?;
    match Pin::new(&mut received).poll(&mut context) {
        Poll::Ready(result) => result.map(drop)?,
        Poll::Pending => return Err(Error::internal("it has woken the task too soon")),
    }
    let post = posted.recv().map_err(|_| Error::internal("rank 1 has gone"))?;
    Ok(written.saturating_duration_since(post).as_secs_f64() * 1e6)
}
