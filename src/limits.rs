//! How much a client may do.
