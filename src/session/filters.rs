//! What runs where `NCCL_ALGO` or `NCCL_PROTO` leaves a collective nothing that host memory has.
//!
//! The variables are written for GPUs: NCCL's own example of a configuration file asks for LL128. Such a wish must not
//! make every call an error, so the library runs what it has and says so once; `RSCCL_STRICT_FILTERS=1` keeps the
//! error.

use crate::plan::algorithms;
use crate::types::{Algorithm, Collective, Filter, Protocol};

/// The protocols of host memory: LL for small calls inside one host, Simple for the rest.
const HOST_PROTOCOLS: &[Protocol] = &[Protocol::LowLatency, Protocol::Simple];

/// What a filter lacks for some collectives, and what it was opened for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opened {
    collectives: Vec<Collective>,
    why: &'static str,
}

/// Allows all algorithms of each collective for which the filter leaves none of them.
pub(super) fn open_algorithms(filter: &mut Filter<Algorithm>) -> Vec<Opened> {
    let is_left = |collective: Collective| {
        let possible = algorithms(collective);
        possible.is_empty() || possible.iter().any(|algorithm| filter.allows(collective, *algorithm))
    };
    let bare: Vec<Collective> = Collective::ALL.iter().copied().filter(|collective| !is_left(*collective)).collect();
    bare.iter().for_each(|collective| filter.allow(*collective, algorithms(*collective)));
    opened(bare, "has none of these algorithms: the library chooses among those that it has")
}

/// Allows Simple for each collective for which the filter does not, and LL too where it allows neither.
pub(super) fn open_protocols(filter: &mut Filter<Protocol>) -> Vec<Opened> {
    let lacks_simple = |collective: &Collective| !filter.allows(*collective, Protocol::Simple);
    let short: Vec<Collective> = Collective::ALL.iter().copied().filter(lacks_simple).collect();
    let has_fast = |collective: &Collective| filter.allows(*collective, Protocol::LowLatency);
    let (fast, bare): (Vec<Collective>, Vec<Collective>) = short.into_iter().partition(has_fast);
    fast.iter().for_each(|collective| filter.allow(*collective, &[Protocol::Simple]));
    bare.iter().for_each(|collective| filter.allow(*collective, HOST_PROTOCOLS));
    let mut all = opened(bare, "has none of these protocols on host memory: LL and Simple run in their place");
    all.extend(opened(fast, "has LL on host memory only for small calls inside one host: Simple runs the rest"));
    all
}

fn opened(collectives: Vec<Collective>, why: &'static str) -> Vec<Opened> {
    if collectives.is_empty() { Vec::new() } else { vec![Opened { collectives, why }] }
}

impl Opened {
    /// The line of the log; `variable` is set to `text`.
    pub fn line(&self, variable: &str, text: &str) -> String {
        let names: Vec<&str> = self.collectives.iter().map(|collective| collective.name()).collect();
        let (names, why) = (names.join(", "), self.why);
        format!("{variable}={text}: {names} {why} (RSCCL_STRICT_FILTERS=1 makes this an error)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_host_memory_lacks_is_replaced_and_what_it_has_is_obeyed() {
        let mut filter = Filter::parse("LL128").unwrap();
        let lines = open_protocols(&mut filter);
        assert_eq!(lines.len(), 1);
        let line = lines[0].line("NCCL_PROTO", "LL128");
        assert!(line.starts_with("NCCL_PROTO=LL128: all_reduce, "), "{line}");
        assert!(line.contains("LL and Simple run in their place"), "{line}");
        let allows = |filter: &Filter<Protocol>, protocol| filter.allows(Collective::AllReduce, protocol);
        assert!(allows(&filter, Protocol::Simple) && allows(&filter, Protocol::LowLatency));

        let mut filter = Filter::parse("LL").unwrap();
        assert!(open_protocols(&mut filter)[0].line("NCCL_PROTO", "LL").contains("Simple runs the rest"));
        let mut filter = Filter::parse("^LL").unwrap();
        assert_eq!(open_protocols(&mut filter), []);
        assert!(!allows(&filter, Protocol::LowLatency));
    }

    #[test]
    fn an_algorithm_that_a_collective_lacks_leaves_it_all_of_its_own() {
        let mut filter = Filter::parse("Tree").unwrap();
        let lines = open_algorithms(&mut filter);
        let line = lines[0].line("NCCL_ALGO", "Tree");
        assert!(line.contains("all_gather") && !line.contains("all_reduce"), "{line}");
        assert!(filter.allows(Collective::AllGather, Algorithm::Ring));
        assert!(!filter.allows(Collective::AllReduce, Algorithm::Ring), "it has trees");
        let mut filter = Filter::parse("NVLS").unwrap();
        assert!(open_algorithms(&mut filter)[0].line("NCCL_ALGO", "NVLS").contains("all_reduce"));
        let mut filter = Filter::parse("Ring").unwrap();
        assert_eq!(open_algorithms(&mut filter), [], "what NCCL has no ring for is filtered by name only");
    }
}
