//! The layouts on which communicators plan.

use std::time::Duration;

use crate::Communicator;
use crate::comm::CallCount;
use crate::config::Config;
use crate::error::{Kind, Result};
use crate::plan::Layout;
use crate::types::Algorithm;

const TWO_NODES: &str = r#"<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>
  <cpu numaid="1" affinity="000000f0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>
</system>
"#;

/// What `body` returns on ranks with these configurations.
pub(super) fn each<T: Send>(configs: &[Config], body: impl Fn(&Communicator) -> Result<T> + Sync) -> Result<Vec<T>> {
    let id = &Communicator::unique_id(&configs[0])?;
    let world = u32::try_from(configs.len()).unwrap();
    let body = &body;
    let join = |(rank, config)| {
        let comm = Communicator::init(id, rank, world, config)?;
        let found = body(&comm)?;
        comm.finalize().map(|_| found)
    };
    let all: Vec<Result<T>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..world).zip(configs).map(|rank| scope.spawn(move || join(rank))).collect();
        threads.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    all.into_iter().collect()
}

/// The layout of ranks with these configurations, which must be the same on all of them.
fn layout(configs: &[Config]) -> Result<Layout> {
    let all = each(configs, |comm| comm.with_engine(|engine| Ok(engine.layout().clone())))?;
    assert!(all.iter().all(|other| *other == all[0]), "ranks differ: {all:?}");
    Ok(all[0].clone())
}

fn teams(configs: &[Config]) -> Vec<Vec<u32>> {
    layout(configs).unwrap().teams().iter().map(|team| team.iter().map(|rank| rank.get()).collect()).collect()
}

fn base() -> Config {
    let config = Config::default().with_socket_interfaces("lo").with_host_id("one");
    config.with_timeout(Duration::from_secs(20)).with_init_timeout(Duration::from_secs(20))
}

#[test]
fn teams_follow_the_nodes_of_a_topology_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.xml");
    std::fs::write(&file, TWO_NODES).unwrap();
    let with = |each: &dyn Fn(Config) -> Config| {
        let at = |processors: &&str| each(base().with_topo_file(&file).with_processors(*processors));
        ["4", "0", "5-6", "1", "7"].iter().map(at).collect::<Vec<_>>()
    };
    assert_eq!(teams(&with(&|config| config)), [vec![0, 2, 4, 1, 3]], "a small host is one team");
    assert_eq!(teams(&with(&|config| config.with_team_ranks(3))), [vec![0, 2, 4], vec![1, 3]]);
    let ignored = with(&|config| config.with_team_ranks(3).with_ignore_cpu_affinity(true));
    assert_eq!(teams(&ignored), [vec![0, 1], vec![2, 3, 4]], "by number, where nothing is known");
}

/// Hosts of a switch follow each other, whatever the numbers of their ranks: in the teams of hierarchies, and so in
/// rings and trees.
#[test]
fn hosts_follow_each_other_by_their_switches() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("switches");
    std::fs::write(&file, "left: n0 n2\nright: n[1,3]\n").unwrap();
    let at = |host: u32| base().with_host_id(format!("n{host}"));
    let plain: Vec<Config> = [0, 1, 2, 3, 1].map(at).to_vec();
    assert_eq!(teams(&plain), [vec![0], vec![1, 4], vec![2], vec![3]]);
    let switched: Vec<Config> = plain.iter().map(|config| config.clone().with_switch_file(&file)).collect();
    assert_eq!(teams(&switched), [vec![0], vec![2], vec![1, 4], vec![3]]);
    std::fs::write(&file, "left n0\n").unwrap();
    let error = layout(&switched).unwrap_err();
    assert!(error.to_string().contains("switches:1: "), "{error}");
}

#[test]
fn a_topology_file_that_is_malformed_does_not_end_a_job_on_host_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.xml");
    std::fs::write(&file, "<system version=\"1\">\n<cpu numaid=\"x\"/></system>").unwrap();
    assert_eq!(teams(&[base(), base().with_topo_file(&file)]), [[0, 1]]);
}

