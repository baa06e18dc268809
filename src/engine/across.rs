//! Collectives of ranks of which several processes share a device: on each device the lowest rank launches for all.
//!
//! A rank of another process takes part by its stage, a part of its shared memory. Buffers longer than a stage are
//! moved in pieces, on all devices alike. If all ranks are on one device, the leader's launch works in their stages and
//! buffers; else it runs the programs of its device's ranks, which wait for those of other devices and work in scratch.
//! What this cannot run (messages, scans, vector forms of all-to-all, other algorithms than direct) runs as it does
//! where each process has a device, by programs that wait for each other's turns on the device.

use crate::device::records::{Across, LaunchPart, Reduction, StageCopy};
use crate::device::{self, DeviceRanks, Home, HostMemory, HostRegion, Sharing, StatusPage};
use crate::engine::device_call::DeviceCall;
use crate::engine::device_side::DeviceSide;
use crate::engine::given::Given;
use crate::error::{Error, Result};
use crate::exec::lower::{self, Lowered};
use crate::exec::{Background, Begun, Call, StagedSide, Stages};
use crate::plan::Windows;
use crate::reach::device_sharing::{Brought, Meeting};
use crate::reach::side_layout;
use crate::session::peer_status::WaitingFor;
use crate::sync::Wait;
use crate::tune::Choice;
use crate::types::{Rank, ReduceOp};

/// The status page of this rank, where a process leads on each device: one of the pages of the ranks there, in
/// memory of the leader, which each of their processes maps. `ready` is what came of the steps before. Collective.
pub(super) fn status_page(
    given: &mut Given<'_>,
    (meeting, home): (&Meeting, Home),
    (ready, brought): (Result<()>, &mut Brought),
    (wait, background): (&Wait, &mut dyn Background),
) -> Result<StatusPage> {
    let ranks = meeting.device_ranks();
    if ranks.first[ranks.me] == ranks.me {
        let pages = exchange_pages(given, &ranks, background)?;
        meeting.pages().insert(home, pages);
    }
    given.session.bootstrap.barrier(wait)?;
    let pages = meeting.pages().get(&home).cloned();
    let pages = pages.ok_or_else(|| Error::internal("the lowest rank of this process has left no pages"))?;
    let (others, beside) = meeting.homes_here();
    let page = ready.and_then(|()| {
        let device = device::of(home)?;
        let reached = device.take_in(&pages)?;
        let page = device::led_of(home)?.page_across((&others, &beside), (&pages, &reached), &ranks);
        brought.pages = Some(reached);
        page
    });
    meeting.agree(given.session, (page, "with processes that share GPUs"), wait)
}

/// The pages of the ranks on this rank's device, from the leader there.
fn exchange_pages(given: &mut Given<'_>, ranks: &DeviceRanks, background: &mut dyn Background) -> Result<HostRegion> {
    let bytes = ranks.ranks.len() * StatusPage::BYTES;
    let rank = |place: usize| Rank::new(ranks.ranks[place]);
    let members: Vec<Rank> = ranks.members().map(rank).collect();
    let leads = ranks.me == DeviceRanks::LEADER;
    let mine = if leads { Some(HostMemory.allocate_host(bytes, Sharing::Processes)?) } else { None };
    let owners: &[(Rank, usize)] = if leads { &[] } else { &[(rank(DeviceRanks::LEADER), bytes)] };
    let mut taken = Vec::new();
    given.set_up(WaitingFor::Anything, background, |fabric, setup| {
        taken = fabric.share_of_host(mine.as_ref(), (owners, &members), setup)?;
        Ok(())
    })?;
    mine.or(taken.pop()).ok_or_else(|| Error::internal("a process without pages"))
}

