//! Reading the memory of other ranks of this host in place: one copy, by the kernel, in place of two through slots.
//!
//! A rank that wants to be read announces an address of its own process: a number, which is only ever given to the
//! kernel together with that process ([`peer_memory`]). Beside it the rank announces where its process keeps its random
//! token. Each read checks that token first, so that it fails where the process's number belongs to another process:
//! in another container, or because the rank has ended.
//!
//! Whether the kernel permits it is found by the first read of each peer, and whether it copies fast enough by
//! [`peer_memory::slowness`], which is measured once in a process. Where it does not, a line of the log says why, and
//! the data goes through slots or scratch.

use std::collections::BTreeSet;
use std::io;
use std::ptr::NonNull;

use crate::log;
use crate::sys::alive::Process;
use crate::sys::peer_memory::{self, Witness};
use crate::transport::identity;
use crate::transport::{PeerInfo, Policy, neighbourhood};
use crate::types::Rank;

/// Which ranks' memory this rank may read, and how.
#[derive(Debug, Default)]
pub struct PeerReads {
    me: Rank,
    /// This process, where reads are allowed and some peer shares memory with this rank.
    here: Option<Here>,
    /// By rank, those that share memory with this rank; empty where all ranks are threads of this process.
    neighbours: Vec<Option<ProcessInfo>>,
    /// Peers that could not be read, or could not read this rank.
    closed: BTreeSet<Rank>,
    /// Whether all ranks of the host were found to be readable.
    reads_all: Option<bool>,
    /// Whether one copy by the kernel takes less time than two others, once that is asked.
    is_fast: Option<bool>,
}

/// What peers need to read this process, and how many ranks there are.
#[derive(Debug, Clone, Copy)]
struct Here {
    info: ProcessInfo,
    witness: u64,
}

/// A process as it has told of itself.
#[derive(Debug, Clone, Copy)]
struct ProcessInfo {
    process: Process,
    token: u64,
}

/// Memory of a peer, as it has announced it.
#[derive(Debug, Clone, Copy)]
pub struct Announced {
    /// Where its process keeps its token.
    pub witness: u64,
    /// Where the memory begins.
    pub address: u64,
}

impl PeerReads {
    /// What `mine` may read of `peers`.
    pub fn new(mine: &PeerInfo, peers: &[PeerInfo], policy: Policy) -> PeerReads {
        let here = neighbourhood(mine, policy);
        let near = |peer: &PeerInfo| neighbourhood(peer, policy) == here;
        let has_peers = || peers.iter().any(|peer| peer.rank != mine.rank && near(peer));
        let here = if policy.no_peer_reads || !has_peers() { None } else { this_process() };
        let known = |peer: &PeerInfo| near(peer).then(|| info(peer)).flatten();
        let apart = here.is_some() && peers.iter().any(|peer| !near(peer) || peer.process != mine.process);
        let neighbours = if apart { peers.iter().map(known).collect() } else { Vec::new() };
        let is_fast = policy.slow_peer_reads.then_some(true);
        PeerReads { me: mine.rank, here, neighbours, is_fast, ..PeerReads::default() }
    }

    /// Where this process keeps its token; `None` where nobody is to read it.
    pub fn witness(&self) -> Option<u64> {
        self.here.map(|here| here.witness)
    }

    /// Whether `peer` may be offered memory of this rank: nothing is known against it.
    #[inline]
    pub fn may_offer(&mut self, peer: Rank) -> bool {
        self.info(peer).is_some() && !self.closed.contains(&peer) && self.is_fast()
    }

    #[inline]
    fn is_fast(&mut self) -> bool {
        self.is_fast.unwrap_or_else(|| self.measure())
    }

