//! Messages between GPUs: small ones by LL, whose words carry their flags, or by LL128; longer ones by Simple. What is
//! chosen, every length, order, replays, weak memory, and ends that differ. Nothing is left on a GPU. How the words of a
//! message lie is a test of `src/device/cuda/tests/lines.rs`.

use crate::matrix::gpu::{must_pass, must_pass_with, seeds_of_weak_memory};
use machine::gpus::enough;

/// What the log says with these variables.
fn told(machine: &str, test: &str, variables: &[(&str, &str)]) -> String {
    let debug = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "TUNING")];
    must_pass_with(machine, &format!("gpu_messages::{test}"), &[&debug, variables].concat())
}

/// Which protocols a message to rank 1 goes by, where the setting has this value: of 16,384 bytes and of one more.
#[test]
fn the_protocol_of_a_message_follows_its_bytes_and_the_settings() {
    let cases = [
        ("2-nvswitch", ("NCCL_PROTO", ""), ["LL", "Simple"]),
        ("2-nvswitch", ("NCCL_PROTO", "^LL"), ["LL128", "Simple"]),
        ("2-nvswitch", ("NCCL_PROTO", "LL128"), ["LL128", "Simple"]),
        ("2-nvswitch", ("NCCL_PROTO", "Simple"), ["Simple", "Simple"]),
        ("2-nvswitch", ("NCCL_PROTO", "LL;send:Simple"), ["Simple", "Simple"]),
        ("2-nvswitch", ("NCCL_P2P_LL_THRESHOLD", "16385"), ["LL", "LL"]),
        ("2-nvswitch", ("NCCL_P2P_LL_THRESHOLD", "0"), ["Simple", "Simple"]),
        ("4-pcie", ("NCCL_PROTO", ""), ["LL", "Simple"]),
        ("4-pcie", ("NCCL_PROTO", "^LL"), ["Simple", "Simple"]),
        // A wish that the devices cannot fulfil leaves what they have.
        ("4-pcie", ("NCCL_PROTO", "LL128"), ["LL", "Simple"]),
    ];
    for (machine, setting, protocols) in cases {
        let text = told(machine, "pair::on_two_messages_of_two_lengths", &[setting]);
        for (bytes, protocol) in [16_384, 16_385].into_iter().zip(protocols) {
            for line in [
                format!("Send: {bytes} Bytes to rank 1 -> proto {protocol}\n"),
                format!("Recv: {bytes} Bytes from rank 0 -> proto {protocol}\n"),
            ] {
                assert!(text.contains(&line), "{machine}, {setting:?}, {line}:\n{text}");
            }
        }
    }
}