/// Runs a collective through the leaders of the devices, if they can run it: false where they cannot, on all ranks.
pub(super) fn launch(on: &mut DeviceCall<'_>, begun: &Begun<'_>) -> Result<bool> {
    let Begun { call, operation, world, .. } = *begun;
    let meeting = &on.side.meeting;
    if !meeting.is_led() {
        return Ok(false);
    }
    let ranks = meeting.device_ranks();
    let leads = ranks.first[ranks.me] == DeviceRanks::LEADER;
    let absent_ranks: Vec<Rank> =
        if ranks.me == DeviceRanks::LEADER { ranks.absent().map(Rank::new).collect() } else { Vec::new() };
    // No process addresses users' buffers on another device.
    let windows = if ranks.waits { Windows::Scratch } else { Windows::User };
    // The leader knows neither another rank's scalar nor its counts.
    let own_words = matches!(call.op, Some(ReduceOp::PreMulSum(_))) || call.collective.is_messages();
    let choice = if own_words { None } else { on.side.chooser.direct(call)? };
    let Some(choice) = choice else { return Ok(false) };
    let stages = Stages::new(call, world, side_layout::stage_bytes(on.given.session.settings.sizes.scratch_bytes));
    for piece in 0..stages.pieces() {
        let folding = Reduction { data_type: call.data_type, op: call.op, world: world.size };
        let staged = CallPiece { call, stages: &stages, piece, choice, windows };
        let (bases, mut across) = place_piece(on.side, &staged, (world.rank, leads));
        let lowered = match leads {
            true => lowered_piece(on.side, &staged, (world.rank, bases))?,
            false => lower::plan(&[], Windows::None),
        };
        let labels = vec![operation.label()];
        let mut absent = Vec::with_capacity(absent_ranks.len());
        for rank in &absent_ranks {
            let sides = stages.sides(*rank, piece).map(|side| side.stage);
            let stage = on.side.stage_of(*rank);
            let bases = sides.map(|offset| stage + offset);
            absent.push((*rank, bases, lowered_piece(on.side, &staged, (*rank, bases))?));
        }
        let side = &*on.side;
        let part_of = |rank: Rank, bases: [u64; 2], lowered: &Lowered| LaunchPart {
            bases: vec![bases[0], bases[1], side.peers[rank.index()].scratch],
            ..side.part(rank, lowered, (folding, labels.clone()))
        };
        across.absent = absent.iter().map(|(rank, bases, lowered)| part_of(*rank, *bases, lowered)).collect();
        let mut part = LaunchPart { across: Some(across), ..part_of(world.rank, bases, &lowered) };
        part.keep.extend(call.buffers.kept());
        on.launch_collective(part, operation)?;
    }
    Ok(true)
}

/// Where this rank's input and output of a piece lie for the launch, and the copies to and from its stage.
fn place_piece(side: &DeviceSide, staged: &CallPiece<'_>, (me, leads): (Rank, bool)) -> ([u64; 2], Across) {
    let stage = side.stage_of(me);
    let (input, output) = staged.call.buffers.places();
    let users = [input, output].map(|place| place.addr() as u64);
    let sides = staged.stages.sides(me, staged.piece);
    // The leader's process reaches its own users' buffers: it needs a stage only for blocks that lie apart.
    let in_place = |side: &StagedSide| leads && side.is_whole();
    let place = |side: usize| match in_place(&sides[side]) {
        true => users[side] + sides[side].start(),
        false => stage + sides[side].stage,
    };
    let copies = |side: usize| {
        let staged = (!in_place(&sides[side])).then(|| sides[side].copies()).into_iter().flatten();
        staged.map(move |(user, at, bytes)| (users[side] + user, stage + at, bytes)).collect::<Vec<_>>()
    };
    let before = copies(0).into_iter().map(|(user, at, bytes)| StageCopy { from: user, to: at, bytes });
    let after = copies(1).into_iter().map(|(user, at, bytes)| StageCopy { from: at, to: user, bytes });
    let across = Across { before: before.collect(), after: after.collect(), absent: Vec::new() };
    ([place(0), place(1)], across)
}

/// The records of a rank's program for a piece, with its input and output at these places.
fn lowered_piece(side: &mut DeviceSide, staged: &CallPiece<'_>, (rank, places): (Rank, [u64; 2])) -> Result<Lowered> {
    let (home, chooser) = (side.home, &mut side.chooser);
    let CallPiece { stages, piece, choice, windows, .. } = *staged;
    let plan = |call: &Call<'_>| chooser.led_program(rank, call, (choice, windows));
    let program = stages.planned((rank, piece), (places, home), plan)?;
    let lowered = program.lowered();
    if lowered.steps.ends.is_empty() {
        return Ok(lowered);
    }
    Err(Error::internal("a direct plan that needs connections"))
}

/// A piece of a call.
#[derive(Debug, Clone, Copy)]
struct CallPiece<'a> {
    call: &'a Call<'a>,
    stages: &'a Stages<'a>,
    piece: u64,
    choice: Choice,
    windows: Windows,
}
