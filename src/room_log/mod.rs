//! The durable log of the rooms.
