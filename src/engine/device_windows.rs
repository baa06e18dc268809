//! Windows: memory of devices that all ranks of a communicator have registered alike, so that calls between devices and
//! between processes work in it in place.
//!
//! An address is valid in one process only, and a program's own memory of one device need not be reached from another.
//! When a window is registered, each rank maps the memory of all others. From then on a rank that is called with
//! buffers in windows knows where the others' buffers are: as far inside their memory as its own are in its own. It
//! asks nobody, so such calls can be captured. All ranks' memory has the same length, and a place is compared with it
//! here, so that a rank which breaks the promise reaches no other memory. It is found by the label, in which each rank
//! names the places ([`Placed::check_sum`]).
//!
//! Peers work in those buffers alone that every rank passes, all of one length: `plan`'s symmetric buffers, such as the
//! inputs of a reduce. The other buffer may lie anywhere, so that it does not matter what a rank passes which has none.

use crate::device::{self, Home, Joint, Lendable, MOST_PARTS, Region};
use crate::engine::Engine;
use crate::engine::on_device::DeviceSide;
use crate::error::{Error, Result};
use crate::exec::{Background, Call, Order};
use crate::log;
use crate::plan::{Buffer, Pattern};
use crate::reach::device_sharing::Meeting;
use crate::session::peer_status::WaitingFor;
use crate::sync::primitive::{Arc, Weak};
use crate::types::{Elements, Rank, ReduceOp, World};
use crate::wire::{self, Reader, Writer};

/// A window, for whoever has registered it.
#[derive(Debug)]
pub struct RegisteredWindow {
    open: Weak<OpenWindow>,
    direct: bool,
}

impl RegisteredWindow {
    /// Whether ranks of other processes and devices work in it.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

/// The windows of a rank.
#[derive(Debug, Default)]
pub(super) struct DeviceWindows {
    open: Vec<Arc<OpenWindow>>,
    /// How many were registered so far: the number of the next one.
    registered: u32,
}

/// A window that is registered.
#[derive(Debug)]
struct OpenWindow {
    number: u32,
    mine: Region,
    /// What other processes have imported, where they have it open only as long as it is kept: of several allocations
    /// each has what it needs.
    offered: Vec<Region>,
    /// Where each rank's memory begins in this process, for this rank's device. Empty where calls go through scratch.
    bases: Vec<u64>,
    /// Keeps the others' memory mapped.
    others: Vec<Region>,
}

/// A place in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InWindow {
    /// The window's place among the open ones.
    place: usize,
    number: u32,
    /// How far inside.
    offset: u64,
}

/// Where the buffers of a call in which peers work lie in windows: one of them at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    input: Option<InWindow>,
    output: Option<InWindow>,
}

impl Placed {
    /// What stands for these places in a call's label: never 0. Of calls that work in one buffer, two places in one
    /// window never have the same; of all others one pair in 2^64 has.
    pub(super) fn check_sum(&self) -> u64 {
        let words = self.places().flat_map(|place| [u64::from(place.number), place.offset]);
        let mixed = words.fold(1_u64, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(SPREAD));
        // The high bits of a product depend on all bits of the factors. A label shows the low ones.
        mixed.rotate_left(u16::BITS).max(1)
    }

    fn places(&self) -> impl Iterator<Item = InWindow> {
        [self.input, self.output].into_iter().flatten()
    }
}

impl DeviceWindows {
    /// Where the buffers of a call lie; `None` where it does not work in windows.
    pub(super) fn find(&self, call: &Call<'_>, world: World) -> Option<Placed> {
        // Where each rank scales its input by a number of its own, peers cannot read it as it is.
        if self.open.is_empty() || matches!(call.op, Some(ReduceOp::PreMulSum(_))) {
            return None;
        }
        let shared = Pattern::of(call.collective)?.symmetric_buffers();
        let (lengths, places) = (call.lengths(world).ok()?, call.buffers.places());
        let placed = |buffer: Buffer, start: *const u8, count: Elements| match shared.contains(&buffer) {
            true => self.place(start.addr() as u64, count.0.checked_mul(u64::from(call.data_type.size()))?).map(Some),
            false => Some(None),
        };
        let input = placed(Buffer::Input, places.0, lengths.0)?;
        let output = placed(Buffer::Output, places.1, lengths.1)?;
        (input.is_some() || output.is_some()).then_some(Placed { input, output })
    }

