//! Long messages that go straight between memory of both ends.

use super::*;

/// A NIC that can sends from the caller's memory into the caller's memory: in a message that a slot holds, and in one
/// that the ring announces because none does.
#[test]
fn messages_go_straight_from_memory_to_memory() {
    for (late, shy) in [(1, u64::MAX), (4, 3), (2, 5)] {
        for bytes in [STRAIGHT_SIZES.start, 1 << 20, (1 << 20) + 1, 3 << 20] {
            let ((mut outbox, mut send), (mut receive, mut inbox)) =
                pumped(Manners { late, shy, ..Manners::STRAIGHT }).unwrap();
            // Whatever lies in the ring goes before it.
            assert!(publish(&mut outbox, &content(0, 70_000), label(0)));
            let (from, mut into) = (content(1, bytes), vec![0u8; bytes]);
            let (start, place) = (NonNull::from(&from[..]).cast(), NonNull::from(&mut into[..]).cast());
            let (expected, mut sent, mut held) = ((bytes, label(1)), None, None);
            let (mut first, mut is_announced) = (None, bytes <= SHAPE.slot_bytes as usize);
            turns(|| {
                send.progress()?;
                if first.is_none() {
                    receive.progress()?;
                    first = taken(&mut inbox);
                    return Ok(None);
                }
                if sent.is_none() {
                    // SAFETY: `from` outlives what is kept of it.
                    sent = unsafe { send.hand_over(start, expected) }?;
                }
                if !is_announced {
                    receive.progress()?;
                    is_announced = taken(&mut inbox).inspect(|told| assert!(*told == (Vec::new(), label(1)))).is_some();
                    return Ok(None);
                }
                // SAFETY: `into` outlives what is kept of it.
                let taken = unsafe { receive.take(place, expected, &mut held) }?;
                Ok((taken == Taken::Whole).then_some(()))
            })
            .unwrap();
            assert!(first.unwrap() == (content(0, 70_000), label(0)));
            assert!(held.unwrap().is_over() && into == content(1, bytes) && inbox.peek().unwrap().is_none());
            turns(|| {
                send.progress()?;
                Ok(send.drained().then_some(()))
            })
            .unwrap();
            assert!(sent.unwrap().is_over());
        }
    }
}

/// What follows a message that goes into the caller's memory comes meanwhile, and is seen after it.
#[test]
fn messages_behind_one_that_is_taken_wait_in_their_slots() {
    let ((mut outbox, mut send), (mut receive, mut inbox)) = pumped(Manners::STRAIGHT).unwrap();
    let sizes = [200_000, 300_000];
    (0..2).for_each(|number| assert!(publish(&mut outbox, &content(number, sizes[number]), label(number))));
    let (mut into, mut hold) = (vec![0u8; sizes[0]], None);
    let place = NonNull::from(&mut into[..]).cast();
    turns(|| {
        send.progress()?;
        // SAFETY: `into` outlives what is kept of it.
        let is_whole = unsafe { receive.take(place, (sizes[0], label(0)), &mut hold) }? == Taken::Whole;
        assert!(inbox.peek()?.is_none());
        Ok(is_whole.then_some(()))
    })
    .unwrap();
    let next = turns(|| {
        send.progress()?;
        receive.progress()?;
        Ok(taken(&mut inbox))
    });
    assert!(into == content(0, sizes[0]) && next.unwrap() == (content(1, sizes[1]), label(1)));
}

/// A call that ends early closes the NIC before its memory goes back, at whichever end.
#[test]
fn memory_that_a_nic_has_goes_back_when_the_nic_is_closed() {
    for is_sender in [true, false] {
        let nics = [(); 2].map(|()| TestNic::new(Manners::STRAIGHT));
        let ((mut outbox, mut send), (mut receive, _inbox)) = pumped_over(connected_over(&nics).unwrap());
        let bytes = 100_000;
        let (from, mut into, mut held) = (content(1, bytes), vec![0u8; bytes], None);
        if is_sender {
            let start = NonNull::from(&from[..]).cast();
            // SAFETY: `from` outlives what is kept of it.
            held = Some(turns(|| unsafe { send.hand_over(start, (bytes, label(1))) }).unwrap());
        } else {
            assert!(publish(&mut outbox, &from, label(1)));
            let place = NonNull::from(&mut into[..]).cast();
            turns(|| {
                send.progress()?;
                // SAFETY: `into` outlives what is kept of it.
                assert!(unsafe { receive.take(place, (bytes, label(1)), &mut held) }? != Taken::Whole);
                Ok(held.is_some().then_some(()))
            })
            .unwrap();
        }
        let hold = held.unwrap();
        assert!(!hold.is_over());
        assert_eq!(nics.each_ref().map(TestNic::closed), [0, 0]);
        drop(hold);
        assert_eq!(nics.each_ref().map(TestNic::closed), [u64::from(is_sender), u64::from(!is_sender)]);
        let error = if is_sender { send.progress().unwrap_err() } else { receive.progress().unwrap_err() };
        assert!(error.message().contains("a call ended while a NIC had memory of it"), "{error}");
    }
}

