//! The transport: sockets and the upgrade.
