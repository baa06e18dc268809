//! The handshake at the start of every connection: both sides prove that they hold the key, for this purpose, between
//! these ranks, of this communicator.
//!
//! [`Handshake`] takes bytes and gives bytes; it does no I/O and reads no clock, so any socket can drive it. [`run`]
//! drives it over a blocking stream. The key is never sent, and recorded messages are useless for a second handshake.
//!
//! | message | from | bytes |
//! |---------|------|-------|
//! | hello | initiator | mark 4, version 1, purpose 1, flags 2, communicator 8, from 4, to 4, nonce 16, job 16, key 32, MAC 16 |
//! | challenge | responder | 0: 1, nonce 16, cipher 1, key 32, MAC 32 of hello and these |
//! | difference | responder | 3: 1, reason 1, MAC 32 of hello and these: encrypted here, and not there |
//! | refusal | responder | 1: 1, age in ms 4, name of its job 120, MAC 32 of hello and these |
//! | proof | initiator | MAC 32 of hello, challenge |
//!
//! `job` is the hash of the job's identity, zero where a side has none. If both sides have one and they differ,
//! strangers who hold one key have met (ranks of two jobs that were given one port, with no secret): the responder
//! answers with a refusal that names its job.
//!
//! Flags, keys and cipher are zero unless the connection is to be encrypted: `encryption` says how both sides come to
//! that.
//!
//! The MAC in the hello lets a responder drop strangers without an answer. The initiator may send data right after the
//! proof, so a connection costs one round trip. The data after the handshake is neither encrypted nor signed, unless
//! both ends want that: see `bootstrap::sealed`.

mod encryption;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use self::encryption::{Demand, KeyAnswer, KeyOffer};
use crate::bootstrap::sealed::{PUBLIC_BYTES, SealedEnds};
use crate::config::Encryption;
use crate::error::{Error, Kind, Result, without_controls};
use crate::sync::Wait;
use crate::sys::random;
use crate::types::Rank;
use crate::wire::{Reader, Writer, cut};

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A rank's check-in with the root.
    Root,
    /// Bootstrap messages between two ranks.
    Peer,
    /// Data of the NET transport.
    Data,
    /// Descriptors handed over on a Unix socket.
    Descriptor,
    /// Requests to a store.
    Store,
}

impl Purpose {
    fn code(self) -> u8 {
        match self {
            Purpose::Root => 1,
            Purpose::Peer => 2,
            Purpose::Data => 3,
            Purpose::Descriptor => 4,
            Purpose::Store => 5,
        }
    }
}

/// Stands for a party that is not a rank: a root, a store's server, a store's client.
pub const NO_RANK: Rank = Rank::new(u32::MAX);

/// The values that both sides must agree on.
#[derive(Clone)]
pub struct Terms {
    /// The shared key.
    pub key: [u8; 32],
    /// What the connection is for.
    pub purpose: Purpose,
    /// Which communicator it belongs to.
    pub communicator: u64,
    /// The job of this side; only where ranks meet.
    pub job: Option<JobTag>,
    /// Whether what follows the handshake is encrypted.
    pub encryption: Encryption,
}

/// The identity of a job, for comparison and for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobTag {
    digest: [u8; JOB_BYTES],
    /// The identity of ranks of this job that do not know more of it; zero if there are none.
    also: [u8; JOB_BYTES],
    /// Whether ranks of which nothing is known are kept out.
    strict: bool,
    name: String,
}

impl JobTag {
    /// The tag of the job with the identity `key`, whose name for people is `name`.
    pub fn new(name: &str, key: &str) -> JobTag {
        let hash: [u8; 32] = blake3::hash(key.as_bytes()).into();
        let mut digest = std::array::from_fn(|place| hash[place]);
        // All zero means no job.
        digest[0] |= 1;
        JobTag { digest, also: [0; JOB_BYTES], strict: false, name: cut(name, NAME_BYTES).to_owned() }
    }

    /// The same tag, for a job some of whose ranks know only the identity of `unseen`.
    #[must_use]
    pub(crate) fn or_unseen(self, unseen: Option<&JobTag>) -> JobTag {
        JobTag { also: unseen.map_or([0; JOB_BYTES], JobTag::digest), ..self }
    }

