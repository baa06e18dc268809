//! What is told of one variable.

use super::layers::Source;
use super::registry::Variable;

/// One line of [`super::Config::explain`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Setting {
    /// The variable.
    pub variable: &'static Variable,
    /// The default, as it would be written; empty if the library chooses.
    pub default: String,
    /// The value, as it would be written; empty if the library chooses.
    pub value: String,
    /// Where the value comes from.
    pub source: Source,
    /// The error that a bad value gives.
    pub problem: Option<String>,
}
