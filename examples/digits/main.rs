//! Trains a classifier of hand-written digits on several ranks, each with its share of the images; one all-reduce a
//! step adds the gradients up. The main job of the README.
//!
//!     cargo run --release --example digits [-- --ranks N --transport local|shm|net --reproducible]
//!     cargo run --release --features cuda --example digits -- --transport local --device cuda[:0,1]
//!
//! Rank 0 prints loss and accuracy, the bytes reduced and the time in collectives. The example fails unless at least
//! 95 % of the held-out images are read rightly and every rank ends with the same weights, bit for bit. With
//! `--reproducible` the weights are the same for every transport, and on GPUs, too.
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

mod gradients;
mod images;
mod launch;
mod model;
mod train;

use rsccl::{Communicator, Config, local};

use gradients::Gradients;
use launch::{Options, Transport};

fn main() -> Result<(), String> {
    let options = Options::parse()?;
    let config =
        Config::default().with_reproducible(options.reproducible).with_shm_disable(options.transport == Transport::Net);
    if options.transport == Transport::Local {
        let trained = local::run_with(options.ranks, &config, |comm| train(&options, &comm));
        return trained.map(|_| ()).map_err(|error| error.to_string());
    }
    if !launch::is_rank() {
        return launch::start_processes(&options);
    }
    let comm = Communicator::from_env_with(&config).map_err(|error| error.to_string())?;
    train(&options, &comm).map_err(|error| error.to_string())
}

fn train(options: &Options, comm: &Communicator) -> rsccl::Result<()> {
    let mut gradients = match options.device_of(comm.rank()) {
        Some(device) => Gradients::on_gpu(device)?,
        None => Gradients::OnHost,
    };
    train::train(comm, &mut gradients)
}
