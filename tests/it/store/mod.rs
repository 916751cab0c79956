//! The store's failures and the plane's pauses, from outside.

mod disk;
mod drain;
mod file;
mod lock;
mod quiesce;