/// Collectives that are made of messages, and scans.
#[test]
fn what_is_made_of_messages_goes_by_lines_too() {
    let text = told("2-nvswitch", "pair::on_two_calls_made_of_messages", &[("NCCL_PROTO", "")]);
    for line in [
        "GatherV: 64 Bytes from rank 1 -> proto LL\n",
        "ScatterV: 64 Bytes to rank 1 -> proto LL\n",
        "AllToAllV: 64 Bytes to rank 1 -> proto LL\n",
        "Scan: 64 Bytes -> proto LL\n",
        "Exscan: 64 Bytes -> proto LL\n",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    let simple = "Simple;gather_v:Simple;scan:Simple;exscan:Simple";
    let text = told("2-nvswitch", "pair::on_two_calls_made_of_messages", &[("NCCL_PROTO", simple)]);
    assert!(text.contains("Scan: 64 Bytes -> proto Simple\n") && !text.contains("proto LL"), "{text}");
}

/// Both kinds of lines, in the receiver's memory or in the host's, and slots at the sender.
#[test]
fn messages_of_every_length_arrive() {
    for (machine, setting) in [
        ("2-nvswitch", ("NCCL_PROTO", "")),
        ("2-nvswitch", ("NCCL_PROTO", "^LL")),
        ("2-nvswitch", ("NCCL_P2P_LL_THRESHOLD", "40000")),
        ("2-nvswitch", ("NCCL_P2P_READ_ENABLE", "1")),
        ("4-pcie", ("NCCL_PROTO", "")),
    ] {
        must_pass_with(machine, "gpu_messages::pair::on_two_every_length", &[setting]);
    }
}

/// A block that polls a message of one lane cannot work on another: all messages of a rank have one block.
#[test]
fn messages_that_share_a_block_do_not_wait_for_each_other() {
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/data/few-multiprocessors.toml");
    must_pass(machine, "gpu_messages::pair::on_two_mixed_lengths");
    must_pass(machine, "gpu_messages::pair::on_two_every_length");
}

#[test]
fn messages_of_both_formats_keep_their_order() {
    must_pass("2-nvswitch", "gpu_messages::pair::on_two_mixed_lengths");
    must_pass("2-nvswitch", "gpu_messages::pair::on_two_sends_go_ahead");
    must_pass("2-nvswitch", "gpu_messages::replayed::on_two");
}

#[test]
fn messages_go_round_rings() {
    must_pass("4-pcie", "gpu_messages::pair::on_four_rings");
    must_pass("8-nvswitch", "gpu_messages::pair::on_four_rings");
}

/// Stores become visible in another order with each seed; messages of both formats follow each other.
#[test]
fn weak_memory_tears_no_message() {
    for seed in seeds_of_weak_memory("gpu_messages::weak_memory") {
        let seed = seed.to_string();
        for proto in ["", "^LL"] {
            let variables = [("VCUDA_SEED", &*seed), ("NCCL_PROTO", proto)];
            must_pass_with("2-nvswitch", "gpu_messages::pair::on_two_a_sample", &variables);
        }
    }
}

#[test]
fn ends_that_take_different_protocols_are_told() {
    must_pass("2-nvswitch", "gpu_messages::wrong::on_two");
    must_pass_with("2-nvswitch", "gpu_messages::wrong::on_two", &[("NCCL_PROTO", "^LL")]);
    must_pass("4-pcie", "gpu_messages::wrong::on_two_counts");
}

/// Ranks of one host send to each other by LL though others are on another host, where collectives take slots.
#[test]
fn messages_inside_a_host_go_by_lines_though_there_is_another() {
    let text = told("4-nvswitch", "hosts::on_four", &[]);
    for line in [
        "GPU memory : LL is not used by collectives: rank 2 shares no memory of this host: between hosts there are slots alone\n",
        "Send: 64 Bytes to rank 1 -> proto LL\n",
        "Recv: 64 Bytes from rank 2 -> proto LL\n",
        "Send: 64 Bytes to rank 2 -> proto Simple\n",
        "Recv: 64 Bytes from rank 0 -> proto Simple\n",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
}

/// Whatever came of `body` on ranks with a stream each, on a GPU each; nothing where there are none.
fn on_gpus<T: Send>(
    ranks: u32,
    body: impl Fn(rsccl::Communicator, rsccl::comm::DeviceStream) -> rsccl::Result<T> + Sync,
) -> Vec<T> {
    if enough(ranks as usize, rsccl::internals::device::cuda::gpus()).is_none() {
        return Vec::new();
    }
    rsccl::local::run_with(ranks, &rsccl::Config::default().with_timeout(crate::TIMEOUT), |comm| {
        let stream = rsccl::comm::DeviceStream::new(comm.rank())?;
        body(comm, stream)
    })
    .expect("ranks start and end")
}

/// The bytes of message `number`, which `rank` sends.
fn bytes(length: usize, number: usize, rank: u32) -> Vec<u8> {
    (0..length).map(|place| (place * 7 + number * 31 + rank as usize * 101 + 1).to_le_bytes()[0]).collect()
}

pub(crate) mod pair {
    use rsccl::comm::{DeviceBuffer, DeviceStream};
    use rsccl::{Communicator, ReduceOp, Result, group};

    use super::{bytes, on_gpus};

    #[test]
    fn on_two_messages_of_two_lengths() {
        every_length(&[16_384, 16_385]);
    }

    /// None, one byte, around the words of LL and the lines of LL128, around the longest by lines.
    const LENGTHS: [usize; 22] = [
        0, 1, 2, 7, 8, 9, 15, 16, 17, 119, 120, 121, 127, 128, 129, 4_001, 16_376, 16_383, 16_384, 16_385, 16_511,
        33_333,
    ];

    #[test]
    fn on_two_every_length_arrives() {
        every_length(&LENGTHS);
    }

    fn every_length(lengths: &[usize]) {
        on_gpus(2, |comm, stream| exchange(&comm, &stream, lengths).and_then(|()| comm.finalize()));
    }

    /// Each length by a message of its own in each direction; buffers begin at odd bytes.
    pub(crate) fn exchange(comm: &Communicator, stream: &DeviceStream, lengths: &[usize]) -> Result<()> {
        let (me, other) = (comm.rank(), 1 - comm.rank());
        for (number, length) in lengths.iter().copied().enumerate() {
            let odd = number % 3;
            let (mut mine, mut theirs) = (stream.alloc::<u8>(length + 3)?, stream.alloc::<u8>(length + 3)?);
            stream.upload(&bytes(length, number, me), mine.slice_mut(odd..odd + length))?;
            stream.upload(&vec![0xee; length + 3], theirs.slice_mut(..))?;
            comm.on(stream).send_recv(
                mine.slice(odd..odd + length),
                other,
                theirs.slice_mut(odd..odd + length),
                other,
            )?;
            let mut found = vec![0; length + 3];
            stream.download(theirs.slice(..), &mut found)?;
            assert_eq!(found[odd..odd + length], bytes(length, number, other), "{length} bytes");
            assert!(found[..odd].iter().chain(&found[odd + length..]).all(|byte| *byte == 0xee), "{length} bytes");
        }
        Ok(())
    }

    #[test]
    fn on_two_calls_made_of_messages() {
        on_gpus(2, |comm, stream| {
            let (mut mine, mut out) = (stream.alloc::<u32>(16)?, stream.alloc::<u32>(32)?);
            stream.upload(&[comm.rank() + 1; 16], mine.slice_mut(..))?;
            let found = |out: &DeviceBuffer<u32>| -> Result<[u32; 32]> {
                let mut values = [0; 32];
                stream.download(out.slice(..), &mut values)?;
                Ok(values)
            };
            let both: [u32; 32] = std::array::from_fn(|place| if place < 16 { 1 } else { 2 });
            let (length, counts) = if comm.rank() == 0 { (32, &[16, 16][..]) } else { (0, &[][..]) };
            comm.on(&stream).gather_v(mine.slice(..), out.slice_mut(..length), counts, 0)?;
            if comm.rank() == 0 {
                assert_eq!(found(&out)?, both);
            }
            comm.on(&stream).scatter_v(out.slice(..length), mine.slice_mut(..), counts, 0)?;
            stream.upload(&[7; 32], out.slice_mut(..))?;
            comm.on(&stream).scan(mine.slice(..), out.slice_mut(..16), ReduceOp::Sum)?;
            comm.on(&stream).exscan(mine.slice(..), out.slice_mut(16..), ReduceOp::Sum)?;
            let sums: [u32; 32] = match comm.rank() {
                0 => std::array::from_fn(|place| if place < 16 { 1 } else { 7 }),
                _ => std::array::from_fn(|place| if place < 16 { 3 } else { 1 }),
            };
            assert_eq!(found(&out)?, sums);
            let twice = stream.alloc::<u32>(32)?;
            comm.on(&stream).all_to_all_v(twice.slice(..), out.slice_mut(..), (&[16, 16], &[16, 16]))?;
            assert_eq!(found(&out)?, [0; 32]);
            comm.finalize()
        });
    }

    /// Rounds of groups of messages of both formats, in both directions.
    #[test]
    fn on_two_mixed_lengths_in_one_group() {
        rounds(10, &[8, 20_000, 0, 16_384, 16_385, 1, 130, 9]);
    }

    /// The same with fewer rounds, for many seeds.
    #[test]
    fn on_two_a_sample_arrives() {
        rounds(3, &[9, 17_000, 0, 121, 1]);
    }

    fn rounds(rounds: usize, lengths: &[usize]) {
        on_gpus(2, |comm, stream| {
            let (me, other) = (comm.rank(), 1 - comm.rank());
            for round in 0..rounds {
                let mut ends = Vec::new();
                for (number, length) in lengths.iter().copied().enumerate() {
                    let (mut mine, theirs) = (stream.alloc::<u8>(length + 1)?, stream.alloc::<u8>(length + 1)?);
                    stream.upload(&bytes(length, number + round, me), mine.slice_mut(..length))?;
                    ends.push((length, mine, theirs));
                }
                group(|group| {
                    let mut on = group.on_stream(&comm, &stream);
                    ends.iter_mut().try_for_each(|(length, mine, theirs)| {
                        on.recv(theirs.slice_mut(..*length), other)?;
                        on.send(mine.slice(..*length), other)
                    })
                })?;
                for (number, (length, _, theirs)) in ends.iter().enumerate() {
                    let mut found = vec![0; *length];
                    stream.download(theirs.slice(..*length), &mut found)?;
                    let length = *length;
                    assert_eq!(found, bytes(length, number + round, other), "round {round}, {length} bytes");
                }
            }
            comm.finalize()
        });
    }

    /// A connection takes eight messages ahead of their receiver, whatever their format.
    #[test]
    fn on_two_sends_go_ahead_of_their_receivers() {
        on_gpus(2, |comm, stream| {
            let (me, other) = (comm.rank(), 1 - comm.rank());
            // Opens the connections.
            exchange(&comm, &stream, &[8])?;
            for length in [24, 20_000] {
                let mut ends = Vec::new();
                for number in 0..8 {
                    let (mut mine, theirs) = (stream.alloc::<u8>(length)?, stream.alloc::<u8>(length)?);
                    stream.upload(&bytes(length, number, me), mine.slice_mut(..))?;
                    ends.push((mine, theirs));
                }
                ends.iter().try_for_each(|(mine, _)| comm.on(&stream).send(mine.slice(..), other))?;
                ends.iter_mut().try_for_each(|(_, theirs)| comm.on(&stream).recv(theirs.slice_mut(..), other))?;
                for (number, (_, theirs)) in ends.iter().enumerate() {
                    let mut found = vec![0; length];
                    stream.download(theirs.slice(..), &mut found)?;
                    assert_eq!(found, bytes(length, number, other), "{length} bytes, message {number}");
                }
            }
            comm.finalize()
        });
    }

    /// Each rank sends to the right what it got from the left, more rounds than there are slots; the lengths change.
    #[test]
    fn on_four_rings_turn() {
        on_gpus(4, |comm, stream| {
            let (me, ranks) = (comm.rank(), comm.size());
            let (left, right) = ((me + ranks - 1) % ranks, (me + 1) % ranks);
            let (mut mine, mut got) = (stream.alloc::<u8>(20_000)?, stream.alloc::<u8>(20_000)?);
            stream.upload(&bytes(20_000, 0, me), mine.slice_mut(..))?;
            for round in 1..=20_u32 {
                let length = if round % 5 == 0 { 20_000 } else { 600 };
                comm.on(&stream).send_recv(mine.slice(..length), right, got.slice_mut(..length), left)?;
                let mut found = vec![0; length];
                stream.download(got.slice(..length), &mut found)?;
                let origin = (me + ranks * round - round) % ranks;
                assert_eq!(found[..600], bytes(600, 0, origin), "round {round} of rank {me}");
                stream.upload(&bytes(20_000, 0, origin), mine.slice_mut(..))?;
            }
            comm.finalize()
        });
    }
}

/// Ranks that take each other for those of two hosts.
mod hosts {
    use rsccl::comm::DeviceStream;
    use rsccl::internals::device::cuda;
    use rsccl::{Communicator, Config, Result, group};

    use super::{bytes, enough};
    use crate::{TIMEOUT, each_with};

    #[test]
    fn on_four_messages_go_inside_hosts_and_between() {
        if enough(4, cuda::gpus()).is_none() {
            return;
        }
        let config =
            |host: &str| Config::default().with_timeout(TIMEOUT).with_socket_interfaces("lo").with_host_id(host);
        let configs = ["one", "one", "two", "two"].map(config);
        let ended = each_with(&configs, |comm: Communicator| -> Result<()> {
            let (me, stream) = (comm.rank(), DeviceStream::new(comm.rank())?);
            let peers = (0..4).filter(|peer| *peer != me);
            let mut ends = Vec::new();
            for peer in peers {
                let (mut mine, theirs) = (stream.alloc::<u8>(64)?, stream.alloc::<u8>(64)?);
                stream.upload(&bytes(64, peer as usize, me), mine.slice_mut(..))?;
                ends.push((peer, mine, theirs));
            }
            for _ in 0..10 {
                group(|group| {
                    let mut on = group.on_stream(&comm, &stream);
                    ends.iter_mut().try_for_each(|(peer, mine, theirs)| {
                        on.send(mine.slice(..), *peer)?;
                        on.recv(theirs.slice_mut(..), *peer)
                    })
                })?;
            }
            for (peer, _, theirs) in &ends {
                let mut found = [0; 64];
                stream.download(theirs.slice(..), &mut found)?;
                assert_eq!(found[..], bytes(64, me as usize, *peer), "from rank {peer}");
            }
            comm.finalize()
        });
        ended.expect("ranks start and end");
    }
}

/// Captured messages between live ones.
mod replayed {
    use std::sync::Barrier;

    use cudarc::driver::CudaContext;
    use rsccl::comm::DeviceStream;
    use rsccl::group;
    use rsccl::internals::device::cuda;

    use super::{bytes, on_gpus};
    use crate::matrix::gpu::streams::{begin_beside, end, nothing_is_left};

    /// Words of LL, lines, and slots.
    const LENGTHS: [usize; 3] = [40, 17_000, 0];
    const TURNS: usize = 1_000;

    /// A graph of messages of both formats in both directions runs a thousand times, with live messages between; more
    /// turns than any slot has.
    #[test]
    fn on_two_messages_replay_a_thousand_times_between_live_ones() {
        let meeting = Barrier::new(2);
        on_gpus(2, |comm, _| {
            let (me, other) = (comm.rank(), 1 - comm.rank());
            let context = CudaContext::new(me as usize).expect("the primary context");
            let own = [context.new_stream().expect("a stream")];
            let stream = DeviceStream::from_cudarc(&own[0])?;
            let allocate = |length: usize| stream.alloc::<u8>(length + 1);
            let mut captured = Vec::new();
            for (number, length) in LENGTHS.into_iter().enumerate() {
                let (mut mine, theirs) = (allocate(length)?, allocate(length)?);
                stream.upload(&bytes(length, number, me), mine.slice_mut(..length))?;
                captured.push((length, mine, theirs));
            }
            let (mut live, mut got) = (allocate(100)?, allocate(100)?);
            // The set-up takes the host: live calls before.
            comm.on(&stream).send_recv(live.slice(..100), other, got.slice_mut(..100), other)?;
            stream.synchronize()?;
            meeting.wait();
            begin_beside(&own[0]);
            group(|group| {
                let mut on = group.on_stream(&comm, &stream);
                captured.iter_mut().try_for_each(|(length, mine, theirs)| {
                    on.send(mine.slice(..*length), other)?;
                    on.recv(theirs.slice_mut(..*length), other)
                })
            })?;
            let graph = end(&own);
            meeting.wait();
            for turn in 0..TURNS / 100 {
                (0..100).for_each(|_| graph.launch().expect("a launch"));
                stream.upload(&bytes(100, turn, me), live.slice_mut(..100))?;
                comm.on(&stream).send_recv(live.slice(..100), other, got.slice_mut(..100), other)?;
                let mut found = [0; 100];
                stream.download(got.slice(..100), &mut found)?;
                assert_eq!(found[..], bytes(100, turn, other), "turn {turn}");
            }
            for (number, (length, _, theirs)) in captured.iter().enumerate() {
                let mut found = vec![0; *length];
                stream.download(theirs.slice(..*length), &mut found)?;
                assert_eq!(found, bytes(*length, number, other), "{length} bytes");
            }
            drop((captured, live, got, stream));
            comm.finalize()?;
            meeting.wait();
            drop((graph, own, context));
            Ok(())
        });
        if cuda::gpus().is_ok() {
            nothing_is_left();
        }
    }
}

/// Ends that differ, and ends that never come.
mod wrong {
    use rsccl::comm::DeviceStream;
    use rsccl::error::Kind;
    use rsccl::internals::sys::clock::now;
    use rsccl::{Communicator, Error, ReduceOp, Result, group};

    use super::on_gpus;
    use crate::TIMEOUT;

    const LONG: usize = 20_000;

    /// Rank 0 sends messages of these counts, and rank 1 receives others; `beside` them each gets one more from the
    /// other, so that their blocks have several lanes. Both ranks name both calls.
    fn differ(sent: &[usize], received: &[usize], beside: bool, named: [&str; 2]) {
        let told = on_gpus(2, |comm, stream| {
            let me = comm.rank();
            let mut buffers = (0..4).map(|_| stream.alloc::<u8>(LONG)).collect::<Result<Vec<_>>>()?;
            stream.upload(&[7; LONG], buffers[0].slice_mut(..))?;
            // Collectives have numbers too, which are not those of messages.
            comm.on(&stream).barrier()?;
            let counts = if me == 0 { sent } else { received };
            let mut rest = buffers.iter_mut();
            let back = rest.next().filter(|_| beside);
            group(|group| {
                let mut on = group.on_stream(&comm, &stream);
                for (count, buffer) in counts.iter().zip(rest) {
                    match me {
                        0 => on.send(buffer.slice(..*count), 1)?,
                        _ => on.recv(buffer.slice_mut(..*count), 0)?,
                    }
                }
                match back {
                    Some(back) if me == 0 => on.recv(back.slice_mut(..64), 1),
                    Some(back) => on.send(back.slice(..64), 0),
                    None => Ok(()),
                }
            })?;
            ended(&comm, &stream)
        });
        for error in told {
            assert_eq!(error.kind(), Kind::Mismatch, "{error}");
            let text = error.to_string();
            assert!(named.iter().all(|words| text.contains(words)), "{named:?}: {text}");
        }
    }

    /// What has ended the communicator. A sender whose message went ahead learns of it when it waits in a later call.
    fn ended(comm: &Communicator, stream: &DeviceStream) -> Result<Error> {
        let deadline = now() + TIMEOUT;
        loop {
            if let Err(error) = comm.on(stream).barrier().and_then(|()| stream.synchronize()) {
                // Streams return it until the program has it from the communicator.
                assert!(comm.async_error().is_some(), "{error}");
                return Ok(error);
            }
            assert!(now() < deadline, "the communicator has ended");
        }
    }

    #[test]
    fn on_two_counts_differ_across_the_threshold() {
        let (short, long, none) =
            ("send #0 (count 64, uint8", "send #0 (count 20000, uint8", "send #0 (count 0, uint8");
        for beside in [false, true] {
            differ(&[64], &[LONG], beside, [short, long]);
            differ(&[LONG], &[64], beside, [short, long]);
        }
        differ(&[0], &[LONG], false, [none, long]);
        differ(&[64], &[0], false, [short, none]);
    }

    /// The messages in the other order: of the first, each end takes another protocol, and the second fits neither.
    /// Which of them is seen first is open.
    #[test]
    fn on_two_messages_are_received_in_another_order() {
        differ(&[64, LONG], &[LONG, 64], false, ["called send #0 (count 20000, uint8", "rank 0 called send #"]);
        differ(&[LONG, 64], &[64, LONG], true, ["called send #0 (count 64, uint8", "rank 0 called send #"]);
    }

    #[test]
    fn on_two_types_differ() {
        let told = on_gpus(2, |comm, stream| {
            let (mut values, mut words) = (stream.alloc::<f32>(64)?, stream.alloc::<u8>(64)?);
            stream.upload(&[7; 64], words.slice_mut(..))?;
            match comm.rank() {
                0 => comm.on(&stream).send(values.slice(..), 1)?,
                _ => comm.on(&stream).recv(words.slice_mut(..), 0)?,
            }
            let error = ended(&comm, &stream)?;
            let mut found = [0; 64];
            stream.download(words.slice(..), &mut found)?;
            assert_eq!(found, [7; 64], "nothing of another call is stored");
            stream.upload(&[0.0; 64], values.slice_mut(..))?;
            Ok(error)
        });
        for error in told {
            let (kind, text) = (error.kind(), error.to_string());
            assert!(kind == Kind::Mismatch && text.contains("float") && text.contains("uint8"), "{text}");
        }
    }

    /// A kernel that polls the words of a message ends when its communicator is aborted; other work on the GPU goes on.
    #[test]
    fn on_two_an_abort_ends_a_kernel_that_polls_lines() {
        let told = on_gpus(2, |comm, stream| {
            let mut buffers = [stream.alloc::<u8>(64)?, stream.alloc::<u8>(64)?];
            let second = comm.split(Some(0), i64::from(comm.rank()))?.expect("both ranks");
            comm.on(&stream).barrier()?;
            let own = DeviceStream::new(comm.rank())?;
            if comm.rank() == 1 {
                let [one, other] = &mut buffers;
                // One lane, which polls the words themselves.
                comm.on(&stream).recv(one.slice_mut(..), 0)?;
                comm.on(&stream).recv(other.slice_mut(..), 0)?;
            }
            // Rank 1's kernel is on its GPU when this has run.
            second.on(&own).all_reduce_in_place(own.alloc::<u32>(4)?.slice_mut(..), ReduceOp::Sum)?;
            own.synchronize()?;
            if comm.rank() == 0 {
                comm.abort_handle().abort("enough");
            }
            let error = ended(&comm, &stream)?;
            stream.synchronize()?;
            second.on(&own).barrier()?;
            own.synchronize()?;
            second.finalize()?;
            Ok(error.kind())
        });
        assert!(told.iter().all(|kind| matches!(kind, Kind::Aborted | Kind::Remote)), "{told:?}");
    }
}