    /// The same tag, for a place where ranks of which nothing is known are kept out.
    #[must_use]
    pub(crate) fn strictly(self) -> JobTag {
        JobTag { strict: true, ..self }
    }

    /// Whether a rank with the identity `other` (zero: none) may be of this job.
    pub(crate) fn admits(&self, other: [u8; JOB_BYTES]) -> bool {
        let none = [0; JOB_BYTES];
        if other == none { !self.strict } else { other == self.digest || other == self.also }
    }

    /// What [`JobTag::or_unseen`] has set, to send it.
    pub(crate) fn unseen_digest(&self) -> [u8; JOB_BYTES] {
        self.also
    }

    /// The tag that another process has sent. Its name is a stranger's text: it is kept escaped.
    pub(crate) fn received(digest: [u8; JOB_BYTES], also: [u8; JOB_BYTES], name: &str) -> JobTag {
        JobTag { digest, also, strict: false, name: cut(&without_controls(name), NAME_BYTES).to_owned() }
    }

    /// The job in words.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The identity as a number, for tables.
    pub(crate) fn digest(&self) -> [u8; JOB_BYTES] {
        self.digest
    }
}

/// The refusal of a side that belongs to another job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherJob {
    /// The other side's job, in words.
    pub name: String,
    /// How long ago it first refused a rank of this side's job.
    pub age: Duration,
}

impl std::fmt::Debug for Terms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Terms({:?} of {:016x})", self.purpose, self.communicator)
    }
}

const MARK: [u8; 4] = *b"RSC\x01";
const VERSION: u8 = 4;
/// The bytes of a job's hash.
pub const JOB_BYTES: usize = 16;
/// The most bytes of a job's name in a refusal.
pub const NAME_BYTES: usize = 120;
const CHALLENGE: u8 = 0;
const REFUSAL: u8 = 1;
/// The whole answer to a hello for a communicator that has ended in this process.
pub(super) const ENDED: u8 = 2;
const DIFFERENCE: u8 = 3;
const NONCE_BYTES: usize = 16;
const SHORT_MAC_BYTES: usize = 16;
const MAC_BYTES: usize = 32;
/// The bytes of a hello that say whom it is for.
pub(super) const GREETING_BYTES: usize = 4 + 4 + 8 + 4 + 4;
pub(super) const HELLO_BYTES: usize = GREETING_BYTES + NONCE_BYTES + JOB_BYTES + PUBLIC_BYTES + SHORT_MAC_BYTES;
const CHALLENGE_BYTES: usize = 1 + NONCE_BYTES + 1 + PUBLIC_BYTES + MAC_BYTES;
const DIFFERENCE_BYTES: usize = 1 + 1 + MAC_BYTES;
const REFUSAL_BYTES: usize = 1 + 4 + NAME_BYTES + MAC_BYTES;

/// One side of a handshake in progress.
#[derive(Debug)]
pub struct Handshake {
    terms: Terms,
    state: State,
    /// Hello and challenge, as far as they have been sent or received: the MACs cover them.
    transcript: Vec<u8>,
    /// The part of the next message that has arrived.
    partial: Vec<u8>,
    output: Vec<u8>,
    to: Rank,
    claimed: Option<Rank>,
    /// Of the side that answers: the hash of the job that was refused. Of the side that asks: the refusal.
    stranger: Option<[u8; JOB_BYTES]>,
    refusal: Option<OtherJob>,
    /// Of the side that asks: its half of the keys.
    offer: Option<KeyOffer>,
    /// Of the side that answers: its half, until the other side has proved itself.
    answer: Option<KeyAnswer>,
    /// What encrypts once the handshake is done.
    sealed: Option<SealedEnds>,
}

/// How far a side that connects has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallerStanding {
    /// It has said nothing, or not all of its first message.
    Silent,
    /// It has said the first message with its MAC, of which strangers can but repeat one that they have seen.
    Greeted,
    /// It has proved that it knows the key.
    Proven,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    AwaitHello,
    AwaitChallenge,
    AwaitProof,
    /// The other side belongs to another job: nothing more is expected.
    Refused,
    /// The communicator has ended in the other side's process.
    Ended,
    Done,
}

/// Whom a connection between ranks is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Addressee {
    purpose: u8,
    communicator: u64,
    rank: Rank,
}

