//! The public port.
