//! The unique id: 128 bytes that tell ranks where the root is and let them prove that they hold the id.
//!
//! | offset | width | field |
//! |--------|-------|-------|
//! | 0 | 1 | format version, 1 |
//! | 1 | 1 | flags: 1 IPv6, 2 fixed address, 4 unauthenticated |
//! | 2 | 2 | port |
//! | 4 | 4 | IPv6 scope |
//! | 8 | 16 | address (IPv4 mapped into IPv6) |
//! | 24 | 8 | number of the communicator |
//! | 32 | 32 | secret |
//! | 64 | 8 | the host whose loopback the address is, where it is one: a hash of its boot and network namespace |
//! | 72 | 48 | zero |
//! | 120 | 8 | checksum: the first bytes of the BLAKE3 hash of the rest |

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::bootstrap::Options;
use crate::bootstrap::address::HostPort;
use crate::bootstrap::auth::{Purpose, Terms};
use crate::bootstrap::lookup;
use crate::bootstrap::root::Root;
use crate::error::{Error, Result};
use crate::sync::{AbortFlag, Wait};
use crate::sys::{host, random};
use crate::wire::Writer;

/// Names a communicator that is about to be made. One rank makes the id, and all ranks get its bytes over a channel
/// that they trust: whoever has them can join. `Debug` does not print the secret.
///
/// # Examples
/// ```
/// # fn main() -> rsccl::Result<()> {
/// use rsccl::{Communicator, Config, UniqueId};
///
/// let id = Communicator::unique_id(&Config::default().with_socket_interfaces("lo"))?;
/// let elsewhere = UniqueId::from_bytes(id.as_bytes())?;
/// assert_eq!(id, elsewhere);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; UniqueId::BYTES]);

const VERSION: u8 = 1;
const V6: u8 = 1;
const FIXED: u8 = 2;
const UNAUTHENTICATED: u8 = 4;
const CHECKED_BYTES: usize = UniqueId::BYTES - 8;

impl UniqueId {
    /// The length of an id in bytes, equal to NCCL's.
    pub const BYTES: usize = 128;

    /// Makes an id and serves it: a thread of this process waits for the ranks. It ends when all are served, when the
    /// deadlines of `options` have passed, or with the process. The caller need not keep anything.
    ///
    /// If `options` has a `comm_id`, the id only names that address, and rank 0 serves it when it joins.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] if no network interface is usable, [`crate::error::Kind::InvalidArgument`]
    /// if `comm_id` is not a valid address, [`crate::error::Kind::System`] if no socket or thread can be made.
    #[doc(hidden)]
    pub fn generate(options: &Options) -> Result<UniqueId> {
        let (id, root) = UniqueId::generate_held(options)?;
        if let Some(root) = root {
            root.detach();
        }
        Ok(id)
    }

    /// [`UniqueId::generate`] for a caller who knows when the ranks have been served: the root ends when it is dropped.
    ///
    /// # Errors
    /// As [`UniqueId::generate`].
    #[doc(hidden)]
    pub fn generate_held(options: &Options) -> Result<(UniqueId, Option<Root>)> {
        match UniqueId::fixed(options)? {
            Some(id) => Ok((id, None)),
            None => Root::serve(options).map(|(id, root)| (id, Some(root))),
        }
    }

    /// [`UniqueId::generate_held`], which waits at most as long as `wait` for an interface that is coming up.
    pub(crate) fn generate_held_within(options: &Options, wait: &Wait) -> Result<(UniqueId, Option<Root>)> {
        match UniqueId::fixed_within(options, wait)? {
            Some(id) => Ok((id, None)),
            None => Root::serve_within(options, wait).map(|(id, root)| (id, Some(root))),
        }
    }

    /// The id of the fixed address in `options`, which every rank can compute by itself; `None` if `options` has no
    /// such address. A name is looked up until it has an address, at most as long as `options` give ranks to check in.
    ///
    /// # Errors
    /// As [`UniqueId::generate`]; [`crate::error::Kind::Timeout`] if the name has no address.
    #[doc(hidden)]
    pub fn fixed(options: &Options) -> Result<Option<UniqueId>> {
        UniqueId::fixed_within(options, &Wait::new(options.check_in_timeout, &AbortFlag::new()))
    }

    /// [`UniqueId::fixed`], which looks a name up until `wait` ends.
    pub(crate) fn fixed_within(options: &Options, wait: &Wait) -> Result<Option<UniqueId>> {
        let Some(place) = fixed_place(options)? else { return Ok(None) };
        let found = lookup::addresses(&place, options.family, wait).map_err(|error| error.during(FIXED_PLACE))?;
        let Some(address) = found.first().copied() else { return Ok(None) };
        // The ranks may know the host by different addresses, so only the port counts.
        let bound = format!("rsccl fixed port {}", address.port());
        let (secret, flags) = match &options.secret {
            Some(secret) => (secret.key(&bound), FIXED),
            None => (blake3::hash(bound.as_bytes()).into(), FIXED | UNAUTHENTICATED),
        };
        let number: [u8; 32] = blake3::keyed_hash(&secret, b"rsccl number").into();
        let number = u64::from_le_bytes(std::array::from_fn(|i| number[i]));
        Ok(Some(UniqueId::build((address, 0), flags, number, &secret)))
    }