impl Addressee {
    /// Rank `me` of the communicator of `terms`.
    pub(super) fn of(terms: &Terms, me: Rank) -> Addressee {
        Addressee { purpose: terms.purpose.code(), communicator: terms.communicator, rank: me }
    }
}

/// What the first bytes of a connection between ranks say. Nothing of it is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Greeting {
    /// Not whom it is for, so far.
    Unfinished,
    For(Addressee),
}

impl Greeting {
    /// Reads the beginning of what was said.
    ///
    /// # Errors
    /// [`Kind::Remote`] if that is no hello of this version for a rank.
    pub(super) fn read(said: &[u8]) -> Result<Greeting> {
        check_beginning(said)?;
        let Some(said) = said.get(..GREETING_BYTES) else { return Ok(Greeting::Unfinished) };
        let mut reader = Reader::new(&said[MARK.len() + 1..], "a handshake");
        let purpose = reader.u8()?;
        reader.u16()?;
        let (communicator, _, rank) = (reader.u64()?, reader.u32()?, Rank::new(reader.u32()?));
        if ![Purpose::Peer, Purpose::Data].map(Purpose::code).contains(&purpose) {
            return Err(stranger("it wants another service than a rank has"));
        }
        Ok(Greeting::For(Addressee { purpose, communicator, rank }))
    }
}

impl Handshake {
    /// The connecting side: this rank is `from`, the wanted peer is `to`.
    ///
    /// # Errors
    /// [`Kind::System`] if the kernel gives no randomness; [`Kind::InvalidUsage`] where this build cannot encrypt.
    pub fn initiate(terms: Terms, from: Rank, to: Rank) -> Result<Handshake> {
        let offer = KeyOffer::new(terms.encryption)?;
        let mut hello = Writer::with_capacity(HELLO_BYTES);
        hello.raw(&MARK).u8(VERSION).u8(terms.purpose.code()).u16(offer.flags).u64(terms.communicator);
        hello.u32(from.get()).u32(to.get()).raw(&random::bytes::<NONCE_BYTES>()?);
        hello.raw(&terms.job.as_ref().map_or([0; JOB_BYTES], JobTag::digest)).raw(&offer.public);
        let mac = mac(&terms.key, "hello", hello.as_slice());
        hello.raw(&mac.as_bytes()[..SHORT_MAC_BYTES]);
        let transcript = hello.finish();
        let output = transcript.clone();
        Ok(Handshake {
            terms,
            state: State::AwaitChallenge,
            transcript,
            partial: Vec::new(),
            output,
            to,
            claimed: Some(to),
            stranger: None,
            refusal: None,
            offer: Some(offer),
            answer: None,
            sealed: None,
        })
    }

    /// The accepting side, rank `me`. [`Handshake::peer`] tells who connected once the handshake is done.
    pub fn respond(terms: Terms, me: Rank) -> Handshake {
        let (transcript, partial, output) = (Vec::new(), Vec::new(), Vec::new());
        let (stranger, refusal, offer, answer, sealed) = (None, None, None, None, None);
        let state = State::AwaitHello;
        Handshake {
            terms,
            state,
            transcript,
            partial,
            output,
            to: me,
            claimed: None,
            stranger,
            refusal,
            offer,
            answer,
            sealed,
        }
    }

    /// Consumes the peer's handshake bytes from the front of `input`; consumes nothing once the handshake is done.
    ///
    /// # Errors
    /// [`Kind::Remote`] if the peer does not hold the key, or is or wants another purpose, communicator or rank. The
    /// caller must close the connection.
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<()> {
        loop {
            // The first byte of an answer tells how long it is, so it is taken alone: an answer may be shorter than
            // what was wanted before, and what follows it is not part of it.
            let is_answer_s_first = self.state == State::AwaitChallenge && self.partial.is_empty();
            let wanted = if is_answer_s_first { 1 } else { self.bytes_wanted() };
            let (taken, rest) = input.split_at(input.len().min(wanted));
            *input = rest;
            self.partial.extend_from_slice(taken);
            if self.state == State::AwaitHello {
                check_beginning(&self.partial)?;
            }
            if self.state == State::AwaitChallenge && self.partial.first() == Some(&ENDED) {
                self.state = State::Ended;
                self.partial.clear();
                return Err(stranger("its rank has left, or its communicator has ended there"));
            }
            let wanted = self.bytes_wanted();
            if wanted > 0 && !input.is_empty() {
                continue;
            }
            if matches!(self.state, State::Done | State::Refused | State::Ended) || wanted > 0 {
                return Ok(());
            }
            let message = std::mem::take(&mut self.partial);
            match self.state {
                State::AwaitHello => self.receive_hello(message)?,
                State::AwaitChallenge => self.receive_challenge(&message)?,
                State::AwaitProof => self.receive_proof(&message)?,
                State::Refused | State::Ended | State::Done => {}
            }
        }
    }

