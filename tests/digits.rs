//! The main job: the example `digits` learns, and in reproducible mode it learns the same bits over every transport.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The example, built if it is not yet: a plain `cargo test` has done so, `cargo test --test digits` has not. `./test.sh`
/// says so by `RSCCL_TEST_BUILT`: beside the packages that it tests, some crate has a feature more, and cargo would build
/// the library for this example alone a second time.
fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        let test = std::env::current_exe().expect("a test has a path");
        let profile = test.ancestors().nth(2).expect("tests lie in a folder of the profile's");
        let program = profile.join("examples/digits");
        if is_built() {
            return program;
        }
        // From the root, so that cargo takes the features of all packages that are tested there.
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        cargo.args(["build", "--quiet", "--offline", "--example", "digits", "--target-dir"]).arg(profile.join(".."));
        // The features of this very build: with any others, cargo would build the library a second time.
        for (feature, is_on) in FEATURES {
            if is_on {
                cargo.args(["--features", feature]);
            }
        }
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().expect("cargo starts").success(), "the example is not built");
        program
    });
    &PROGRAM
}

fn is_built() -> bool {
    #![expect(clippy::disallowed_methods, reason = "what was built before is no configuration of the library")]
    std::env::var("RSCCL_TEST_BUILT").is_ok_and(|value| value == "1")
}

/// Every feature of the library, and whether this build has it.
const FEATURES: [(&str, bool); 5] = [
    ("cli", cfg!(feature = "cli")),
    ("mpi", cfg!(feature = "mpi")),
    ("cpp", cfg!(feature = "cpp")),
    ("encrypt", cfg!(feature = "encrypt")),
    ("cuda", cfg!(feature = "cuda")),
];

#[test]
fn the_list_of_features_is_complete() {
    let manifest = include_str!("../Cargo.toml");
    let (_, section) = manifest.split_once("[features]\n").expect("the manifest has features");
    let lines = section.lines().take_while(|line| !line.is_empty());
    // `internals` is what the command and tests reach besides: it changes nothing of what a program does.
    let names = lines.filter_map(|line| line.split_once(" = [")).map(|(name, _)| name);
    let names = names.filter(|name| !["default", "internals"].contains(name));
    assert_eq!(names.collect::<Vec<_>>(), FEATURES.map(|(name, _)| name));
}

/// What the job prints behind `label`, having run with `arguments`.
fn run(arguments: &[&str], label: &str) -> String {
    let printed = print(&[], arguments);
    let line = printed.lines().find_map(|line| line.strip_prefix(label));
    line.unwrap_or_else(|| panic!("{arguments:?}: no `{label}` in\n{printed}")).to_owned()
}

/// What the job prints, having run with `arguments`, and with `variables` besides its own.
fn print(variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let mut command = Command::new(program());
    let output = command.args(arguments).envs(variables.iter().copied()).output().expect("the example starts");
    let (printed, complaints) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {}\n{printed}\n{complaints}", output.status);
    printed.into_owned()
}

#[test]
fn reproducible_weights_are_the_same_over_every_transport() {
    let weights = |transport| run(&["--reproducible", "--transport", transport], "weights ");
    let (local, shm, net) = (weights("local"), weights("shm"), weights("net"));
    assert_eq!((&local, &local), (&shm, &net));
}

/// On virtual GPUs: ranks that share one, and ranks on several, whose kernels wait for each other.
#[cfg(feature = "cuda")]
#[test]
fn gpus_learn_the_same_weights_as_hosts() {
    let on_host = run(&["--reproducible", "--transport", "local", "--ranks", "3"], "weights ");
    for (machine, devices) in [("1", "cuda"), ("2-nvswitch", "cuda:0,1")] {
        let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../vcuda/run"));
        command.args([machine, "--"]).arg(program());
        command.args(["--reproducible", "--transport", "local", "--ranks", "3", "--device", devices]);
        let output = command.output().expect("bash starts");
        let (printed, complaints) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{machine}: {}\n{printed}\n{complaints}", output.status);
        assert!(printed.contains(&format!("weights {on_host}\n")), "{machine}: {on_host} is not in\n{printed}");
    }
}

#[test]
fn any_number_of_ranks_learns() {
    // The example itself fails where too few images are read rightly or ranks disagree.
    for ranks in ["1", "3", "5"] {
        run(&["--ranks", ranks], "weights ");
    }
}

#[test]
fn a_task_of_srun_is_a_rank_and_a_batch_script_is_none() {
    let of_job = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0")];
    let print = |more: &[(&str, &str)]| print(&[&of_job, more].concat(), &["--ranks", "3"]);
    // A step of one task is this process; the script of a job with two starts ranks of its own.
    let task = print(&[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_NTASKS", "1")]);
    assert!(task.contains("by each of 1 ranks"), "{task}");
    let script = print(&[("SLURM_NTASKS", "2")]);
    assert!(script.contains("by each of 3 ranks"), "{script}");
}

#[test]
fn a_wrong_word_is_an_error() {
    let output = Command::new(program()).args(["--transport", "pigeon"]).output().expect("the example starts");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("local, shm or net"));
}
