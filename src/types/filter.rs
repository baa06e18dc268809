//! The user's restriction of algorithms or protocols, for all collectives or for some.
//!
//! The text is that of `NCCL_ALGO` and `NCCL_PROTO`: `[collective:][^]name,name;collective:[^]name;…`. The first entry
//! may omit the collective, and then applies to all; `^` forbids the names that follow and allows the others; a later
//! entry for a collective replaces an earlier one. Case does not matter, and `AllReduce` equals `all_reduce`.

use std::marker::PhantomData;

use super::{Algorithm, Collective, Protocol};
use crate::{Error, Result};

/// Something that a [`Filter`] can allow or forbid.
pub trait Selectable: Copy + PartialEq + 'static {
    /// The word for it in errors.
    const WHAT: &'static str;
    /// All values.
    const ALL: &'static [Self];
    /// Names that NCCL knows but rsccl does not implement: they are accepted, and select nothing.
    const ABSENT: &'static [&'static str];
    /// Its name.
    fn name(self) -> &'static str;
}

impl Selectable for Algorithm {
    const WHAT: &'static str = "algorithm";
    const ALL: &'static [Algorithm] = Algorithm::ALL;
    const ABSENT: &'static [&'static str] = &["CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"];
    fn name(self) -> &'static str {
        self.name()
    }
}

impl Selectable for Protocol {
    const WHAT: &'static str = "protocol";
    const ALL: &'static [Protocol] = Protocol::ALL;
    const ABSENT: &'static [&'static str] = &[];
    fn name(self) -> &'static str {
        self.name()
    }
}

/// The algorithms or protocols that a user allows for each collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter<T> {
    /// For each collective (by its code), one bit for each of `T::ALL`.
    allowed: [u32; Collective::ALL.len()],
    what: PhantomData<T>,
}

impl<T: Selectable> Default for Filter<T> {
    /// Allows everything.
    fn default() -> Filter<T> {
        Filter { allowed: [all::<T>(); Collective::ALL.len()], what: PhantomData }
    }
}

impl<T: Selectable> Filter<T> {
    /// Allows only `item`, for all collectives.
    pub fn only(item: T) -> Filter<T> {
        Filter { allowed: [bit(item); Collective::ALL.len()], what: PhantomData }
    }

    /// Parses the text of `NCCL_ALGO` or `NCCL_PROTO`; an empty text allows everything. An entry without collective
    /// applies to those that NCCL has algorithms for; barrier, all_to_all, gather and scatter are filtered only by
    /// name.
    ///
    /// # Errors
    /// `InvalidArgument` with the wrong word and what is allowed in its place.
    pub fn parse(text: &str) -> Result<Filter<T>> {
        let mut filter = Filter::default();
        if text.trim().is_empty() {
            return Ok(filter);
        }
        for (number, entry) in text.split(';').enumerate() {
            let (collective, names) = match entry.split_once(':') {
                Some((collective, names)) => (Some(parse_collective(collective.trim())?), names),
                None if number == 0 => (None, entry),
                None => {
                    return Err(Error::invalid_argument(format!(
                        "\"{}\": only the first entry may leave out its collective; write \"collective:names\"",
                        entry.trim()
                    )));
                }
            };
            let allowed = parse_names::<T>(names.trim())?;
            match collective {
                Some(collective) => filter.allowed[usize::from(collective.code())] = allowed,
                None => {
                    let meant = Collective::ALL.iter().filter(|collective| OF_NCCL.contains(collective));
                    meant.for_each(|collective| filter.allowed[usize::from(collective.code())] = allowed);
                }
            }
        }
        Ok(filter)
    }

    /// Whether the user allows `item` for `collective`.
    pub fn allows(&self, collective: Collective, item: T) -> bool {
        self.allowed[usize::from(collective.code())] & bit(item) != 0
    }

    /// Also allows `items` for `collective`.
    pub(crate) fn allow(&mut self, collective: Collective, items: &[T]) {
        let more = items.iter().fold(0, |bits, item| bits | bit(*item));
        self.allowed[usize::from(collective.code())] |= more;
    }

    /// Those of `possible` that the user allows for `collective`.
    ///
    /// # Errors
    /// `InvalidArgument` if none remains; it names the collective, what the user allows and what the collective has.
    pub fn choose(&self, collective: Collective, possible: &[T]) -> Result<Vec<T>> {
        let left: Vec<T> = possible.iter().copied().filter(|item| self.allows(collective, *item)).collect();
        if left.is_empty() {
            let user: Vec<T> = T::ALL.iter().copied().filter(|item| self.allows(collective, *item)).collect();
            return Err(Error::invalid_argument(format!(
                "no {} is left for {collective}: the filter allows {}, and the collective has {}",
                T::WHAT,
                names(&user),
                names(possible)
            )));
        }
        Ok(left)
    }
}

