//! Plans on layouts whose teams are of uneven size, or cut along sockets and caches.

use std::sync::Arc;

use rsccl::internals::plan::{Layout, Limits, Spec, Windows, algorithms};
use rsccl::internals::topo::layout::RankPlace;
use rsccl::internals::types::Elements;
use rsccl::types::{Algorithm, Collective, Rank, World};

use crate::{base, bearable, counts, hosts_of, layout, limits, proof};

/// A hierarchy of hosts of uneven size, and of hosts that are cut into teams: what is too small for the other ranks, a
/// rank that is alone, a root that has no seat.
#[test]
fn hierarchies_of_uneven_teams_are_proved() {
    let hosts = |sizes: &[u32]| layout(hosts_of(sizes));
    let teams = |sizes: &[u32], most: usize| Arc::new(Layout::of_hosts(&hosts_of(sizes)).unwrap().with_teams_of(most));
    let layouts = [hosts(&[3, 1]), hosts(&[1, 4]), hosts(&[3, 2, 3]), hosts(&[2, 5, 1, 3]), hosts(&[4, 4, 3])];
    let cut = [teams(&[7], 3), teams(&[8], 4), teams(&[9, 4], 4), teams(&[12], 2), teams(&[5, 1], 3)];
    assert_eq!(layouts.into_iter().chain(cut).map(prove_hierarchies).sum::<u32>(), 12606);
}

/// Ranks that stand on sockets and caches in another order than that of their numbers: rings and teams follow the
/// domains.
#[test]
fn hierarchies_along_sockets_and_caches_are_proved() {
    let at = |host: u64, socket: u64, cache: u64| RankPlace {
        host,
        socket: Some(socket),
        cache: Some(cache),
        ..RankPlace::default()
    };
    // A machine of two sockets, with three ranks on one and five on the other.
    let two = [at(0, 1, 3), at(0, 0, 0), at(0, 1, 2), at(0, 1, 3), at(0, 0, 1), at(0, 1, 2), at(0, 0, 0), at(0, 1, 3)];
    let one = Layout::new(&two).with_teams_of(5);
    let numbers = |layout: &Layout| -> Vec<Vec<u32>> {
        layout.teams().iter().map(|team| team.iter().map(|rank| rank.get()).collect()).collect()
    };
    assert_eq!(numbers(&one), [vec![0, 3, 7, 2, 5], vec![1, 6, 4]]);
    // Three hosts; the second is bound to one socket, the third to nothing.
    let unbound = RankPlace { host: 2, ..RankPlace::default() };
    let three =
        [at(0, 0, 0), at(1, 0, 0), unbound.clone(), at(0, 1, 1), at(1, 0, 1), unbound, at(0, 0, 0), at(0, 1, 1)];
    let several = Layout::new(&three).with_teams_of(3);
    assert_eq!(numbers(&several), [vec![0, 6], vec![3, 7], vec![1, 4], vec![2, 5]]);
    let whole = Layout::new(&three);
    assert_eq!(numbers(&whole), [vec![0, 6, 3, 7], vec![1, 4], vec![2, 5]]);
    let layouts = [one, several, whole].map(Arc::new);
    assert_eq!(layouts.into_iter().map(prove_hierarchies).sum::<u32>(), 3915);
}

/// Proves every hierarchy on a layout, in several sizes and with several limits; how many there were.
fn prove_hierarchies(layout: Arc<Layout>) -> u32 {
    let mut proved = 0;
    let size = u32::try_from(layout.size()).expect("a few ranks");
    for (collective, algorithm, windows) in hierarchies() {
        for (place, count) in counts(collective, size).into_iter().enumerate() {
            for (turn, limits) in limits(size).into_iter().enumerate() {
                // Small scratch, which fewer regions fit.
                let limits = Limits { scratch: Elements(limits.scratch.0 * 2), ..limits };
                let spec = Spec {
                    collective,
                    algorithm,
                    windows,
                    count: count.clone(),
                    layout: Arc::clone(&layout),
                    world: World { rank: Rank::new(0), size },
                    root: Rank::new(u32::try_from(place * 2 + turn).expect("a few cases") % size),
                    in_place: (place + turn) % 2 == 1,
                    limits,
                    ..base(collective, algorithm, windows)
                };
                if bearable(&spec) {
                    proof(&spec).unwrap_or_else(|flaw| panic!("{flaw}\nfor {spec:?}"));
                    proved += 1;
                }
            }
        }
    }
    proved
}

fn hierarchies() -> impl Iterator<Item = (Collective, Algorithm, Windows)> {
    use Collective::{AllGather, AllReduce, Broadcast, Reduce, ReduceScatter};
    let all = [AllReduce, Broadcast, Reduce, AllGather, ReduceScatter].into_iter().flat_map(|collective| {
        algorithms(collective)
            .iter()
            .filter(|algorithm| **algorithm != Algorithm::Pat)
            .map(move |all| (collective, *all))
    });
    all.flat_map(|(collective, algorithm)| {
        [Windows::Scratch, Windows::User, Windows::Symmetric].map(|windows| (collective, algorithm, windows))
    })
}
