//! A warning for programs of MPI that a wrong launcher has started.

use crate::config::{Config, Environment, Launch};

/// Says on standard error that MPI knows of one rank where the launcher has started several: each process would be a
/// world of its own, do all the work alone, and end with exit code 0. Only the launcher's rank 0 says it. To be called
/// where MPI's world has one rank.
pub(crate) fn warn_of_lone_world() {
    let environment = Environment::capture();
    let Ok(launch) = Launch::learn(&environment, &Config::default()) else { return };
    if launch.world.size == 1 || launch.world.rank.get() != 0 {
        return;
    }
    crate::log::tell(&format!(
        "{} has started {} ranks, but MPI knows of one: each process is a world of its own. Either the mpirun is not that of the MPI \
         which the program is linked with, or `rsccl run` or torchrun has started a program of MPI: start it with its MPI's mpirun",
        launch.source, launch.world.size
    ));
}