    #[cold]
    fn measure(&mut self) -> bool {
        let (me, slowness) = (self.me, peer_memory::slowness());
        let is_fast = slowness.is_none_or(|slowness| slowness <= MOST_SLOWNESS);
        if let (false, Some(slowness)) = (is_fast, slowness) {
            log::detail!(
                Shm @ me,
                "the kernel copies memory of other processes {slowness:.1} times as slowly as this process copies its \
                 own: data of other ranks takes two copies (RSCCL_CMA_FORCE=1 prefers the one)"
            );
        }
        self.is_fast = Some(is_fast);
        is_fast
    }

    /// `peer` has refused to read this rank's memory.
    pub fn refused_by(&mut self, peer: Rank) {
        self.closed.insert(peer);
    }

    /// The process of `peer`, which may have ended.
    pub fn process(&self, peer: Rank) -> Option<Process> {
        self.info(peer).map(|info| info.process)
    }

    /// Whether `peer` is known to be a thread of this process.
    pub fn is_here(&self, peer: Rank) -> bool {
        self.here.zip(self.info(peer)).is_some_and(|(here, info)| here.info.token == info.token)
    }

    /// Copies `bytes` of `peer`'s memory to `into`; returns how many, which are fewer where the rest cannot be read.
    ///
    /// # Safety
    /// `into` is good for writing `bytes`, and nobody else touches them.
    pub unsafe fn read(&mut self, peer: Rank, announced: Announced, (into, bytes): (NonNull<u8>, usize)) -> usize {
        let Some(ProcessInfo { process, token }) = self.info(peer).filter(|_| !self.closed.contains(&peer)) else {
            return 0;
        };
        let witness = Witness { address: announced.witness, value: token };
        // SAFETY: the caller's.
        let copied = unsafe { peer_memory::copy_from(process, witness, announced.address, (into, bytes)) };
        copied.unwrap_or_else(|error| {
            self.close(peer, &error);
            0
        })
    }

    /// Whether this rank is known to be able to read all others of its host, by [`PeerReads::probe`].
    pub fn reads_all(&self) -> bool {
        self.reads_all == Some(true)
    }

    /// Tries once whether each of `peers` can be read, which keep their tokens there.
    pub fn probe(&mut self, peers: impl IntoIterator<Item = (Rank, u64)>) {
        if self.reads_all.is_some() {
            return;
        }
        for (peer, witness) in peers {
            // SAFETY: nothing is copied: only the token is read.
            let _nothing = unsafe { self.read(peer, Announced { witness, address: 0 }, (NonNull::dangling(), 0)) };
        }
        self.reads_all = Some(self.here.is_some() && self.closed.is_empty() && self.is_fast());
    }

    /// The memory of some call could not be read: this rank asks no more to read all others.
    pub fn give_up(&mut self) {
        self.reads_all = Some(false);
    }

    #[inline]
    fn info(&self, peer: Rank) -> Option<ProcessInfo> {
        let here = self.here?;
        if self.neighbours.is_empty() { Some(here.info) } else { *self.neighbours.get(peer.index())? }
    }

    #[cold]
    fn close(&mut self, peer: Rank, error: &io::Error) {
        let me = self.me;
        self.closed.insert(peer);
        log::detail!(Shm @ me, "cannot read the memory of rank {peer}, so that its data takes two copies: {error}");
    }
}

/// Up to this [slowness](peer_memory::slowness) one copy by the kernel is taken for faster than two plain ones. These
/// run side by side, on two processors, but move the data through the caches between them.
const MOST_SLOWNESS: f64 = 2.5;

fn info(peer: &PeerInfo) -> Option<ProcessInfo> {
    let process = Process::of(i32::try_from(peer.pid).ok()?)?;
    Some(ProcessInfo { process, token: peer.process })
}

/// This process, if it has a token.
fn this_process() -> Option<Here> {
    let token = identity::token().ok()?;
    let process = Process::of(i32::try_from(std::process::id()).ok()?)?;
    let witness = std::ptr::from_ref(token).addr() as u64;
    Some(Here { info: ProcessInfo { process, token: *token }, witness })
}