/// Collectives to which `NCCL_ALGO=Ring` applies: those that NCCL has such algorithms for, these with counts, and
/// messages. Of the others nothing would remain.
const OF_NCCL: [Collective; 9] = [
    Collective::AllReduce,
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllGather,
    Collective::AllGatherV,
    Collective::ReduceScatter,
    Collective::ReduceScatterV,
    Collective::Send,
    Collective::Recv,
];

fn parse_collective(word: &str) -> Result<Collective> {
    let plain = |name: &str| name.replace('_', "").to_ascii_lowercase();
    let found = Collective::ALL.iter().copied().find(|collective| plain(collective.name()) == plain(word));
    found.ok_or_else(|| {
        let known: Vec<&str> = Collective::ALL.iter().map(|collective| collective.name()).collect();
        Error::invalid_argument(format!("\"{word}\" is not a collective; known are {}", known.join(", ")))
    })
}

fn parse_names<T: Selectable>(text: &str) -> Result<u32> {
    let (forbids, list) = match text.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, text),
    };
    let mut named = 0;
    for word in list.split(',').map(str::trim) {
        let known = T::ALL.iter().find(|item| item.name().eq_ignore_ascii_case(word));
        named |= match known {
            Some(item) => bit(*item),
            None if T::ABSENT.iter().any(|absent| absent.eq_ignore_ascii_case(word)) => 0,
            None => {
                let text = format!("\"{word}\" is not {} {}; allowed are {}", article(T::WHAT), T::WHAT, names(T::ALL));
                return Err(Error::invalid_argument(text));
            }
        };
    }
    Ok(if forbids { all::<T>() & !named } else { named })
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

fn names<T: Selectable>(items: &[T]) -> String {
    let names: Vec<&str> = items.iter().map(|item| item.name()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn bit<T: Selectable>(item: T) -> u32 {
    T::ALL.iter().position(|known| *known == item).map_or(0, |index| 1 << index)
}

fn all<T: Selectable>() -> u32 {
    T::ALL.iter().fold(0, |bits, item| bits | bit(*item))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(text: &str, collective: Collective) -> Vec<&'static str> {
        let filter = Filter::<Algorithm>::parse(text).unwrap();
        Algorithm::ALL.iter().filter(|item| filter.allows(collective, **item)).map(|item| item.name()).collect()
    }

    fn refused(text: &str) -> String {
        Filter::<Algorithm>::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn the_syntax_of_nccl_is_read() {
        use Collective::{AllGather, AllReduce};
        assert_eq!(allowed("", AllReduce), ["Ring", "Tree", "Direct", "PAT"]);
        assert_eq!(allowed("ring,TREE", AllReduce), ["Ring", "Tree"]);
        assert_eq!(allowed("^Tree , pat", AllGather), ["Ring", "Direct"]);
        assert_eq!(allowed("Ring;AllReduce:^Ring", AllReduce), ["Tree", "Direct", "PAT"]);
        assert_eq!(allowed("Ring;all_reduce:^Ring", AllGather), ["Ring"]);
        assert_eq!(allowed("allgather:pat;allgather:ring", AllGather), ["Ring"]);
        assert_eq!(allowed("allgather:pat", AllReduce), ["Ring", "Tree", "Direct", "PAT"]);
        assert_eq!(allowed("^NVLS,Ring", AllReduce), ["Tree", "Direct", "PAT"]);
        assert_eq!(allowed("NVLSTree", AllReduce), Vec::<&str>::new());
        assert!(Filter::<Protocol>::parse("^LL128,LL").unwrap().allows(AllReduce, Protocol::Simple));
    }

    #[test]
    fn wrong_words_are_named() {
        assert_eq!(refused("Rng"), "\"Rng\" is not an algorithm; allowed are Ring, Tree, Direct, PAT");
        assert_eq!(refused("Ring,"), "\"\" is not an algorithm; allowed are Ring, Tree, Direct, PAT");
        assert!(refused("reduceall:Ring").starts_with("\"reduceall\" is not a collective; known are all_reduce,"));
        assert!(refused("Ring;Tree").starts_with("\"Tree\": only the first entry"));
        let error = Filter::<Protocol>::parse("LL64").unwrap_err().to_string();
        assert_eq!(error, "\"LL64\" is not a protocol; allowed are LL, LL128, Simple");
    }

    #[test]
    fn a_filter_that_leaves_nothing_says_so() {
        let filter = Filter::only(Algorithm::Pat);
        let error = filter.choose(Collective::AllReduce, &[Algorithm::Ring, Algorithm::Tree]).unwrap_err().to_string();
        assert_eq!(
            error,
            "no algorithm is left for all_reduce: the filter allows PAT, and the collective has Ring, Tree"
        );
        assert_eq!(filter.choose(Collective::AllGather, Algorithm::ALL).unwrap(), [Algorithm::Pat]);
    }
}
