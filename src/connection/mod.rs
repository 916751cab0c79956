//! Connections: one task a socket.