/// A receive of a rest for which the NIC had no room is tried again soon, whatever the NIC's descriptor tells.
#[test]
fn nobody_sleeps_who_has_a_receive_of_a_rest_to_post() {
    let ((mut outbox, mut send), (mut receive, mut inbox)) =
        pumped(Manners { is_ready: true, late: 1, shy: 2, ..Manners::STRAIGHT }).unwrap();
    let (mut sent, mut came, mut later) = (0, 0, 0);
    turns(|| {
        sent += usize::from(sent == came && publish(&mut outbox, &content(sent, 100_000), label(sent)));
        send.progress()?;
        receive.progress()?;
        came += usize::from(taken(&mut inbox).is_some());
        if receive.lacks_rest() {
            later += 1;
            assert!(matches!(receive.sleep()?, PumpSleep::Ask));
        }
        Ok((came == 40).then_some(()))
    })
    .unwrap();
    assert!(later > 0, "its NIC always had room");
}

/// A NIC that fails at any call of any step has given its memory back, or it is closed when the call ends.
#[test]
fn a_message_that_goes_straight_and_fails_leaves_no_memory_with_a_nic() {
    let (mut failed, mut closed) = (0, 0);
    let calls = (10..110).flat_map(|call| [(0, (call, u64::MAX)), (1, (call, u64::MAX))]);
    // Sends of the receiver alone: the word that it awaits the rest.
    for (end, (fails_at, sends_fail_at)) in calls.chain((1..5).map(|send| (1, (u64::MAX, send)))) {
        let mut manners = [Manners::STRAIGHT; 2];
        (manners[end].fails_at, manners[end].sends_fail_at) = (fails_at, sends_fail_at);
        let nics = manners.map(TestNic::new);
        let Ok(ends) = connected_over(&nics) else { continue };
        let ((_outbox, mut send), (mut receive, _inbox)) = pumped_over(ends);
        let (from, mut into) = (content(1, 300_000), vec![0u8; 300_000]);
        let (start, place) = (NonNull::from(&from[..]).cast(), NonNull::from(&mut into[..]).cast());
        let (expected, mut sent, mut held, mut has_come) = ((from.len(), label(1)), None, None, false);
        let outcome = turns(|| {
            send.progress()?;
            if sent.is_none() {
                // SAFETY: `from` outlives what is kept of it.
                sent = unsafe { send.hand_over(start, expected) }?;
            }
            // SAFETY: `into` outlives what is kept of it.
            has_come = has_come || unsafe { receive.take(place, expected, &mut held) }? == Taken::Whole;
            Ok((has_come && sent.as_ref().is_some_and(NicHold::is_over)).then_some(()))
        });
        let out = [&sent, &held].map(|hold| u64::from(hold.as_ref().is_some_and(|hold| !hold.is_over())));
        drop((sent, held));
        let are_closed = nics.each_ref().map(TestNic::closed);
        match outcome {
            Ok(()) => assert!(out == [0; 2] && are_closed == [0; 2] && into == from),
            Err(error) => {
                assert_eq!(error.peer(), Some(1 - u32::try_from(end).unwrap()), "{error}");
                // What failed while it was lent has no hold that the caller sees: it has closed its NIC at once.
                assert!(out[0] <= are_closed[0] && out[1] <= are_closed[1], "{manners:?}");
                (failed, closed) = (failed + 1, closed + are_closed[0] + are_closed[1]);
            }
        }
    }
    assert!(failed > 20 && closed > 10, "{failed}, {closed}");
}
