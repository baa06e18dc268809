//! Which settings differ between two ranks that must have equal ones.

use crate::session::settings::Settings;
use crate::types::Rank;

/// A setting that is equal on all ranks: the variables that set it, and its value.
type Shared = (&'static str, String);

/// The settings by which [`Settings::fingerprint`] tells ranks apart.
fn shared(settings: &Settings) -> [Shared; 20] {
    let Settings { policy, sizes, .. } = settings;
    let flag = |is_set: bool| u8::from(is_set).to_string();
    let count = |number: Option<u64>| number.map_or_else(|| "not set".to_owned(), |number| number.to_string());
    let bytes = |number: Option<u32>| count(number.map(u64::from));
    [
        ("NCCL_P2P_DISABLE", flag(policy.no_local)),
        ("NCCL_SHM_DISABLE", flag(policy.no_shm)),
        ("RSCCL_CMA_DISABLE", flag(policy.no_peer_reads)),
        ("RSCCL_CMA_FORCE", flag(policy.slow_peer_reads)),
        ("NCCL_P2P_USE_CUDA_MEMCPY", flag(settings.copy_engines)),
        ("NCCL_P2P_LL_THRESHOLD", settings.most_line_message_bytes.to_string()),
        ("NCCL_BUFFSIZE", (u64::from(sizes.shape.slots) * u64::from(sizes.shape.slot_bytes)).to_string()),
        ("RSCCL_SCRATCH_BYTES", sizes.scratch_bytes.to_string()),
        ("NCCL_SOCKET_NTHREADS or NCCL_NSOCKS_PERTHREAD", sizes.sockets.sockets.to_string()),
        ("NCCL_SOCKET_SNDBUF", bytes(sizes.sockets.send_buffer_bytes)),
        ("NCCL_SOCKET_RCVBUF", bytes(sizes.sockets.receive_buffer_bytes)),
        ("RSCCL_REPRODUCIBLE", flag(settings.reproducible)),
        ("RSCCL_COHORT", if settings.split_cohorts { "split" } else { "joint" }.to_owned()),
        ("NCCL_MIN_NCHANNELS", settings.channels.0.to_string()),
        ("NCCL_MAX_NCHANNELS", settings.channels.1.to_string()),
        ("NCCL_ALGO", format!("{:?}", settings.algorithms)),
        ("NCCL_PROTO", format!("{:?} {:?}", settings.protocols, settings.asked_protocols)),
        ("RSCCL_TEAM_RANKS", count(settings.team_ranks.map(|ranks| ranks as u64))),
        ("NCCL_CROSS_NIC", format!("{:?}", settings.searching.cross)),
        ("NCCL_P2P_LEVEL", settings.ways.level.map_or_else(|| "not set".to_owned(), |it| format!("{it:?}"))),
    ]
}

/// What a rank tells the others of its settings: a line for each. Values that no user would recognise are hashed.
pub fn told(settings: &Settings) -> Vec<u8> {
    let line = |(name, value): &Shared| format!("{name}={}\n", shown(value).unwrap_or_else(|| hashed(value)));
    shared(settings).iter().map(line).collect::<String>().into_bytes()
}

/// The settings in which `other` differs from this rank, in words, by what it has [told]; empty if none is known.
pub fn differing(settings: &Settings, other: Rank, theirs: &[u8]) -> String {
    let theirs = String::from_utf8_lossy(theirs);
    let their_value = |name: &str| {
        let mut lines = theirs.lines().filter_map(|line| line.split_once('='));
        lines.find(|(their_name, _)| *their_name == name).map(|(_, value)| value.to_owned())
    };
    let differs = |(name, value): &Shared| {
        let theirs = their_value(name)?;
        let mine = shown(value);
        let is_equal = mine.clone().unwrap_or_else(|| hashed(value)) == theirs;
        (!is_equal).then(|| match mine {
            Some(mine) => format!("{name} is {mine} on this rank and {} on rank {other}", theirs.escape_default()),
            None => (*name).to_owned(),
        })
    };
    shared(settings).iter().filter_map(differs).collect::<Vec<_>>().join(", ")
}

/// The value, if a user would recognise it.
fn shown(value: &str) -> Option<String> {
    (value.len() <= SHOWN_BYTES).then(|| value.to_owned())
}

fn hashed(value: &str) -> String {
    blake3::hash(value.as_bytes()).to_hex().as_str()[..SHOWN_BYTES].to_owned()
}

/// The longest value that is shown: numbers, and names of choices. Filters are longer.
const SHOWN_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn settings(config: &Config) -> Settings {
        Settings::read(config).unwrap()
    }

    #[test]
    fn what_differs_is_named() {
        let (mine, other) = (settings(&Config::default()), Rank::new(3));
        assert_eq!(differing(&mine, other, &told(&mine)), "");
        let mut config = Config::default().with_reproducible(true);
        config.buffer_bytes = Some(4 << 20);
        let theirs = told(&settings(&config));
        assert_eq!(
            differing(&mine, other, &theirs),
            "NCCL_BUFFSIZE is 1048576 on this rank and 4194304 on rank 3, \
             RSCCL_REPRODUCIBLE is 0 on this rank and 1 on rank 3"
        );
        config = Config::default();
        config.algo = Some("Ring".to_owned());
        assert_eq!(differing(&mine, other, &told(&settings(&config))), "NCCL_ALGO");
    }

    #[test]
    fn what_cannot_be_read_differs_in_nothing() {
        let mine = settings(&Config::default());
        for bytes in [&b""[..], b"=", b"\xff\xfe=1\n", b"NCCL_BUFFSIZE"] {
            assert_eq!(differing(&mine, Rank::new(1), bytes), "");
        }
        let odd = differing(&mine, Rank::new(1), b"NCCL_BUFFSIZE=\x1b[31m\n");
        assert!(odd.ends_with("\\u{1b}[31m on rank 1"), "{odd}");
    }
}