    /// A new id with random number and secret, for a root that listens at `address`.
    pub(super) fn fresh(address: SocketAddr) -> Result<UniqueId> {
        let number = u64::from_le_bytes(random::bytes()?);
        let host = if address.ip().is_loopback() { this_host() } else { 0 };
        Ok(UniqueId::build((address, host), 0, number, &random::bytes()?))
    }

    fn build((address, host): (SocketAddr, u64), flags: u8, number: u64, secret: &[u8; 32]) -> UniqueId {
        let (family, scope, octets) = match address {
            SocketAddr::V4(v4) => (0, 0, v4.ip().to_ipv6_mapped().octets()),
            SocketAddr::V6(v6) => (V6, v6.scope_id(), v6.ip().octets()),
        };
        let mut writer = Writer::with_capacity(UniqueId::BYTES);
        writer
            .u8(VERSION)
            .u8(flags | family)
            .u16(address.port())
            .u32(scope)
            .raw(&octets)
            .u64(number)
            .raw(secret)
            .u64(host);
        let mut bytes = [0; UniqueId::BYTES];
        bytes[..writer.as_slice().len()].copy_from_slice(writer.as_slice());
        let sum = checksum(&bytes);
        bytes[CHECKED_BYTES..].copy_from_slice(&sum);
        UniqueId(bytes)
    }

    /// The bytes. They hold a secret: send them to the other ranks only.
    pub fn as_bytes(&self) -> &[u8; UniqueId::BYTES] {
        &self.0
    }

    /// Decodes the id that another rank sent.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] if the length, the checksum, the version or a field is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Result<UniqueId> {
        let wrong = |why: String| Error::invalid_argument(format!("these bytes are not a unique id: {why}"));
        let Ok(bytes) = <[u8; UniqueId::BYTES]>::try_from(bytes) else {
            let length = bytes.len();
            return Err(wrong(format!("it has {length} bytes, an id has {}", UniqueId::BYTES)));
        };
        if bytes[0] != VERSION {
            let theirs = bytes[0];
            return Err(wrong(format!("its format version is {theirs}, this library knows version {VERSION}")));
        }
        if checksum(&bytes) != bytes[CHECKED_BYTES..] {
            return Err(wrong("its checksum is wrong: it was cut or changed, or never was an id".to_owned()));
        }
        let id = UniqueId(bytes);
        let known =
            bytes[1] & !(V6 | FIXED | UNAUTHENTICATED) == 0 && bytes[72..CHECKED_BYTES].iter().all(|byte| *byte == 0);
        let mapped = id.ip().to_ipv4_mapped().is_some();
        if !known || id.port() == 0 || mapped == (bytes[1] & V6 != 0) {
            return Err(wrong("a field has a value that this library does not know".to_owned()));
        }
        Ok(id)
    }

    /// The root's address.
    #[doc(hidden)]
    pub fn address(&self) -> SocketAddr {
        match self.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), self.port()),
            None => SocketAddrV6::new(self.ip(), self.port(), 0, u32::from_le_bytes(self.field(4))).into(),
        }
    }

    /// The communicator's number, which is not secret.
    #[doc(hidden)]
    pub fn number(&self) -> u64 {
        u64::from_le_bytes(self.field(24))
    }

    /// Whether the address is fixed (`NCCL_COMM_ID`), so that rank 0 serves it when it joins.
    #[doc(hidden)]
    pub fn is_fixed(&self) -> bool {
        self.0[1] & FIXED != 0
    }

    /// Whether it has a secret, which keeps strangers out.
    #[doc(hidden)]
    pub fn is_authenticated(&self) -> bool {
        self.0[1] & UNAUTHENTICATED == 0
    }

    /// Checks that this host can reach the root.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] if the address is the loopback of another host.
    pub(super) fn check_reach(&self) -> Result<()> {
        let (host, own) = (u64::from_le_bytes(self.field(64)), this_host());
        // Where this host is not known, for no descriptor is left to read who it is, connecting says what is wrong.
        if host == 0 || own == 0 || host == own {
            return Ok(());
        }
        Err(Error::invalid_usage(format!(
            "the id leads to {} of another host, which had no interface up but loopback when the id was made there: \
             make the id when the network is up, and without NCCL_SOCKET_IFNAME=lo",
            self.address()
        )))
    }

    /// The values that ranks and root must agree on.
    pub(super) fn terms(&self, options: &Options) -> Terms {
        let key = blake3::keyed_hash(&self.field(32), b"rsccl root").into();
        // A random secret keeps other jobs out, wherever the id was made; a fixed address has none of its own.
        let job = options.job.clone().filter(|_| self.is_fixed());
        Terms { key, purpose: Purpose::Root, communicator: self.number(), job, encryption: options.encryption }
    }

    /// The bytes that are the same on every rank: ranks may know a fixed host by different addresses.
    fn agreed(&self) -> [u8; UniqueId::BYTES] {
        let mut bytes = self.0;
        if self.is_fixed() {
            bytes[1] &= !V6;
            bytes[4..24].fill(0);
            bytes[CHECKED_BYTES..].fill(0);
        }
        bytes
    }

    fn ip(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.field::<16>(8))
    }

    fn port(&self) -> u16 {
        u16::from_le_bytes(self.field(2))
    }

    fn field<const N: usize>(&self, offset: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[offset + i])
    }
}

