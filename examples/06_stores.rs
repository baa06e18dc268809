//! Goal: a unique id that travels by a store, three times: in the memory of one process, in a folder that all can reach, and
//! over TCP, served by one of the ranks. The rest of the program cannot tell which it was.
//!
//!     cargo run --example 06_stores
//!
//! Prints:
//!
//!     HashStore: 3 ranks met
//!     FileStore: 3 ranks met
//!     TcpStore: 3 ranks met
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

use std::time::Duration;

use rsccl::store::{AbortFlag, Wait};
use rsccl::store::{FileStore, HashStore, Store, StoreConfig, TcpStore, share_id};
use rsccl::types::{Rank, World};
use rsccl::{Communicator, Config, Result};

const WORLD: u32 = 3;
/// What any step may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let wait = Wait::new(PATIENCE, &AbortFlag::new());

    // Ranks that are threads share the store itself.
    let shared = HashStore::new();
    meet("HashStore", [&shared, &shared, &shared])?;

    // Ranks that are processes share a folder; only its owner may enter, for ids hold secrets.
    let folder = std::env::temp_dir().join(format!("rsccl-06-stores-{}", std::process::id()));
    let open = || FileStore::open(&folder, &wait);
    meet("FileStore", [&open()?, &open()?, &open()?])?;
    std::fs::remove_dir_all(&folder).map_err(|error| rsccl::Error::system("removing the folder", error))?;

    // Ranks on several hosts share an address, and a secret that keeps others out. Port 0: any that is free.
    let config = StoreConfig::default().with_secret(b"a word among friends")?;
    let served = TcpStore::serve(([127, 0, 0, 1], 0).into(), &config)?;
    let place = served.address().expect("this process serves it").to_string();
    let connect = || TcpStore::connect(&place, &config);
    meet("TcpStore", [&served, &connect()?, &connect()?])
}

/// Ranks join with the id that they find in their store.
fn meet(name: &str, stores: [&dyn Store; WORLD as usize]) -> Result<()> {
    let join = |rank, store| {
        let wait = Wait::new(PATIENCE, &AbortFlag::new());
        let config = Config::default().with_socket_interfaces("lo");
        let me = World { rank: Rank::new(rank), size: WORLD };
        // Rank 0 makes the id, the others wait for it; the last one takes it out of the store.
        let id = share_id(store, "example/id", me, || Communicator::unique_id(&config), &wait)?;
        Communicator::init(&id, rank, WORLD, &config)?.barrier()
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            (0..WORLD).zip(stores).map(|(rank, store)| scope.spawn(move || join(rank, store))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("no rank panics"))
    })?;
    println!("{name}: {WORLD} ranks met");
    Ok(())
}
