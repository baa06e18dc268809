//! What a program may ask about an address.

use super::{CUresult, Driver, Outcome};
use crate::space::{Access, Piece, PieceKind};

/// A `CUpointer_attribute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointerAttribute(pub i32);

/// A value, by the width in which C expects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointerValue {
    /// A pointer, handle or size.
    Wide(u64),
    /// An `int` or `unsigned int`.
    Narrow(u32),
    /// A `bool`: one byte.
    Flag(bool),
}

/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
const SYNC_MEMOPS: i32 = 6;

impl Driver {
    /// `cuPointerGetAttribute`.
    pub fn pointer_attribute(&self, attribute: PointerAttribute, address: u64) -> Outcome<PointerValue> {
        let piece = self.space.piece(address).ok_or(CUresult::INVALID_VALUE)?;
        self.value(attribute, address, &piece)
    }

    /// `cuPointerGetAttributes`: an address that the driver does not know has empty attributes.
    pub fn pointer_attributes(&self, attribute: PointerAttribute, address: u64) -> Outcome<PointerValue> {
        match self.space.piece(address) {
            Some(piece) => self.value(attribute, address, &piece).or_else(|_| empty(attribute)),
            None => empty(attribute),
        }
    }

    /// `cuPointerSetAttribute`: `SYNC_MEMOPS` alone can be set.
    pub fn set_pointer_attribute(&self, attribute: PointerAttribute, address: u64, value: bool) -> Outcome {
        if attribute.0 != SYNC_MEMOPS {
            return Err(CUresult::INVALID_VALUE);
        }
        let is_device = self.space.piece(address).is_some_and(|piece| !piece.is_host());
        let changed = is_device && self.space.change_piece(address, |piece| piece.sync_memops = value);
        if changed { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    fn value(&self, attribute: PointerAttribute, address: u64, piece: &Piece) -> Outcome<PointerValue> {
        let host = piece.is_host();
        Ok(match attribute.0 {
            1 => PointerValue::Wide(piece.context),
            2 => PointerValue::Narrow(if host { 1 } else { 2 }),
            3 => PointerValue::Wide(address),
            4 if host => PointerValue::Wide(address),
            SYNC_MEMOPS => PointerValue::Narrow(piece.sync_memops.into()),
            7 => PointerValue::Wide(piece.buffer_id),
            8 => PointerValue::Narrow(0),
            9 => PointerValue::Narrow(u32::from_ne_bytes(self.ordinal(piece.gpu).to_ne_bytes())),
            10 => PointerValue::Flag(self.machine.legacy_ipc && matches!(piece.kind, PieceKind::Allocation { .. })),
            11 | 19 => PointerValue::Wide(piece.start),
            12 | 18 => PointerValue::Wide(piece.bytes),
            13 => PointerValue::Flag(true),
            14 => PointerValue::Wide(self.handle_types(piece).into()),
            15 => PointerValue::Flag(false),
            16 => PointerValue::Narrow(self.access_flags(piece)),
            17 => PointerValue::Wide(if let PieceKind::Pooled { pool, .. } = piece.kind { pool } else { 0 }),
            20 => PointerValue::Wide(piece.buffer_id),
            _ => return Err(CUresult::INVALID_VALUE),
        })
    }

    fn handle_types(&self, piece: &Piece) -> u32 {
        let PieceKind::Mapped { .. } = piece.kind else { return 0 };
        let Ok(handle) = self.space.retain_handle(piece.start) else { return 0 };
        let types = self.space.properties(handle).map_or(0, |(properties, _)| properties.types.shown());
        // The reference was taken a line above, so it can be given back.
        let _ = self.space.release(handle);
        types
    }

    fn access_flags(&self, piece: &Piece) -> u32 {
        let Ok(current) = self.current() else { return 0 };
        match self.space.access(piece.start, current.gpu) {
            Ok(Access::None) => 0,
            Ok(Access::Read) => 1,
            Ok(Access::ReadWrite) | Err(_) => 3,
        }
    }
}

/// An attribute of an address that the driver does not know.
fn empty(attribute: PointerAttribute) -> Outcome<PointerValue> {
    match attribute.0 {
        2 | 6 | 8 | 16 => Ok(PointerValue::Narrow(0)),
        // No device: CU_DEVICE_INVALID.
        9 => Ok(PointerValue::Narrow(u32::from_ne_bytes((-2_i32).to_ne_bytes()))),
        10 | 13 | 15 => Ok(PointerValue::Flag(false)),
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => Ok(PointerValue::Wide(0)),
        _ => Err(CUresult::INVALID_VALUE),
    }
}