    /// Takes the bytes that must be sent to the peer.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Whether the peer has proved itself. The bytes of [`Handshake::take_output`] must still be sent.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// How many bytes are missing from the next message; 0 once the handshake is done.
    pub fn bytes_wanted(&self) -> usize {
        let message = match self.state {
            State::AwaitHello => HELLO_BYTES,
            State::AwaitChallenge if self.partial.first() == Some(&REFUSAL) => REFUSAL_BYTES,
            State::AwaitChallenge if self.partial.first() == Some(&DIFFERENCE) => DIFFERENCE_BYTES,
            State::AwaitChallenge => CHALLENGE_BYTES,
            State::AwaitProof => MAC_BYTES,
            State::Refused | State::Ended | State::Done => 0,
        };
        message - self.partial.len()
    }

    /// Of the side that answers: how far the other side has come.
    pub fn standing(&self) -> CallerStanding {
        match self.state {
            State::AwaitHello => CallerStanding::Silent,
            State::Done => CallerStanding::Proven,
            State::AwaitChallenge | State::AwaitProof | State::Refused | State::Ended => CallerStanding::Greeted,
        }
    }

    /// Of the side that answers: the hash of the other side's job, if that is another one. The caller must then
    /// [`Handshake::refuse`] it and close the connection.
    pub fn stranger(&self) -> Option<[u8; JOB_BYTES]> {
        self.stranger
    }

    /// Of the side that asks: how it was refused, if the other side belongs to another job.
    pub fn refusal(&self) -> Option<&OtherJob> {
        self.refusal.as_ref()
    }

    /// Of the side that asks: whether the communicator has ended in the other side's process.
    pub(super) fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Of the side that answers: whether it has told the other side that their settings of encryption differ.
    pub(super) fn has_told_difference(&self) -> bool {
        self.state == State::Refused && self.claimed.is_none() && self.stranger.is_none()
    }

    /// Prepares the answer for a rank of another job, of which the first one was refused `age` ago.
    pub fn refuse(&mut self, age: Duration) {
        let mut answer = Writer::with_capacity(REFUSAL_BYTES);
        answer.u8(REFUSAL).u32(u32::try_from(age.as_millis()).unwrap_or(u32::MAX));
        let mut name = [0; NAME_BYTES];
        let ours = self.terms.job.as_ref().map_or("", JobTag::name).as_bytes();
        name[..ours.len()].copy_from_slice(ours);
        answer.raw(&name);
        self.transcript.extend_from_slice(answer.as_slice());
        let mac = mac(&self.terms.key, "refusal", &self.transcript);
        answer.raw(mac.as_bytes());
        self.output.extend_from_slice(answer.as_slice());
    }

    /// What encrypts the connection once the handshake is done, if it is to be encrypted.
    pub(crate) fn take_sealed(&mut self) -> Option<SealedEnds> {
        self.sealed.take()
    }

    /// Whether any byte has arrived from the peer.
    pub fn has_heard(&self) -> bool {
        self.state != State::AwaitHello && self.state != State::AwaitChallenge || !self.partial.is_empty()
    }

    /// Who the peer is, once the handshake is done.
    pub fn peer(&self) -> Option<Rank> {
        self.claimed.filter(|_| self.is_done())
    }

