//! How all ranks of a communicator register memory of devices as a window, and take it back: see
//! `engine::device_windows`.

use crate::device::{self, Home, Joint, Lendable, MOST_PARTS, Region};
use crate::engine::device_call::DeviceCall;
use crate::engine::device_entry::DeviceEntry;
use crate::engine::device_windows::{OpenWindow, RegisteredWindow};
use crate::engine::given::Given;
use crate::error::{Error, Result};
use crate::exec::{Background, Order};
use crate::log;
use crate::reach::device_sharing::Meeting;
use crate::session::peer_status::WaitingFor;
use crate::sync::primitive::Arc;
use crate::sys::limits;
use crate::types::Rank;
use crate::wire::{self, Reader, Writer};

/// What a rank tells of the memory that it registers.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    bytes: u64,
    /// Where it begins in what others import.
    offset: u64,
    verdict: Verdict,
}

/// What becomes of a rank's memory in a window.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Others can work in it, and import allocations of so many bytes.
    Direct(Vec<u64>),
    /// They cannot, for this reason.
    Apart(String),
    /// The rank cannot register it, for this reason.
    Refused(String),
}

impl Told {
    fn encode(&self) -> Vec<u8> {
        let words = |words: &str| wire::cut(words, MOST_WORDS).as_bytes().to_vec();
        let (code, behind) = match &self.verdict {
            Verdict::Direct(parts) => (0, parts.iter().flat_map(|bytes| bytes.to_le_bytes()).collect()),
            Verdict::Apart(why) => (1, words(why)),
            Verdict::Refused(why) => (2, words(why)),
        };
        let mut writer = Writer::new();
        writer.u64(self.bytes).u64(self.offset).u8(code).raw(&behind);
        writer.finish()
    }

    fn decode(rank: Rank, bytes: &[u8]) -> Result<Told> {
        let (known, behind) = bytes.split_at_checked(KNOWN_BYTES).unwrap_or((bytes, &[]));
        let read = || -> Result<Told> {
            let mut reader = Reader::new(known, "a rank's window");
            let (bytes, offset) = (reader.u64()?, reader.u64()?);
            let words = || String::from_utf8_lossy(behind).into_owned();
            let parts = || -> Result<Vec<u64>> {
                let (parts, rest) = behind.as_chunks();
                let parts: Vec<u64> = parts.iter().map(|part| u64::from_le_bytes(*part)).collect();
                let whole = parts.iter().try_fold(0_u64, |whole, bytes| whole.checked_add(*bytes));
                let holds = whole.is_some_and(|whole| offset.checked_add(bytes).is_some_and(|end| end <= whole));
                if !holds || !rest.is_empty() || parts.len() > MOST_PARTS || parts.contains(&0) {
                    return Err(Error::remote(rank, "a window that does not lie in the allocations that were told"));
                }
                Ok(parts)
            };
            let verdict = match reader.u8()? {
                0 => Verdict::Direct(parts()?),
                1 => Verdict::Apart(words()),
                2 => Verdict::Refused(words()),
                _ => return Err(reader.malformed("an unknown verdict")),
            };
            reader.finish()?;
            Ok(Told { bytes, offset, verdict })
        };
        read().map_err(|error| error.about(rank))
    }

    /// The bytes of each allocation that others import; none where they do not.
    fn parts(&self) -> &[u64] {
        match &self.verdict {
            Verdict::Direct(parts) => parts,
            Verdict::Apart(_) | Verdict::Refused(_) => &[],
        }
    }
}

/// Why calls in a window go through scratch: the same on all ranks. `None` where they do not.
fn reason(meeting: &Meeting, told: &[Told]) -> Option<String> {
    if meeting.has_far() {
        return Some("some ranks are on different hosts, or may share no memory".to_owned());
    }
    if meeting.is_without_pointers() {
        return Some("NCCL_P2P_DIRECT_DISABLE is set for GPUs of one process".to_owned());
    }
    if meeting.is_led() {
        return Some("processes that share a device move data through their stages".to_owned());
    }
    if let Some((one, other)) = meeting.staged().first() {
        return Some(format!("the devices of ranks {one} and {other} do not reach each other"));
    }
    told.iter().enumerate().find_map(|(rank, told)| match &told.verdict {
        Verdict::Apart(why) => Some(format!("the memory of rank {rank} {why}")),
        Verdict::Direct(_) | Verdict::Refused(_) => None,
    })
}

