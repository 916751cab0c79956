//! Slow consumers: the ladder as its clients and the others in the room see it.

mod closed;
mod lagging;
mod reader;