    /// The place of `bytes` from `start` on. Of several windows that hold it the first counts.
    fn place(&self, start: u64, bytes: u64) -> Option<InWindow> {
        if bytes == 0 {
            return None;
        }
        self.open.iter().enumerate().filter(|(_, window)| !window.bases.is_empty()).find_map(|(place, window)| {
            let offset = start.checked_sub(window.mine.base().addr().get() as u64)?;
            let end = offset.checked_add(bytes)?;
            (end <= window.mine.bytes() as u64).then_some(InWindow { place, number: window.number, offset })
        })
    }

    /// The input and the output of each rank, behind each other; 0 for a buffer in which peers do not work.
    pub(super) fn bases(&self, placed: &Placed, world: World) -> Vec<u64> {
        let of = |rank: Rank, place: Option<InWindow>| {
            place.map_or(0, |place| self.open[place.place].bases[rank.index()] + place.offset)
        };
        world.ranks().flat_map(|rank| [of(rank, placed.input), of(rank, placed.output)]).collect()
    }

    /// Refuses memory of the program that is no longer what was registered.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`]; where the device has failed.
    pub(super) fn check(&self, placed: &Placed) -> Result<()> {
        for InWindow { place, number, .. } in placed.places() {
            let memory = &self.open[place].mine;
            if !memory.keep().adopted().is_empty() && !device::of(memory.home())?.is_still_there(memory)? {
                let text = format!("the memory of window {number} was freed: take the window back first");
                return Err(Error::invalid_usage(text));
            }
        }
        Ok(())
    }

    /// What a launch in these places has to keep.
    pub(super) fn kept(&self, placed: &Placed) -> impl Iterator<Item = Region> + '_ {
        let mut places: Vec<usize> = placed.places().map(|found| found.place).collect();
        places.dedup();
        places.into_iter().flat_map(|place| self.open[place].others.iter().chain([&self.open[place].mine])).cloned()
    }
}

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

impl DeviceSide {
    /// How this rank's memory becomes a window's: see [`device::Device::lendable`].
    fn lend(&self, memory: &Region) -> Result<std::result::Result<Lendable, String>> {
        let (homes, elsewhere) = (self.meeting.all_homes_here(), self.meeting.elsewhere());
        device::of(memory.home())?.lendable(memory, &homes, !elsewhere.is_empty())
    }
}

