//! The value under the key of a shared id: who wrote it, and the id or the reason why there is none.
//!
//! | width | field |
//! |-------|-------|
//! | 8 | mark |
//! | 8 | number of this sharing, random |
//! | 4 + n | name of the writer's host |
//! | 4 + n | the writer's boot and process namespace |
//! | 4 | the writer's process |
//! | 8 | when that started, in ticks since boot |
//! | 8 | when it wrote, in seconds since 1970 |
//! | 4 | how many members share the id |
//! | 16 | the hash of the job's identity, zero if it has none |
//! | 16 | that of ranks of the job that know only so much of it, zero if there are none |
//! | 4 + n | the job's name |
//! | 1 | 0: an id follows; 1: an error's words follow |
//! | 4 + n | the id or the words |

use super::share::SharedId;
use crate::bootstrap::MAX_WORLD;
use crate::bootstrap::UniqueId;
use crate::bootstrap::auth::{JOB_BYTES, JobTag, NAME_BYTES};
use crate::error::{Error, Result};
use crate::sys::identity::ProcessIdentity;
use crate::sys::{host, random};
use crate::types::{Rank, World};
use crate::wire::{Reader, Writer, cut};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) number: u64,
    pub(crate) writer: ProcessIdentity,
    /// Seconds since 1970.
    pub(crate) written: u64,
    /// How many members share the id.
    pub(crate) size: u32,
    pub(crate) job: Option<JobTag>,
    pub(crate) outcome: IdOutcome,
}

/// The result of making an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdOutcome {
    /// The id.
    Id(UniqueId),
    /// The reason why there is none.
    Failed(String),
}

const MARK: [u8; 8] = *b"rscclid2";
const ID: u8 = 0;
const FAILED: u8 = 1;

/// The most bytes of a host's name or a namespace.
const MAX_NAME_BYTES: usize = 256;

/// The most bytes of a reason.
const MAX_WORDS_BYTES: usize = 8 << 10;

impl Record {
    /// A record that this process writes now.
    pub(crate) fn new(outcome: IdOutcome) -> Result<Record> {
        let number = u64::from_le_bytes(random::bytes()?);
        let (writer, written) = (ProcessIdentity::mine()?, host::wall_time().as_secs());
        Ok(Record { number, writer, written, size: 0, job: None, outcome })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let Record { number, writer, written, size, job, outcome } = self;
        let mut bytes = Writer::new();
        bytes.raw(&MARK).u64(*number).text(cut(&writer.host, MAX_NAME_BYTES)).text(cut(&writer.space, MAX_NAME_BYTES));
        bytes.u32(writer.process).u64(writer.started).u64(*written);
        bytes.u32(*size).raw(&job.as_ref().map_or([0; JOB_BYTES], JobTag::digest));
        bytes.raw(&job.as_ref().map_or([0; JOB_BYTES], JobTag::unseen_digest));
        bytes.text(job.as_ref().map_or("", JobTag::name));
        match outcome {
            IdOutcome::Id(id) => bytes.u8(ID).bytes(id.as_bytes()),
            IdOutcome::Failed(words) => bytes.u8(FAILED).text(cut(words, MAX_WORDS_BYTES)),
        };
        bytes.finish()
    }

    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] if the bytes are not a record: the key is used for something else.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Record> {
        let mut reader = Reader::new(bytes, "a shared id");
        if !bytes.starts_with(&MARK) {
            return Err(crate::error::Error::invalid_argument(
                "the value in the store is not the record of a unique id",
            ));
        }
        let _mark: [u8; 8] = reader.array()?;
        let number = reader.u64()?;
        let (host, space) = (reader.text(MAX_NAME_BYTES)?, reader.text(MAX_NAME_BYTES)?);
        let writer = ProcessIdentity { host, space, process: reader.u32()?, started: reader.u64()? };
        let written = reader.u64()?;
        // The members of a dead job are forgotten one by one.
        let (size, digest, unseen) = (reader.u32()?, reader.array()?, reader.array()?);
        let name = reader.text(NAME_BYTES)?;
        if size > MAX_WORLD {
            return Err(reader.malformed(&format!("a world of {size} ranks")));
        }
        let job = (digest != [0; JOB_BYTES]).then(|| JobTag::received(digest, unseen, &name));
        let outcome = match reader.u8()? {
            ID => IdOutcome::Id(UniqueId::from_bytes(reader.bytes(UniqueId::BYTES)?)?),
            FAILED => IdOutcome::Failed(reader.text(MAX_WORDS_BYTES)?),
            other => return Err(reader.malformed(&format!("an outcome of kind {other}"))),
        };
        reader.finish()?;
        Ok(Record { number, writer, written, size, job, outcome })
    }

    /// The name of the job to which the writer belongs, if it is known to be another one than `job`.
    pub(crate) fn other_job(&self, job: Option<&JobTag>) -> Option<&str> {
        let ours = job?;
        match &self.job {
            None if ours.admits([0; JOB_BYTES]) => None,
            None => Some("a job that no launcher names"),
            Some(theirs) if ours.admits(theirs.digest()) || theirs.admits(ours.digest()) => None,
            Some(theirs) => Some(theirs.name()),
        }
    }

    /// # Errors
    /// [`crate::error::Kind::Mismatch`] if rank 0 was told another number of ranks than `member`.
    pub(crate) fn check_size(&self, member: World) -> Result<()> {
        let (theirs, ours) = (self.size, member.size);
        if theirs == ours {
            return Ok(());
        }
        let message =
            format!("ranks disagree about the world: rank 0 was told that it has {theirs} ranks, this rank {ours}");
        Err(Error::mismatch(message).about(Rank::new(0)))
    }

    /// The id.
    ///
    /// # Errors
    /// Why rank 0 could not make one.
    pub(crate) fn open(self) -> Result<SharedId> {
        match self.outcome {
            IdOutcome::Id(id) => Ok(SharedId { id, number: self.number }),
            IdOutcome::Failed(why) => Err(Error::remote(Rank::new(0), format!("rank 0 could not make it: {why}"))),
        }
    }

    /// The writer in words.
    pub(crate) fn by(&self) -> String {
        format!("process {} on host {}", self.writer.process, self.writer.host.escape_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_nothing_else_passes() {
        let id = UniqueId::fresh("10.0.0.1:5".parse().unwrap()).unwrap();
        for outcome in [IdOutcome::Id(id), IdOutcome::Failed("é".repeat(9000))] {
            let mut record = Record::new(outcome).unwrap();
            (record.size, record.job) = (7, Some(JobTag::new("a job", "its key")));
            let bytes = record.encode();
            let back = Record::decode(&bytes).unwrap();
            assert_eq!((back.number, &back.writer, back.size), (record.number, &record.writer, 7));
            assert_eq!(back.job, record.job);
            for length in 0..bytes.len() {
                assert!(Record::decode(&bytes[..length]).is_err(), "cut to {length}");
            }
        }
        assert!(Record::decode(b"no id").unwrap_err().message().contains("not the record of a unique id"));
    }
}
