//! `NCCL_DEBUG=TRACE NCCL_DEBUG_SUBSYS=CALL`: the lines are enough to repeat a program's calls. The log is the
//! process's, so this file has one test.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rsccl::config::{Config, DebugLevel, SubsystemSet};
use rsccl::types::{Element, Scalar};
use rsccl::{Communicator, ReduceOp, Result, local};

const RANKS: u32 = 3;

/// One of each kind of call, with messages whose order needs no other thread.
fn program(comm: &Communicator) -> Result<()> {
    let (me, n) = (comm.rank() as usize, RANKS as usize);
    let (mut one, mut all) = ([0f32; 4], [0f32; 12]);
    comm.all_reduce(&[1f32; 4], &mut one, ReduceOp::Max)?;
    comm.all_reduce_in_place(&mut one, ReduceOp::PreMulSum(Scalar::Float(0.5 + me as f64)))?;
    comm.broadcast(&mut one, 2)?;
    comm.reduce(&[1i32, 2], &mut [0i32; 2], ReduceOp::BitXor, 1)?;
    comm.all_gather(&one, &mut all)?;
    comm.reduce_scatter(&all, &mut one, ReduceOp::Sum)?;
    comm.all_to_all(&[7i32; 3], &mut [0i32; 3])?;
    comm.gather(&one, &mut all, 0)?;
    comm.scatter(&all, &mut one, 0)?;
    comm.barrier()?;
    let counts = [1, 0, 2];
    comm.all_gather_v(&one[..counts[me]], &mut all[..3], &counts)?;
    comm.reduce_scatter_v(&all[..3], &mut one[..counts[me]], &counts, ReduceOp::Min)?;
    // Rank r sends r + d elements to rank d.
    let sends: Vec<usize> = (0..n).map(|to| me + to).collect();
    comm.all_to_all_v(&vec![7i32; sends.iter().sum()], &mut vec![0i32; sends.iter().sum()], (&sends, &sends))?;
    // To this rank itself, which no connection carries.
    comm.send_recv(&[3f32], comm.rank(), &mut one[..1], comm.rank())?;
    match me {
        0 => comm.send(&[1f32, 2.0], 1)?,
        1 => comm.recv(&mut one[..2], 0)?,
        _ => {}
    }
    if let Some(half) = comm.split((me != 1).then_some(4), -(me as i64))? {
        half.all_reduce(&[7i32], &mut [0i32], ReduceOp::Sum)?;
        half.finalize()?;
    }
    Ok(())
}

/// A line: the call's name and its arguments.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    name: String,
    arguments: Vec<String>,
}

impl Line {
    fn parse(text: &str) -> Line {
        let (name, rest) = text.split_once('(').expect("a call");
        let (mut depth, mut arguments) = (0, vec![String::new()]);
        for letter in rest.strip_suffix(')').expect("a closed call").chars() {
            match letter {
                '[' | '(' => depth += 1,
                ']' | ')' => depth -= 1,
                _ => {}
            }
            match letter {
                ',' if depth == 0 => arguments.push(String::new()),
                letter => arguments.last_mut().expect("never empty").push(letter),
            }
        }
        Line { name: name.to_owned(), arguments }
    }

    fn number(&self, place: usize) -> usize {
        self.arguments[place].parse().expect("a number")
    }

    fn counts(&self, place: usize) -> Vec<usize> {
        let bare = self.arguments[place].trim_matches(['[', ']']);
        bare.split(',').map(|number| number.parse().expect("a count")).collect()
    }

    fn in_place(&self) -> bool {
        self.arguments[0] == self.arguments[1]
    }

    fn op(&self) -> ReduceOp {
        let text = &self.arguments[4];
        let scalar = text.strip_prefix("mulsum(").and_then(|rest| rest.strip_suffix(')'));
        match scalar {
            Some(scalar) => ReduceOp::PreMulSum(Scalar::Float(scalar.parse().expect("a float"))),
            None => *ReduceOp::PLAIN.iter().find(|op| op.name() == text).expect("an operator"),
        }
    }
}

/// Repeats one rank's calls.
fn replay(world: Communicator, lines: &[Line]) -> Result<()> {
    let first = lines.first().expect("a rank says that it has begun");
    assert_eq!((&*first.name, first.number(1), first.number(2)), ("CommInitRank", 3, world.rank() as usize));
    let mut comms = HashMap::from([(first.arguments[0].clone(), world)]);
    for line in &lines[1..] {
        match &*line.name {
            "CommSplit" => {
                let color = line.arguments[1].parse::<i64>().expect("a number");
                let color = (color >= 0).then(|| u32::try_from(color).expect("a color"));
                let child = comms[&line.arguments[0]].split(color, line.arguments[2].parse().expect("a key"))?;
                comms.extend(child.map(|child| (line.arguments[3].clone(), child)));
            }
            "CommFinalize" => comms.remove(&line.arguments[0]).expect("a communicator").finalize()?,
            _ => {
                let comm = &comms[&line.arguments[6]];
                match &*line.arguments[3] {
                    "float" => repeat::<f32>(comm, line)?,
                    "int32" => repeat::<i32>(comm, line)?,
                    "uint8" => repeat::<u8>(comm, line)?,
                    other => panic!("the program has no {other}"),
                }
            }
        }
    }
    Ok(())
}