    fn receive_hello(&mut self, hello: Vec<u8>) -> Result<()> {
        let mut reader = Reader::new(&hello, "a handshake");
        // Mark and version, which were checked as they came.
        reader.raw(MARK.len() + 1)?;
        let purpose = reader.u8()?;
        let flags = reader.u16()?;
        let communicator = reader.u64()?;
        let (from, to) = (Rank::new(reader.u32()?), Rank::new(reader.u32()?));
        reader.raw(NONCE_BYTES)?;
        let (job, public): ([u8; JOB_BYTES], [u8; PUBLIC_BYTES]) = (reader.array()?, reader.array()?);
        let (signed, signature) = hello.split_at(HELLO_BYTES - SHORT_MAC_BYTES);
        let expected = mac(&self.terms.key, "hello", signed);
        // Hashes are compared, because that takes the same time wherever they differ.
        let mut claimed = *expected.as_bytes();
        claimed[..SHORT_MAC_BYTES].copy_from_slice(signature);
        if blake3::Hash::from(claimed) != expected {
            return Err(stranger("it does not hold the key"));
        }
        if (purpose, communicator, to) != (self.terms.purpose.code(), self.terms.communicator, self.to) {
            return Err(stranger("it wants another service, communicator or rank"));
        }
        self.transcript = hello;
        if let Some(ours) = &self.terms.job
            && !ours.admits(job)
        {
            self.stranger = Some(job);
            self.state = State::Refused;
            return Ok(());
        }
        let follows = matches!(self.terms.purpose, Purpose::Root | Purpose::Store);
        let answer = match Demand::of((self.terms.encryption, follows), flags, public) {
            Demand::Plain => KeyAnswer::plain(),
            Demand::Sealed(cipher, public) => KeyAnswer::sealed(cipher, public)?,
            Demand::Differs(reason) => {
                self.tell_difference(reason);
                return Ok(());
            }
        };
        self.challenge(answer)?;
        self.claimed = Some(from);
        self.state = State::AwaitProof;
        Ok(())
    }

    fn challenge(&mut self, answer: KeyAnswer) -> Result<()> {
        self.transcript.push(CHALLENGE);
        self.transcript.extend_from_slice(&random::bytes::<NONCE_BYTES>()?);
        self.transcript.push(answer.code);
        self.transcript.extend_from_slice(&answer.public);
        let mac = mac(&self.terms.key, "challenge", &self.transcript);
        self.transcript.extend_from_slice(mac.as_bytes());
        self.output.extend_from_slice(&self.transcript[HELLO_BYTES..]);
        self.answer = Some(answer);
        Ok(())
    }

    /// Answers a side that wants to encrypt where this side does not, or the other way round.
    fn tell_difference(&mut self, reason: u8) {
        self.transcript.extend_from_slice(&[DIFFERENCE, reason]);
        let mac = mac(&self.terms.key, "difference", &self.transcript);
        self.output.extend_from_slice(&[DIFFERENCE, reason]);
        self.output.extend_from_slice(mac.as_bytes());
        self.state = State::Refused;
    }

    fn receive_challenge(&mut self, challenge: &[u8]) -> Result<()> {
        let (signed, signature) = challenge.split_at(challenge.len() - MAC_BYTES);
        self.transcript.extend_from_slice(signed);
        if signed.first() == Some(&REFUSAL) {
            self.verify("refusal", signature)?;
            return self.receive_refusal(signed);
        }
        if signed.first() == Some(&DIFFERENCE) {
            self.verify("difference", signature)?;
            self.state = State::Refused;
            return Err(encryption::difference(self.terms.encryption, signed[1]));
        }
        self.verify("challenge", signature)?;
        self.transcript.extend_from_slice(signature);
        if let Some(offer) = &mut self.offer {
            self.sealed = offer.agree(&signed[1 + NONCE_BYTES..], (&self.terms.key, &self.transcript))?;
        }
        let proof = mac(&self.terms.key, "proof", &self.transcript);
        self.output.extend_from_slice(proof.as_bytes());
        self.state = State::Done;
        Ok(())
    }

    /// Another job's side has answered. Its name is text of a stranger: it is shown escaped.
    fn receive_refusal(&mut self, refusal: &[u8]) -> Result<()> {
        let mut reader = Reader::new(refusal, "a refusal");
        reader.u8()?;
        let age = Duration::from_millis(u64::from(reader.u32()?));
        let name: [u8; NAME_BYTES] = reader.array()?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES);
        let name = without_controls(&String::from_utf8_lossy(&name[..end]));
        self.state = State::Refused;
        let error = stranger(&format!("it belongs to another job ({name})"));
        self.refusal = Some(OtherJob { name, age });
        Err(error)
    }

    fn receive_proof(&mut self, proof: &[u8]) -> Result<()> {
        self.verify("proof", proof)?;
        // Only now: whoever repeats a hello that it has seen costs no agreement.
        if let Some(answer) = self.answer.take() {
            self.sealed = answer.agree((&self.terms.key, &self.transcript))?;
        }
        self.state = State::Done;
        Ok(())
    }

    fn verify(&self, step: &str, signature: &[u8]) -> Result<()> {
        let expected = mac(&self.terms.key, step, &self.transcript);
        let claimed: [u8; MAC_BYTES] = Reader::new(signature, "a handshake").array()?;
        if blake3::Hash::from(claimed) == expected { Ok(()) } else { Err(stranger("it does not hold the key")) }
    }
}

