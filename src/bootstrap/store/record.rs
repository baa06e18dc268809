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
//! | 1 | 0: an id follows; 1: an error's words follow |
//! | 4 + n | the id or the words |

use crate::bootstrap::UniqueId;
use crate::error::Result;
use crate::sys::identity::ProcessIdentity;
use crate::sys::{host, random};
use crate::wire::{Reader, Writer, cut};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) number: u64,
    pub(super) writer: ProcessIdentity,
    /// Seconds since 1970.
    pub(super) written: u64,
    pub(super) outcome: IdOutcome,
}

/// The result of making an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum IdOutcome {
    /// The id.
    Id(UniqueId),
    /// The reason why there is none.
    Failed(String),
}

const MARK: [u8; 8] = *b"rsccl id";
const ID: u8 = 0;
const FAILED: u8 = 1;

/// The most bytes of a host's name or a namespace.
const MAX_NAME_BYTES: usize = 256;

/// The most bytes of a reason.
const MAX_WORDS_BYTES: usize = 8 << 10;

impl Record {
    /// A record that this process writes now.
    pub(super) fn new(outcome: IdOutcome) -> Result<Record> {
        let number = u64::from_le_bytes(random::bytes()?);
        Ok(Record { number, writer: ProcessIdentity::mine()?, written: host::wall_time().as_secs(), outcome })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let Record { number, writer, written, outcome } = self;
        let mut bytes = Writer::new();
        bytes.raw(&MARK).u64(*number).text(cut(&writer.host, MAX_NAME_BYTES)).text(cut(&writer.space, MAX_NAME_BYTES));
        bytes.u32(writer.process).u64(writer.started).u64(*written);
        match outcome {
            IdOutcome::Id(id) => bytes.u8(ID).bytes(id.as_bytes()),
            IdOutcome::Failed(words) => bytes.u8(FAILED).text(cut(words, MAX_WORDS_BYTES)),
        };
        bytes.finish()
    }

    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] if the bytes are not a record: the key is used for something else.
    pub(super) fn decode(bytes: &[u8]) -> Result<Record> {
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
        let outcome = match reader.u8()? {
            ID => IdOutcome::Id(UniqueId::from_bytes(reader.bytes(UniqueId::BYTES)?)?),
            FAILED => IdOutcome::Failed(reader.text(MAX_WORDS_BYTES)?),
            other => return Err(reader.malformed(&format!("an outcome of kind {other}"))),
        };
        reader.finish()?;
        Ok(Record { number, writer, written, outcome })
    }

    /// The writer in words.
    pub(super) fn by(&self) -> String {
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
            let record = Record::new(outcome).unwrap();
            let bytes = record.encode();
            let back = Record::decode(&bytes).unwrap();
            assert_eq!((back.number, &back.writer), (record.number, &record.writer));
            for length in 0..bytes.len() {
                assert!(Record::decode(&bytes[..length]).is_err(), "cut to {length}");
            }
        }
        assert!(Record::decode(b"no id").unwrap_err().message().contains("not the record of a unique id"));
    }
}
