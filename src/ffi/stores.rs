//! Stores: those of the library for C++, and a program's own for the library.

use std::net::SocketAddr;

use super::bridge::ForeignStore;
use super::failure::{Failure, guard};
use super::{Settings, foreign, text_of, wait_of, world_of};
use crate::bootstrap::UniqueId;
use crate::bootstrap::address::HostPort;
use crate::bootstrap::store::{FileStore, HashStore, Store, TcpStore, share_id};
use crate::error::{Error, Result};
use crate::session::settings::bootstrap_options;
use crate::sync::primitive::Arc;
use crate::sync::{AbortFlag, TimeLimit};

/// A store of the library; `None` before it was opened.
pub(super) struct Keep {
    store: Option<Arc<dyn Store>>,
    address: String,
}

pub(super) fn keep() -> Box<Keep> {
    Box::new(Keep { store: None, address: String::new() })
}

pub(super) fn keep_hash() -> Box<Keep> {
    Box::new(Keep { store: Some(Arc::new(HashStore::new())), address: String::new() })
}

pub(super) fn keep_file(keep: &mut Keep, folder: &[u8], timeout_ms: u64) -> *mut Failure {
    guard(|| {
        let store = FileStore::open(text_of("folder", folder)?, &wait_of(timeout_ms))?;
        keep.store = Some(Arc::new(store));
        Ok(())
    })
}

pub(super) fn keep_served(keep: &mut Keep, address: &[u8], settings: &Settings) -> *mut Failure {
    guard(|| {
        let text = text_of("address", address)?;
        let place: SocketAddr = text.parse().map_err(|_| {
            Error::invalid_argument(format!("{text:?} is not an address to serve at: write ip:port or [ipv6]:port"))
        })?;
        let store = TcpStore::serve_on(place, &bootstrap_options(&settings.0.clone().resolve()?)?)?;
        keep.address = store.address().unwrap_or(place).to_string();
        keep.store = Some(Arc::new(store));
        Ok(())
    })
}

pub(super) fn keep_remote(keep: &mut Keep, address: &[u8], settings: &Settings) -> *mut Failure {
    guard(|| {
        let place: HostPort = text_of("address", address)?.parse()?;
        let store = TcpStore::connect_to(&place, &bootstrap_options(&settings.0.clone().resolve()?)?)?;
        keep.address = place.to_string();
        keep.store = Some(Arc::new(store));
        Ok(())
    })
}

pub(super) fn keep_same(keep: &Keep) -> Box<Keep> {
    Box::new(Keep { store: keep.store.clone(), address: keep.address.clone() })
}

pub(super) fn keep_address(keep: &Keep) -> String {
    keep.address.clone()
}

impl Keep {
    fn on(&self, body: impl FnOnce(&dyn Store) -> Result<()>) -> *mut Failure {
        let moved = || Error::invalid_usage("the store was moved from");
        guard(|| body(&**self.store.as_ref().ok_or_else(moved)?))
    }
}

pub(super) fn store_set(keep: &Keep, key: &[u8], value: &[u8], timeout_ms: u64) -> *mut Failure {
    keep.on(|store| store.set(text_of("key", key)?, value, &wait_of(timeout_ms)))
}

pub(super) fn store_get(keep: &Keep, key: &[u8], timeout_ms: u64, value: &mut Vec<u8>) -> *mut Failure {
    keep.on(|store| {
        *value = store.get(text_of("key", key)?, &wait_of(timeout_ms))?;
        Ok(())
    })
}

pub(super) fn store_add(keep: &Keep, key: &[u8], amount: i64, timeout_ms: u64, sum: &mut i64) -> *mut Failure {
    keep.on(|store| {
        *sum = store.add(text_of("key", key)?, amount, &wait_of(timeout_ms))?;
        Ok(())
    })
}

pub(super) fn store_wait(keep: &Keep, keys: &[String], timeout_ms: u64) -> *mut Failure {
    keep.on(|store| {
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        store.wait(&keys, &wait_of(timeout_ms))
    })
}

pub(super) fn store_remove(keep: &Keep, key: &[u8], timeout_ms: u64, was_there: &mut bool) -> *mut Failure {
    keep.on(|store| {
        *was_there = store.delete(text_of("key", key)?, &wait_of(timeout_ms))?;
        Ok(())
    })
}

pub(super) fn share(
    store: &ForeignStore,
    key: &[u8],
    rank: i32,
    size: i32,
    settings: &Settings,
    id: &mut [u8; 128],
) -> *mut Failure {
    guard(|| {
        let config = settings.0.clone().resolve()?;
        let limit = TimeLimit { time: config.init_timeout, variable: Some("RSCCL_INIT_TIMEOUT_MS") };
        let wait = limit.wait(&AbortFlag::new());
        let make = || UniqueId::generate(&bootstrap_options(&config)?);
        let store = foreign::Borrowed(store);
        *id = *share_id(&store, text_of("key", key)?, world_of(rank, size)?, make, &wait)?.as_bytes();
        Ok(())
    })
}