fn mac(key: &[u8; 32], step: &str, transcript: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(step.as_bytes());
    hasher.update(&[0]);
    hasher.update(transcript);
    hasher.finalize()
}

/// Rejects strangers, and other versions, at their first wrong byte: the rest of a hello of this version may never
/// come.
fn check_beginning(said: &[u8]) -> Result<()> {
    let length = said.len().min(MARK.len());
    if said[..length] != MARK[..length] {
        return Err(stranger("it does not speak this protocol"));
    }
    match said.get(MARK.len()) {
        Some(&version) if version != VERSION => {
            let why = format!("it speaks version {version} of the protocol, this rank speaks {VERSION}");
            Err(stranger(&why))
        }
        _ => Ok(()),
    }
}

fn stranger(why: &str) -> Error {
    Error::new(Kind::Remote, format!("the other side of a connection has not proved that it belongs: {why}"))
}

/// A stream whose reads and writes can be given a time-out.
pub trait TimedStream: Read + Write {
    /// Puts the stream into blocking mode, with reads and writes that end after at most `slice`.
    ///
    /// # Errors
    /// The system's error if the stream is broken.
    fn set_slice(&self, slice: Duration) -> std::io::Result<()>;
}

impl TimedStream for TcpStream {
    fn set_slice(&self, slice: Duration) -> std::io::Result<()> {
        self.set_nonblocking(false)?;
        self.set_read_timeout(Some(slice))?;
        self.set_write_timeout(Some(slice))
    }
}

impl TimedStream for UnixStream {
    fn set_slice(&self, slice: Duration) -> std::io::Result<()> {
        self.set_nonblocking(false)?;
        self.set_read_timeout(Some(slice))?;
        self.set_write_timeout(Some(slice))
    }
}

/// The time-out of one read or write of [`run`]; after it, [`Wait`] is checked again.
const SLICE: Duration = Duration::from_millis(20);

/// Runs a handshake over a stream and yields the peer's rank. Leaves the stream in blocking mode with short time-outs.
/// Reads nothing past the handshake.
///
/// # Errors
/// As [`Handshake::receive`]; [`Kind::Timeout`] and aborts as `wait` has them; [`Kind::Remote`] if the peer closes.
pub fn run(stream: &mut impl TimedStream, mut handshake: Handshake, wait: &Wait) -> Result<Rank> {
    stream.set_slice(SLICE).map_err(|error| Error::system("a handshake", error))?;
    let mut bytes = [0; HELLO_BYTES + REFUSAL_BYTES];
    loop {
        let output = handshake.take_output();
        let mut sent = 0;
        while sent < output.len() {
            sent += moment(wait, || stream.write(&output[sent..]))?;
        }
        if handshake.stranger().is_some() {
            return Err(stranger("it belongs to another job"));
        }
        if handshake.is_done() {
            return handshake.peer().ok_or_else(|| Error::internal("a finished handshake without a peer"));
        }
        // Reads no further than the message: the bytes after it belong to the caller.
        let wanted = handshake.bytes_wanted();
        let count = moment(wait, || stream.read(&mut bytes[..wanted]))?;
        handshake.receive(&mut &bytes[..count])?;
    }
}

/// Repeats `step` until it moves bytes.
fn moment(wait: &Wait, mut step: impl FnMut() -> std::io::Result<usize>) -> Result<usize> {
    loop {
        match step() {
            Ok(0) => return Err(stranger("it closed the connection")),
            Ok(count) => return Ok(count),
            Err(error) => match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut | std::io::ErrorKind::Interrupted => {
                    wait.check(|| "waited for the other side of a connection to prove that it belongs".to_owned())?;
                }
                _ => return Err(Error::system("a handshake", error)),
            },
        }
    }
}

#[cfg(test)]
mod tests;
