//! An init in two halves, with room between and beside them for ranks that agree by other means.

use std::time::Duration;

use crate::bootstrap::{NetBootstrap, Options, Root, UniqueId};
use crate::comm::Communicator;
use crate::comm::origin::Origin;
use crate::config::Config;
use crate::error::Result;
use crate::session::settings::Settings;
use crate::session::settings::bootstrap_options;
use crate::sync::TimeLimit;
use crate::types::{Rank, World};

/// The half of an init that needs no other rank: the configuration, read and checked.
#[derive(Debug)]
pub(crate) struct PreparedInit {
    settings: Settings,
    options: Options,
}

impl PreparedInit {
    /// Reads `config` with the environment laid over it, and installs the log that it asks for.
    pub(crate) fn new(config: &Config, rank: Rank) -> Result<PreparedInit> {
        let config = config.clone().resolve()?;
        crate::log::install(&config, Some(rank.get()));
        let settings = Settings { beside_mpi: true, ..Settings::read(&config)? };
        Ok(PreparedInit { settings, options: bootstrap_options(&config)? })
    }

    /// How long the join may take.
    pub(crate) fn init_timeout(&self) -> Duration {
        self.settings.init_timeout.time
    }

    /// Makes an id, as [`Communicator::unique_id`], which is served until the root is dropped.
    pub(crate) fn unique_id(&self) -> Result<(UniqueId, Option<Root>)> {
        UniqueId::generate_held(&self.options)
    }

    /// Joins on a thread of its own: [`Communicator::async_error`] tells when that is over.
    pub(crate) fn join(self, id: UniqueId, world: World) -> Result<Communicator> {
        let options = self.options;
        Communicator::start_on_thread(world, self.settings, Origin::UniqueId(id.number()), move |abort, limit| {
            Ok(Box::new(NetBootstrap::join(&[id], world.rank, world.size, &options, &limit.wait(abort))?))
        })
    }
}

impl Communicator {
    /// A number that the ranks of this communicator share and nobody else has.
    pub(crate) fn number(&self) -> Result<u64> {
        self.with_engine(|engine| Ok(engine.session.bootstrap.id()))
    }

    /// How long an operation on this communicator may take.
    pub(crate) fn timeout(&self) -> Result<TimeLimit> {
        self.with_engine(|engine| Ok(engine.session.settings.timeout))
    }
}
