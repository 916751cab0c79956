//! The integration tests: one binary, a module a topic.

mod floors;