fn repeat<T: Element + Default>(comm: &Communicator, line: &Line) -> Result<()> {
    let room = |count: usize| vec![T::default(); count];
    let (n, root) = (comm.size() as usize, u32::try_from(line.number(5)).expect("a rank"));
    if let "AllGatherV" | "ReduceScatterV" = &*line.name {
        let counts = line.counts(2);
        let (mut mine, mut all) = (room(counts[comm.rank() as usize]), room(counts.iter().sum()));
        return match &*line.name {
            "AllGatherV" => comm.all_gather_v(&mine, &mut all, &counts),
            _ => comm.reduce_scatter_v(&all, &mut mine, &counts, line.op()),
        };
    }
    if line.name == "AllToAllV" {
        let (sends, recvs) = line.arguments[2].split_once('/').expect("two lists");
        let of = |text: &str| Line { name: String::new(), arguments: vec![text.to_owned()] }.counts(0);
        let (sends, recvs) = (of(sends), of(recvs));
        return comm.all_to_all_v(&room(sends.iter().sum()), &mut room(recvs.iter().sum()), (&sends, &recvs));
    }
    let count = line.number(2);
    let (mut one, mut all) = (room(count), room(count * n));
    match &*line.name {
        "AllReduce" if line.in_place() => comm.all_reduce_in_place(&mut one, line.op()),
        "AllReduce" => comm.all_reduce(&room(count), &mut one, line.op()),
        "Broadcast" => comm.broadcast(&mut one, root),
        "Reduce" => comm.reduce(&room(count), &mut one, line.op(), root),
        "AllGather" => comm.all_gather(&one, &mut all),
        "ReduceScatter" => comm.reduce_scatter(&all, &mut one, line.op()),
        "AllToAll" => comm.all_to_all(&all, &mut room(count * n)),
        "Gather" => comm.gather(&one, &mut all, root),
        "Scatter" => comm.scatter(&all, &mut one, root),
        "Barrier" => comm.barrier(),
        // A message to this rank itself: both lines stand for one call.
        "Send" if root == comm.rank() => comm.send_recv(&one, root, &mut room(count), root),
        "Recv" if root == comm.rank() => Ok(()),
        "Send" => comm.send(&one, root),
        "Recv" => comm.recv(&mut one, root),
        other => panic!("no call is named {other}"),
    }
}

/// Lines of each rank without what differs from run to run: communicators by the order in which they come, addresses
/// left out.
fn plain(lines: &[Vec<Line>]) -> Vec<Vec<Line>> {
    let plain_line = |line: &Line, seen: &mut Vec<String>| {
        let mut line = line.clone();
        for argument in &mut line.arguments {
            if argument.len() == 16 && argument.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                let place = seen.iter().position(|known| known == argument).unwrap_or(seen.len());
                if place == seen.len() {
                    seen.push(argument.clone());
                }
                *argument = format!("comm {place}");
            }
        }
        if line.arguments.len() == 7 {
            line.arguments.drain(..2);
        }
        line
    };
    let of_rank = |lines: &Vec<Line>| {
        let mut seen = Vec::new();
        lines.iter().map(|line| plain_line(line, &mut seen)).collect()
    };
    lines.iter().map(of_rank).collect()
}

/// Runs `body` on three ranks; the lines of each, in rank order. Each rank is a thread: a line's thread says whose it
/// is, also where it is about a child, in which the rank has another number.
fn lines_of(body: impl Fn(Communicator) -> Result<()> + Sync) -> Vec<Vec<Line>> {
    let config = Config::default()
        .with_debug(DebugLevel::Trace)
        .with_debug_subsystems(SubsystemSet::parse("CALL").expect("a subsystem"));
    let lines: Arc<Mutex<HashMap<String, Vec<Line>>>> = Arc::default();
    let kept = Arc::clone(&lines);
    rsccl::log::redirect(Some(Box::new(move |line| {
        let Some((who, text)) = line.printed.trim_end().split_once(" RSCCL CALL ") else { return };
        let thread = who.split(' ').next().unwrap_or_default().to_owned();
        kept.lock().expect("no holder panics").entry(thread).or_default().push(Line::parse(text));
    })));
    let result = local::run_with(RANKS, &config, body);
    rsccl::log::redirect(None);
    result.expect("the calls succeed");
    let mut ranks: Vec<Vec<Line>> = lines.lock().expect("no holder panics").drain().map(|(_, lines)| lines).collect();
    ranks.sort_by_key(|lines| lines[0].number(2));
    ranks
}

#[test]
fn the_lines_of_calls_are_enough_to_repeat_them() {
    let first = lines_of(|comm| program(&comm).and_then(|()| comm.finalize()));
    let counts: Vec<usize> = first.iter().map(Vec::len).collect();
    // The beginning, the collectives, a message to the rank itself, perhaps one to another, the split, perhaps a call
    // and the end of the half, the end.
    assert_eq!(counts, [1 + 13 + 2 + 1 + 1 + 2 + 1, 1 + 13 + 2 + 1 + 1 + 1, 1 + 13 + 2 + 1 + 2 + 1], "{first:#?}");
    let again = lines_of(|comm| {
        let rank = comm.rank() as usize;
        replay(comm, &first[rank])
    });
    assert_eq!(plain(&again), plain(&first));

    // A request to the own rank: it says both its lines, as a call does above.
    let threads = lines_of(|comm| {
        let (mine, mut own) = ([3f32], [0f32]);
        comm.scope(|scope| scope.send_recv(&mine, comm.rank(), &mut own, comm.rank())?.wait())?;
        assert_eq!(own, mine);
        comm.finalize()
    });
    let is_message = |line: &&Line| ["Send", "Recv"].contains(&&*line.name);
    let named = |lines: &Vec<Line>| {
        lines.iter().filter(is_message).map(|line| (line.name.to_string(), line.number(5))).collect::<Vec<_>>()
    };
    let mut named: Vec<_> = threads.iter().map(named).collect();
    named.sort_by_key(|lines| lines.first().map(|(_, rank)| *rank));
    let pair = |rank| vec![("Send".to_owned(), rank), ("Recv".to_owned(), rank)];
    assert_eq!(named, (0..3).map(pair).collect::<Vec<_>>());
}
