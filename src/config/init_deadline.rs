//! The deadline of init alone, for a rank whose other settings are wrong: it must report that to the others, and waits
//! for them as long as this setting allows.

use std::time::Duration;

use super::Config;
use super::environment::Environment;
use super::layers::Layers;
use super::registry::VARIABLES;

impl Config {
    /// [`Config::init_timeout`] as [`Config::resolve_in`] would yield it if all other settings were right. If its own
    /// value is wrong, the program's counts, and if that is wrong, the default.
    pub(crate) fn init_timeout_alone(mut self, environment: &Environment) -> Duration {
        let variable = VARIABLES.iter().find(|variable| variable.name == INIT_TIMEOUT);
        let variable = variable.expect("the table has a line for the field: the tests below read it");
        // If the files cannot be read, the environment still counts.
        let layers = Layers::read(environment).unwrap_or_else(|_| Layers::without_files(environment));
        if let Ok(Some(found)) = layers.find(variable)
            && self.set(variable, &found).is_ok()
        {
            return self.init_timeout;
        }
        let is_good = variable.kind.check(&(variable.get)(&self)).is_ok();
        if is_good { self.init_timeout } else { Config::default().init_timeout }
    }
}

/// The variable, without its prefix.
const INIT_TIMEOUT: &str = "INIT_TIMEOUT_MS";

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(in_program: Duration, environment: &Environment) -> Duration {
        Config::default().with_init_timeout(in_program).init_timeout_alone(environment)
    }

    #[test]
    fn it_is_read_where_other_variables_are_wrong() {
        let five = Duration::from_secs(5);
        let wrong = ("NCCL_ALGO", "Nonsense");
        assert_eq!(alone(five, &Environment::of([wrong])), five);
        let both = Environment::of([wrong, ("RSCCL_INIT_TIMEOUT_MS", "1500")]);
        assert_eq!(alone(five, &both), Duration::from_millis(1500));
        let bad = Environment::of([("NCCL_SHM_DISABLE", "perhaps"), ("RSCCL_INIT_TIMEOUT_MS", "1500")]);
        assert!(Config::default().resolve_in(&bad).is_err());
        assert_eq!(alone(five, &bad), Duration::from_millis(1500));
    }

    #[test]
    fn where_it_is_wrong_itself_the_next_source_counts() {
        let (five, default) = (Duration::from_secs(5), Config::default().init_timeout);
        let wrong = Environment::of([("RSCCL_INIT_TIMEOUT_MS", "soon")]);
        assert_eq!((alone(five, &wrong), alone(Duration::ZERO, &wrong)), (five, default));
    }

    #[test]
    fn files_count_where_they_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nccl.conf");
        std::fs::write(&file, "RSCCL_INIT_TIMEOUT_MS=2500\nNCCL_SHM_DISABLE=perhaps\n").unwrap();
        let five = Duration::from_secs(5);
        let environment = || Environment::of([("NCCL_ALGO", "x")]).with_system_file(&file);
        assert_eq!(alone(five, &environment()), Duration::from_millis(2500));
        std::fs::write(&file, "no line of such a file\n").unwrap();
        assert_eq!(alone(five, &environment()), five);
        let set = Environment::of([("RSCCL_INIT_TIMEOUT_MS", "1500")]).with_system_file(&file);
        assert_eq!(alone(five, &set), Duration::from_millis(1500));
    }
}
