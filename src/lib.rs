//! **milepost**: a WebSocket server for live fleet tracking.
//!
//! Vehicles publish positions, dispatchers and public maps watch rooms, and the
//! service is redeployed in the middle of the day without a marker freezing, a
//! position lost or a connection left hanging.
//!
//! The modules stand on floors; imports point down only (a test holds this):
//! ground ([`ids`], [`close`], [`budget`], [`time`], [`phase`], [`config`]), wire
//! ([`protocol`]), policy ([`auth`], [`limits`], [`telemetry`]), storage
//! ([`broker`], [`room_log`]), fan-out ([`outgoing`], [`rooms`]), connections ([`admission`],
//! [`connection`], [`transport`]) and other instances ([`cluster`]), process ([`shutdown`],
//! [`admin`], [`listener`], [`server`]), edges ([`client`], [`web`], [`cli`]).

pub mod budget;
pub mod close;
pub mod config;
pub mod ids;
pub mod phase;
pub mod time;

pub mod protocol;

pub mod auth;
pub mod limits;
pub mod telemetry;

pub mod broker;
pub mod room_log;

pub mod outgoing;
pub mod rooms;

pub mod admission;
pub mod cluster;
pub mod connection;
pub mod plane;
pub mod transport;

pub mod admin;
pub mod listener;
pub mod server;
pub mod shutdown;

pub mod cli;
pub mod client;
pub mod web;

#[cfg(test)]
#[allow(unreachable_pub, dead_code)] // the integration tests use it too
#[path = "../tests/support/nats.rs"]
mod test_nats;