/// What this rank registers.
struct OwnPart<'a> {
    number: u32,
    memory: &'a Region,
    /// The allocations that others import.
    offered: Vec<Region>,
    home: Home,
}

/// How this rank's memory becomes a window's: see [`device::ProgramMemory::lendable`].
fn lend(meeting: &Meeting, memory: &Region) -> Result<std::result::Result<Lendable, String>> {
    let (homes, elsewhere) = (meeting.all_homes_here(), meeting.elsewhere());
    if memory.keep().adopted().is_empty() {
        return Ok(device::lendable_alone(memory, !elsewhere.is_empty()));
    }
    device::programs_of(memory.home())?.lendable(memory, &homes, !elsewhere.is_empty())
}

/// Registers memory as a window, on all ranks.
pub(super) fn register(
    entry: &mut DeviceEntry,
    mut given: Given<'_>,
    memory: &Region,
    background: &mut dyn Background,
) -> Result<RegisteredWindow> {
    let wait = given.meet("register_window", background)?;
    let (next, session) = (given.session.collectives(), given.session);
    let world = session.world;
    let works_in = entry.side().map(|side| side.home);
    let home = works_in.unwrap_or(memory.home());
    let DeviceCall { side, mut given, background, .. } =
        entry.enter(given, (home, next), (Order::Caller, background))?;
    let number = side.windows.registered;
    let lent = match (memory.home() == home, side.windows.open.len() < MOST_WINDOWS) {
        (false, _) => Err(format!("its buffer lies in {}, and it works in {home}", memory.home())),
        (_, false) => Err(format!("it has more than {MOST_WINDOWS} windows: register fewer, larger ones")),
        (true, true) => lend(&side.meeting, memory).map_err(|error| error.message().to_owned()),
    };
    side.meeting.leave_window((number, world.rank), memory);
    let bytes = memory.bytes() as u64;
    let told = |offset, verdict| Told { bytes, offset, verdict };
    let (offered, mine) = match lent {
        Ok(Ok(Lendable { parts, offset })) => {
            let lengths = parts.iter().map(|part| part.bytes() as u64).collect();
            (parts, told(offset as u64, Verdict::Direct(lengths)))
        }
        Ok(Err(why)) => (Vec::new(), told(0, Verdict::Apart(why))),
        Err(refusal) => (Vec::new(), told(0, Verdict::Refused(refusal))),
    };
    let told = session.bootstrap.all_gather(&mine.encode(), &wait);
    let own = OwnPart { number, memory, offered, home };
    let opened = told.and_then(|told| open_window((&side.meeting, &mut given), own, &told, background));
    // Nobody looks for it after this.
    let parted =
        if opened.as_ref().is_err_and(|error| error.kind().ends()) { Ok(()) } else { session.bootstrap.barrier(&wait) };
    side.meeting.take_window((number, world.rank));
    let (mut window, reason) = opened?;
    parted?;
    side.windows.registered += 1;
    if window.offered.len() > 1 {
        // Each is an open descriptor.
        window.offered.clear();
    }
    let (window, bytes) = (Arc::new(window), memory.bytes());
    let direct = !window.bases.is_empty();
    let way = if direct { "direct" } else { "of threads" };
    match reason {
        None => {
            log::info!(Reg @ world.rank, "window {number} : {bytes} bytes, {way}")
        }
        Some(reason) => log::info!(Reg @ world.rank, "window {number} : {bytes} bytes, through scratch ({reason})"),
    }
    let open = Arc::downgrade(&window);
    side.windows.open.push(window);
    Ok(RegisteredWindow { open, direct })
}

