//! Tests of communicators whose ranks are threads, by what they are about.

mod calls;
mod differing_settings;
mod disagreements;
mod errors;
mod foreseen;
mod forks;
mod hooks;
mod in_place;
mod layouts;
mod persistent;
mod places;
mod progress;
mod registrations;
mod request_nics;
mod requests;
mod shared_pool;
mod traffic;
mod transports;