/// The fixed address of `options`; `None` if they have none.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] if it is not an address.
pub(super) fn fixed_place(options: &Options) -> Result<Option<HostPort>> {
    let place = options.comm_id.as_ref().map(|text| text.parse());
    place.transpose().map_err(|error: Error| error.during(FIXED_PLACE))
}

const FIXED_PLACE: &str = "the fixed address (NCCL_COMM_ID, Config::with_comm_id)";

/// A number that is equal for processes that share one loopback interface; 0 if the system does not tell.
fn this_host() -> u64 {
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let Some(boot) = host::boot_id().filter(|_| !namespace.as_os_str().is_empty()) else { return 0 };
    let hash = blake3::hash(format!("{boot} {}", namespace.display()).as_bytes());
    u64::from_le_bytes(std::array::from_fn(|place| hash.as_bytes()[place]))
}

/// The key of the communicator, derived from `ids` and the root's `session`.
pub(super) fn communicator_key(ids: &[UniqueId], session: &[u8; 16]) -> [u8; 32] {
    let mut seed = Writer::new();
    seed.raw(session);
    for id in ids {
        seed.raw(&id.agreed());
    }
    let secret: [u8; 32] = blake3::hash(seed.as_slice()).into();
    blake3::keyed_hash(&secret, b"rsccl communicator").into()
}

fn checksum(bytes: &[u8; UniqueId::BYTES]) -> [u8; 8] {
    let hash: [u8; 32] = blake3::hash(&bytes[..CHECKED_BYTES]).into();
    std::array::from_fn(|i| hash[i])
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UniqueId({:016x} at {})", self.number(), self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> UniqueId {
        UniqueId::fresh("[fe80::1%3]:4711".parse().unwrap()).unwrap()
    }

    #[test]
    fn an_id_travels_as_bytes() {
        for text in ["10.0.0.1:80", "[::1]:65535", "[fe80::1%3]:4711"] {
            let id = UniqueId::fresh(text.parse().unwrap()).unwrap();
            let other = UniqueId::from_bytes(id.as_bytes()).unwrap();
            assert_eq!((other, other.address().to_string()), (id, text.to_owned()));
            assert!(id.is_authenticated() && !id.is_fixed());
        }
        assert_ne!(id(), id());
    }

    #[test]
    fn debug_keeps_the_secret() {
        let id = id();
        let shown = format!("{id:?}");
        assert_eq!(shown, format!("UniqueId({:016x} at [fe80::1%3]:4711)", id.number()));
    }

    #[test]
    fn wrong_bytes_are_errors_that_say_why() {
        let good = *id().as_bytes();
        let why = |bytes: &[u8]| UniqueId::from_bytes(bytes).unwrap_err().to_string();
        assert!(why(&good[..127]).contains("it has 127 bytes, an id has 128"));
        assert!(why(&[]).contains("it has 0 bytes"));
        assert!(why(&[0; 128]).contains("format version is 0"));
        for bit in 8..good.len() * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(why(&bytes).contains("checksum"), "bit {bit}");
        }
        let mut unknown = good;
        unknown[1] |= 128;
        let sum = checksum(&unknown);
        unknown[CHECKED_BYTES..].copy_from_slice(&sum);
        assert!(why(&unknown).contains("does not know"));
    }

    #[test]
    fn a_fixed_address_needs_no_exchange_and_depends_on_the_secret() {
        let options = Options { comm_id: Some("127.0.0.1:4711".into()), ..Options::default() };
        let open = UniqueId::fixed(&options).unwrap().unwrap();
        assert_eq!(UniqueId::generate(&options).unwrap(), open);
        assert!(open.is_fixed() && !open.is_authenticated());
        let elsewhere = Options { comm_id: Some("[::1]:4711".into()), ..options.clone() };
        let other = UniqueId::fixed(&elsewhere).unwrap().unwrap();
        assert_eq!((other.number(), other.terms(&options).key), (open.number(), open.terms(&options).key));
        assert_eq!(communicator_key(&[other], &[7; 16]), communicator_key(&[open], &[7; 16]));
        let secret = Some(crate::bootstrap::SharedSecret::new(b"hush").unwrap());
        let closed = UniqueId::fixed(&Options { secret, ..options }).unwrap().unwrap();
        assert!(closed.is_authenticated() && closed.number() != open.number() && closed.address() == open.address());
        let wrong = UniqueId::fixed(&Options { comm_id: Some("nowhere".into()), ..Options::default() }).unwrap_err();
        assert!(wrong.to_string().contains("NCCL_COMM_ID") && wrong.to_string().contains("'nowhere'"), "{wrong}");
    }
}
