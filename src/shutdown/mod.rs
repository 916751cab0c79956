//! The five-phase shutdown.