/// Costs that are measured decide: where messages between hosts take for ever, a tree's fewer hops win at any size.
#[test]
fn ranks_choose_by_the_costs_of_a_tuning_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let slow = file("slow", "rsccl-tune 1\nnet_latency_us = 900000\n");
    let algorithm = |tune_file: Option<&std::path::PathBuf>| {
        let on = |host: u32| {
            let config = base().with_host_id(format!("host {host}")).with_algo("Ring,Tree");
            tune_file.map_or(config.clone(), |path| config.clone().with_tune_file(path))
        };
        let chosen = each(&(0..4).map(on).collect::<Vec<_>>(), |comm| {
            comm.chosen(crate::types::Collective::AllReduce, crate::DataType::F32, &CallCount::Each(4 << 20))
        });
        chosen.unwrap()[0].unwrap().algorithm
    };
    assert_eq!([algorithm(None), algorithm(Some(&slow))], [Algorithm::Ring, Algorithm::Tree]);
}

/// Inside a host too: where flags take for ever, messages win; without a file calls stay direct, whatever they cost.
#[test]
fn a_tuning_file_rules_inside_a_host() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slow");
    std::fs::write(&path, "rsccl-tune 1\nflag_us = 900000\n").unwrap();
    let of = |config: crate::Config| {
        let asked = |collective, count| (collective, crate::DataType::F32, CallCount::Each(count));
        let calls = [
            asked(crate::types::Collective::AllReduce, 1 << 20),
            asked(crate::types::Collective::AllGather, 1 << 18),
            asked(crate::types::Collective::AllToAll, 1 << 18),
            asked(crate::types::Collective::AllReduce, 2),
        ];
        let told = each(&[config.clone(), config], |comm| {
            let mut sum = vec![comm.rank() + 1; 1 << 16];
            comm.all_reduce_in_place(&mut sum, crate::ReduceOp::Sum)?;
            assert_eq!(sum, vec![3; 1 << 16]);
            let asked =
                |(collective, data_type, count): &(_, _, CallCount)| comm.chosen(*collective, *data_type, count);
            let chosen = calls.iter().map(asked).collect::<Result<Vec<_>>>()?;
            Ok(chosen.into_iter().map(|chosen| chosen.unwrap().algorithm).collect::<Vec<Algorithm>>())
        });
        told.unwrap()[0].clone()
    };
    use Algorithm::{Direct, Ring};
    assert_eq!(of(base()), [Direct; 4]);
    let chosen = of(base().with_tune_file(&path));
    assert!(chosen[0] != Direct && chosen[1] != Direct, "{chosen:?}");
    assert_eq!(chosen[2..], [Direct; 2], "one has no other, and small calls have a path without a plan");
    assert_eq!(of(base().with_tune_file(&path).with_reproducible(true))[0], Direct);
    assert_eq!(of(base().with_tune_file(&path).with_algo("Ring"))[0], Ring);
}

#[test]
fn ranks_with_other_constants_are_named_with_their_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        base().with_tune_file(&path)
    };
    let one = || file("one", "rsccl-tune 1\nflag_us = 0.5\n");
    let same = file("same", "rsccl-tune 1\n# equal\nflag_us = 0.50\n");
    layout(&[one(), same]).unwrap();
    let error = layout(&[one(), one(), file("two", "rsccl-tune 1\n")]).unwrap_err();
    assert_eq!((error.kind(), error.peer()), (Kind::Mismatch, Some(2)), "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 0 has the tuning file") && text.contains("/one\" with the hash "), "{text}");
    assert!(text.contains("and rank 2 has the tuning file") && text.contains("/two\" with the hash "), "{text}");
    let error = layout(&[base(), one()]).unwrap_err().to_string();
    assert!(error.contains("rank 0 has no tuning file, and rank 1 has the tuning file"), "{error}");
    let error = layout(&[file("bad", "rsccl-tune 1\nflag_us = much\n")]).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArgument);
    assert!(error.to_string().contains("/bad:2: flag_us must be a number"), "{error}");
}

#[test]
fn ranks_with_other_sizes_of_teams_do_not_meet() {
    let error = layout(&[base(), base().with_team_ranks(3)]).unwrap_err();
    assert_eq!(error.kind(), Kind::Mismatch, "{error}");
}