/// The window, and why its calls go through scratch, once all ranks have told of their memory.
fn open_window(
    (meeting, given): (&Meeting, &mut Given<'_>),
    OwnPart { number, memory, offered, home }: OwnPart<'_>,
    told: &[Vec<u8>],
    background: &mut dyn Background,
) -> Result<(OpenWindow, Option<String>)> {
    let world = given.session.world;
    let told = world.ranks().zip(told).map(|(rank, bytes)| Told::decode(rank, bytes)).collect::<Result<Vec<Told>>>()?;
    for (rank, told) in world.ranks().zip(&told) {
        if let Verdict::Refused(why) = &told.verdict {
            return Err(Error::invalid_usage(format!("rank {rank} cannot register a window: {why}")));
        }
    }
    let length = memory.bytes() as u64;
    if let Some(rank) = told.iter().position(|told| told.bytes != length) {
        let other = told[rank].bytes;
        let text = format!("a window of {length} bytes here and of {other} on rank {rank}: give the same length");
        return Err(Error::invalid_argument(text));
    }
    let (bases, others) = (Vec::new(), Vec::new());
    let mut window = OpenWindow { number, mine: memory.clone(), offered, bases, others };
    let elsewhere = meeting.elsewhere();
    if meeting.works_in_place() {
        return Ok((window, None));
    }
    if let Some(reason) = reason(meeting, &told) {
        return Ok((window, Some(reason)));
    }
    let mut bases = Vec::with_capacity(told.len());
    for rank in world.ranks() {
        let here = meeting.window((number, rank)).filter(|_| meeting.is_here(rank));
        bases.push(here.as_ref().map_or(0, |region| region.base().addr().get() as u64));
        window.others.extend(here.filter(|_| rank != world.rank));
    }
    let parts_of = |rank: &Rank| (*rank, told[rank.index()].parts());
    let owners: Vec<(Rank, &[u64])> = elsewhere.iter().map(parts_of).collect();
    let taken = take_parts(given, (&window.offered, home), &owners, background)?;
    for (rank, region) in elsewhere.iter().zip(taken) {
        bases[rank.index()] = region.base().addr().get() as u64 + told[rank.index()].offset;
        window.others.push(region);
    }
    if let Some(rank) = bases.iter().position(|base| *base == 0) {
        return Err(Error::internal(format!("rank {rank} has left no window")));
    }
    window.bases = bases;
    Ok((window, None))
}

/// Hands over this rank's allocations, and maps those of each of `owners`, of so many bytes each, behind each
/// other: one of each rank at a time, so that few descriptors are open at once.
fn take_parts(
    given: &mut Given<'_>,
    (mine, home): (&[Region], Home),
    owners: &[(Rank, &[u64])],
    background: &mut dyn Background,
) -> Result<Vec<Region>> {
    let takers: Vec<Rank> = owners.iter().map(|(rank, _)| *rank).collect();
    let joints = owners.iter().map(|(owner, parts)| joint_for(*owner, parts, home));
    let mut joints = joints.collect::<Result<Vec<Option<Box<dyn Joint>>>>>()?;
    let mut taken: Vec<Option<Region>> = owners.iter().map(|_| None).collect();
    let rounds = owners.iter().map(|(_, parts)| parts.len()).chain([mine.len()]).max();
    for round in 0..rounds.filter(|_| !owners.is_empty()).unwrap_or(0) {
        let with_part = |(place, (rank, parts)): (usize, &(Rank, &[u64]))| {
            let bytes = usize::try_from(*parts.get(round)?);
            Some(bytes.map(|bytes| (place, *rank, bytes)).map_err(|_| too_long(*rank)))
        };
        let wanted = owners.iter().enumerate().filter_map(with_part);
        let wanted = wanted.collect::<Result<Vec<(usize, Rank, usize)>>>()?;
        let of: Vec<(Rank, usize)> = wanted.iter().map(|(_, rank, bytes)| (*rank, *bytes)).collect();
        let mut regions = Vec::new();
        given.set_up(WaitingFor::Anything, background, |fabric, setup| {
            regions = fabric.share_window((mine.get(round), home), (&of, &takers), setup)?;
            Ok(())
        })?;
        for ((place, rank, _), region) in wanted.iter().zip(regions) {
            match &mut joints[*place] {
                Some(joint) => joint.add(&region).map_err(|error| error.about(*rank))?,
                None => taken[*place] = Some(region),
            }
        }
    }
    let finish = |(joint, taken): (Option<Box<dyn Joint>>, Option<Region>)| match joint {
        Some(joint) => joint.finish(),
        None => taken.ok_or_else(|| Error::internal("a rank has handed no memory over")),
    };
    joints.into_iter().zip(taken).map(finish).collect()
}

/// Where the allocations of `owner` become one memory; `None` where there is one at most.
///
/// # Errors
/// [`crate::error::Kind::Remote`] where this rank cannot map what the owner has told of, unless this process lacks
/// memory.
fn joint_for(owner: Rank, parts: &[u64], home: Home) -> Result<Option<Box<dyn Joint>>> {
    if parts.len() < 2 {
        return Ok(None);
    }
    let whole = parts.iter().try_fold(0_u64, |whole, bytes| whole.checked_add(*bytes));
    let whole = whole.and_then(|whole| usize::try_from(whole).ok()).ok_or_else(|| too_long(owner))?;
    let joint = device::programs_of(home).and_then(|device| device.joint(whole));
    joint.map(Some).map_err(|error| match limits::is_shortage(&error) {
        true => error,
        false => {
            let (count, why) = (parts.len(), error.message());
            let told = format!("rank {owner} has told of a window in {count} allocations of {whole} bytes in all");
            Error::remote(owner, format!("{told}, which cannot be mapped here: {why}"))
        }
    })
}

/// The error of allocations that are longer than this rank's addresses.
#[cold]
fn too_long(owner: Rank) -> Error {
    Error::remote(owner, format!("rank {owner} has told of a window that no address space holds"))
}

/// Takes a window back, on all ranks.
pub(super) fn deregister(
    entry: &mut DeviceEntry,
    mut given: Given<'_>,
    window: &RegisteredWindow,
    background: &mut dyn Background,
) -> Result<()> {
    let session = given.session;
    let windows = entry.side_mut().map(|side| &mut side.windows);
    let (windows, number) = windows
        .and_then(|windows| windows.number(window).map(|number| (windows, number)))
        .ok_or_else(|| Error::invalid_usage("the window is of another communicator"))?;
    let met = given.meet("deregister_window", background);
    // Also where a peer does not come.
    windows.open.retain(|window| window.number != number);
    let wait = met?;
    let told = session.bootstrap.all_gather(&number.to_le_bytes(), &wait)?;
    match session.world.ranks().zip(&told).find(|(_, told)| told[..] != number.to_le_bytes()) {
        None => Ok(()),
        Some((rank, _)) => {
            let text = format!("this rank takes window {number} back, rank {rank} another one");
            Err(Error::mismatch(text).about(rank))
        }
    }
}

/// Windows of a communicator at one time.
const MOST_WINDOWS: usize = 1024;
/// Of a refusal.
const MOST_WORDS: usize = 512;
/// Bytes of a [`Told`] before its words.
const KNOWN_BYTES: usize = 17;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn what_ranks_tell_comes_back_and_what_cannot_be_is_refused() {
        let rank = Rank::new(3);
        let told = |offset, parts| Told { bytes: 100, offset, verdict: Verdict::Direct(parts) };
        let apart = Told { bytes: 100, offset: 0, verdict: Verdict::Apart("is of a pool".to_owned()) };
        for told in [told(0, vec![100]), told(60, vec![64, 64, 32]), apart] {
            assert_eq!(Told::decode(rank, &told.encode()).unwrap(), told);
        }
        let most = vec![1; MOST_PARTS + 1];
        for wrong in [vec![], vec![99], vec![100, 0], vec![u64::MAX, 101], most] {
            assert_eq!(Told::decode(rank, &told(0, wrong).encode()).unwrap_err().peer(), Some(3));
        }
        assert!(Told::decode(rank, &told(u64::MAX, vec![200]).encode()).is_err());
        assert!(Told::decode(rank, &told(0, vec![100]).encode()[..24]).is_err());
    }

    /// Regression: it was this rank's usage that was wrong, or the library.
    #[test]
    fn allocations_that_cannot_be_mapped_are_the_fault_of_the_rank_that_told_of_them() {
        let owner = Rank::new(3);
        assert!(joint_for(owner, &[], Home::Host).unwrap().is_none());
        assert!(joint_for(owner, &[u64::MAX], Home::Host).unwrap().is_none());
        for parts in [vec![64, 64], vec![u64::MAX, 1]] {
            let Err(error) = joint_for(owner, &parts, Home::Host) else { panic!("the host joins no allocations") };
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(3)), "{error}");
            assert!(error.message().contains("rank 3"), "{error}");
        }
    }
}