impl Engine {
    /// Registers memory as a window, on all ranks.
    pub fn register_window(&mut self, memory: &Region, background: &mut dyn Background) -> Result<RegisteredWindow> {
        let wait = self.meet("register_window", background)?;
        let (next, world) = (self.session.collectives(), self.session.world);
        let works_in = self.device_side.as_ref().map(|side| side.home);
        let home = works_in.unwrap_or(memory.home());
        self.enter_device((home, next), Order::Caller, background)?;
        let side = self.side_mut()?;
        let number = side.windows.registered;
        let lent = match (memory.home() == home, side.windows.open.len() < MOST_WINDOWS) {
            (false, _) => Err(format!("its buffer lies in {}, and it works in {home}", memory.home())),
            (_, false) => Err(format!("it has more than {MOST_WINDOWS} windows: register fewer, larger ones")),
            (true, true) => side.lend(memory).map_err(|error| error.message().to_owned()),
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
        let told = self.session.bootstrap.all_gather(&mine.encode(), &wait);
        let opened = told.and_then(|told| self.open_window(number, (memory, offered, home), &told, background));
        // Nobody looks for it after this.
        let parted = if opened.as_ref().is_err_and(|error| error.kind().ends()) {
            Ok(())
        } else {
            self.session.bootstrap.barrier(&wait)
        };
        let side = self.side_mut()?;
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
        &mut self,
        number: u32,
        (memory, offered, home): (&Region, Vec<Region>, Home),
        told: &[Vec<u8>],
        background: &mut dyn Background,
    ) -> Result<(OpenWindow, Option<String>)> {
        let world = self.session.world;
        let told =
            world.ranks().zip(told).map(|(rank, bytes)| Told::decode(rank, bytes)).collect::<Result<Vec<Told>>>()?;
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
        let meeting = &self.side_mut()?.meeting;
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
        let taken = self.take_parts((&window.offered, home), &owners, background)?;
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
        &mut self,
        (mine, home): (&[Region], Home),
        owners: &[(Rank, &[u64])],
        background: &mut dyn Background,
    ) -> Result<Vec<Region>> {
        let too_long = |_| Error::internal("a window that no address space holds");
        let (device, takers) = (device::of(home)?, owners.iter().map(|(rank, _)| *rank).collect::<Vec<Rank>>());
        let begin = |(_, parts): &(Rank, &[u64])| -> Result<Option<Box<dyn Joint>>> {
            let whole = usize::try_from(parts.iter().sum::<u64>()).map_err(too_long)?;
            if parts.len() > 1 { device.joint(whole).map(Some) } else { Ok(None) }
        };
        let mut joints = owners.iter().map(begin).collect::<Result<Vec<Option<Box<dyn Joint>>>>>()?;
        let mut taken: Vec<Option<Region>> = owners.iter().map(|_| None).collect();
        let rounds = owners.iter().map(|(_, parts)| parts.len()).chain([mine.len()]).max();
        for round in 0..rounds.filter(|_| !owners.is_empty()).unwrap_or(0) {
            let with_part = |(place, (rank, parts)): (usize, &(Rank, &[u64]))| {
                Some(usize::try_from(*parts.get(round)?).map(|bytes| (place, *rank, bytes)))
            };
            let wanted = owners.iter().enumerate().filter_map(with_part);
            let wanted = wanted.collect::<std::result::Result<Vec<(usize, Rank, usize)>, _>>().map_err(too_long)?;
            let of: Vec<(Rank, usize)> = wanted.iter().map(|(_, rank, bytes)| (*rank, *bytes)).collect();
            let mut regions = Vec::new();
            self.given().set_up(WaitingFor::Anything, background, |fabric, setup| {
                regions = fabric.share_window((mine.get(round), home), (&of, &takers), setup)?;
                Ok(())
            })?;
            for ((place, ..), region) in wanted.iter().zip(regions) {
                match &mut joints[*place] {
                    Some(joint) => joint.add(&region)?,
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

    /// Takes a window back that no peer needs to hear of.
    pub fn forget_window(&mut self, window: &RegisteredWindow) {
        if let (Some(side), Some(open)) = (&mut self.device_side, window.open.upgrade()) {
            side.windows.open.retain(|other| !Arc::ptr_eq(other, &open));
        }
    }

    /// Takes a window back, on all ranks.
    pub fn deregister_window(&mut self, window: &RegisteredWindow, background: &mut dyn Background) -> Result<()> {
        let open = window.open.upgrade();
        let number = open.as_ref().map(|open| open.number);
        let is_mine = |open: &Arc<OpenWindow>| {
            self.device_side.as_ref().is_some_and(|side| side.windows.open.iter().any(|mine| Arc::ptr_eq(mine, open)))
        };
        let number = number.filter(|_| open.as_ref().is_some_and(is_mine));
        let number = number.ok_or_else(|| Error::invalid_usage("the window is of another communicator"))?;
        drop(open);
        let met = self.meet("deregister_window", background);
        // Also where a peer does not come.
        self.side_mut()?.windows.open.retain(|window| window.number != number);
        let wait = met?;
        let told = self.session.bootstrap.all_gather(&number.to_le_bytes(), &wait)?;
        match self.session.world.ranks().zip(&told).find(|(_, told)| told[..] != number.to_le_bytes()) {
            None => Ok(()),
            Some((rank, _)) => {
                let text = format!("this rank takes window {number} back, rank {rank} another one");
                Err(Error::mismatch(text).about(rank))
            }
        }
    }
}

/// Windows of a communicator at one time.
const MOST_WINDOWS: usize = 1024;
/// Of a refusal.
const MOST_WORDS: usize = 512;
/// Bytes of a [`Told`] before its words.
const KNOWN_BYTES: usize = 17;
/// An odd number whose bits have no pattern: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::exec;
    use crate::types::{Collective, DataType};

    /// The label of a call at this place.
    fn label_at(offset: u64, count: u64) -> crate::sync::ring::Label {
        let place = InWindow { place: 0, number: 3, offset };
        let operation = exec::Operation {
            collective: Collective::AllGather,
            data_type: DataType::F32,
            op: None,
            root: None,
            count,
            sequence: 7,
            past: 0,
            on_device: true,
            windows: Placed { input: None, output: Some(place) }.check_sum(),
        };
        operation.label()
    }

    /// Regression: one place in 65,535 had the check sum of the promised one, and ranks worked in each other's memory
    /// at different places.
    #[test]
    fn ranks_at_different_places_always_have_different_labels() {
        const PLACES: u64 = 400_000;
        let labels: HashSet<_> = (0..PLACES).map(|place| label_at(place * 16, 100)).collect();
        assert_eq!(labels.len() as u64, PLACES);
        // The short sums of so many places are not all different: the test would see labels that have no more.
        let short: HashSet<_> = labels.iter().map(|label| label[0]).collect();
        assert!(short.len() as u64 <= 1 << 16);
        // Nor does another count make up for another place.
        let others = (0..PLACES).filter(|place| labels.contains(&label_at(place * 16, 101))).count();
        assert_eq!(others, 0);
    }

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
}
