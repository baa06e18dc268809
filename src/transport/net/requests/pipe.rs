//! The handshake of a connection over a request-based NIC: the memos of a connection as a stream of bytes.
//!
//! It is the handshake of all data connections (`data_handshake`), by which both ends prove that they know the secret
//! of the communicator, and the sender says which offer it takes. Only then do pumps use the connection.

use std::cell::RefCell;
use std::collections::VecDeque;

use crate::error::Result;
use crate::transport::data_handshake::Pipe;
use crate::transport::net::requests::connection::{MEMO_BYTES, RequestConnection};

/// A connection whose handshake is under way.
#[derive(Debug)]
pub(super) struct MemoPipe(RefCell<Piped>);

#[derive(Debug)]
struct Piped {
    connection: RequestConnection,
    unread: VecDeque<u8>,
}

impl MemoPipe {
    pub(super) fn new(connection: RequestConnection) -> MemoPipe {
        MemoPipe(RefCell::new(Piped { connection, unread: VecDeque::new() }))
    }

    /// Whether all that was written has left.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn is_flushed(&self) -> Result<bool> {
        self.0.borrow_mut().connection.have_memos_left()
    }

    /// The connection, for pumps.
    pub(super) fn into_connection(self) -> RequestConnection {
        self.0.into_inner().connection
    }
}

impl Pipe for MemoPipe {
    fn read_some(&self, into: &mut [u8]) -> Result<Option<usize>> {
        let Piped { connection, unread } = &mut *self.0.borrow_mut();
        if unread.is_empty() {
            // One at a time, and only where the handshake needs it: after the last one no receive is left over.
            connection.expect_memos(1)?;
            let Some(memo) = connection.take_memo()? else { return Ok(None) };
            unread.extend(memo.content());
        }
        let taken = into.len().min(unread.len());
        into.iter_mut().zip(unread.drain(..taken)).for_each(|(place, byte)| *place = byte);
        Ok(Some(taken).filter(|taken| *taken > 0))
    }

    fn write_some(&self, bytes: &[u8]) -> Result<Option<usize>> {
        let piece = &bytes[..bytes.len().min(MEMO_BYTES)];
        Ok(self.0.borrow_mut().connection.send_memo(piece)?.then_some(piece.len()))
    }
}
