//! Plans as text.

use rsccl::internals::plan::{Count, Spec, Windows};
use rsccl::internals::types::Elements;
use rsccl::types::{Algorithm, Collective, Rank, World};

use crate::{base, hosts_of, layout, plans};

#[test]
fn plans_print_as_text() {
    let text = |spec: &Spec| plans(spec)[1].to_string();
    let ring =
        Spec { count: Count::Each(Elements(1000)), ..base(Collective::AllReduce, Algorithm::Ring, Windows::None) };
    assert_eq!(
        text(&ring),
        "\
all_reduce Ring Simple: rank 1 of 3, 1000 elements
lane 0: channel 0, 4 rounds
  +0 320 by 100: input[0..] -> to rank 2
  +0 360 by 100: input[640..] + from rank 0 -> to rank 2
  +0 320 by 100: input[320..] + from rank 0 -> output[320..], to rank 2; finish
  +0 320 by 100: from rank 0 -> output[0..], to rank 2
  +0 360 by 100: from rank 0 -> output[640..]
"
    );
    let staged = base(Collective::AllReduce, Algorithm::Direct, Windows::Scratch);
    assert_eq!(
        text(&staged),
        "\
all_reduce Direct Simple: rank 1 of 3, 2500 elements, scratch windows
lane 0: channel 0, 12 rounds
  +0 enter with ranks 0, 2
  +0 836 by 70: input[1664..] -> scratch[210.. cycle 3]
  +0 832 by 70: input[0..] -> scratch[0.. cycle 3]
  +0 signal 0 to ranks 0, 2
  +1 wait for flag 0 of rank 2
  +1 wait for flag 0 of rank 0
  +1 832 by 70: rank 0 scratch[0.. cycle 3] + input[832..] + rank 2 scratch[210.. cycle 3] -> \
output[832..], scratch[420.. cycle 3]; finish
  +1 signal 1 to ranks 0, 2
  +2 wait for flag 1 of rank 2
  +2 836 by 70: rank 2 scratch[420.. cycle 3] -> output[1664..]
  +2 wait for flag 1 of rank 0
  +2 832 by 70: rank 0 scratch[420.. cycle 3] -> output[0..]
"
    );
    let gathered = Spec { in_place: true, ..base(Collective::Gather, Algorithm::Direct, Windows::User) };
    assert_eq!(
        text(&gathered),
        "\
gather Direct Simple: rank 1 of 3, 2500 elements, in place, root 1, user windows
lane 0: channel 0, 1 rounds
  +0 enter with ranks 0, 2
  +0 2500: input[0..] -> output[2500..]
  +0 signal 0 to ranks 0, 2
  +0 wait for flag 1 of rank 2
  +0 wait for flag 1 of rank 0
"
    );
}

/// The root of a reduction takes what the others have made: they cannot know where its output is. The root of a gather
/// moves all; that of a broadcast has copied its input to where the others read.
#[test]
fn plans_in_symmetric_windows_print_as_text() {
    let text = |collective: Collective, rank: usize| {
        plans(&base(collective, Algorithm::Direct, Windows::Symmetric))[rank].to_string()
    };
    assert_eq!(
        text(Collective::Reduce, 1),
        "\
reduce Direct Simple: rank 1 of 3, 2500 elements, root 1, symmetric windows
lane 0: channel 0, 4 rounds
  +0 enter with ranks 0, 2
  +0 signal 0 to ranks 0, 2
  +1 wait for flag 0 of rank 2
  +1 wait for flag 0 of rank 0
  +1 832 by 210: rank 0 input[832..] + input[832..] + rank 2 input[832..] -> output[832..]; finish
  +1 signal 1 to ranks 0, 2
  +2 wait for flag 1 of rank 2
  +2 836 by 210: rank 2 scratch[0.. cycle 3] -> output[1664..]
  +2 wait for flag 1 of rank 0
  +2 832 by 210: rank 0 scratch[0.. cycle 3] -> output[0..]
"
    );
    assert_eq!(
        text(Collective::Gather, 1),
        "\
gather Direct Simple: rank 1 of 3, 2500 elements, root 1, symmetric windows
lane 0: channel 0, 1 rounds
  +0 enter with ranks 0, 2
  +0 wait for flag 0 of rank 2
  +0 2500: rank 2 input[0..] -> output[5000..]
  +0 wait for flag 0 of rank 0
  +0 2500: rank 0 input[0..] -> output[0..]
  +0 2500: input[0..] -> output[2500..]
  +0 signal 1 to ranks 0, 2
"
    );
    assert_eq!(
        text(Collective::Broadcast, 2),
        "\
broadcast Direct Simple: rank 2 of 3, 2500 elements, root 1, symmetric windows
lane 0: channel 0, 1 rounds
  +0 enter with ranks 0, 1
  +0 signal 0 to ranks 0, 1
  +1 wait for flag 0 of rank 0
  +1 wait for flag 0 of rank 1
  +1 836: rank 1 output[1664..] -> output[1664..], rank 0 output[1664..]
  +1 signal 1 to ranks 0, 1
  +2 wait for flag 1 of rank 0
  +2 wait for flag 1 of rank 1
"
    );
}

#[test]
fn a_tree_between_hosts_prints_as_text() {
    let spec = Spec {
        world: World { rank: Rank::new(0), size: 4 },
        layout: layout(hosts_of(&[2, 2])),
        ..base(Collective::AllReduce, Algorithm::Tree, Windows::User)
    };
    assert_eq!(
        plans(&spec)[3].to_string(),
        "\
all_reduce Tree Simple: rank 3 of 4, 2500 elements, user windows, 2 hosts
lane 0: channel 0, 13 rounds
  +0 enter with rank 2
  +0 signal 0 to rank 2
  +1 wait for flag 0 of rank 2
  +1 1220 by 100: rank 2 input[1280..] + input[1280..] -> to rank 1
  +3 1220 by 100: from rank 1 -> output[1280..], rank 2 output[1280..]
  +3 signal 1 to rank 2
  +4 wait for flag 1 of rank 2
"
    );
    let aggregated = Spec {
        world: World { rank: Rank::new(0), size: 5 },
        layout: layout(hosts_of(&[5])),
        count: Count::Each(Elements(40)),
        ..base(Collective::ReduceScatter, Algorithm::Pat, Windows::None)
    };
    assert_eq!(
        plans(&aggregated)[3].to_string(),
        "\
reduce_scatter PAT Simple: rank 3 of 5, 40 elements
lane 0: channel 0, 1 rounds
  +0 40: input[80..] -> to rank 2
  +0 40: input[120..] + from rank 4 -> scratch[0.. cycle 1]
  +0 40: input[0..] -> to rank 0
  +0 40: scratch[0.. cycle 1] + from rank 1 -> scratch[0.. cycle 1]
  +0 40: input[40..] -> to rank 0
  +0 40: input[160..] + from rank 1 -> scratch[40.. cycle 1]
  +0 40: scratch[40.. cycle 1] -> to rank 4
  +0 40: scratch[0.. cycle 1] + from rank 2 -> output[0..]; finish
"
    );
}
