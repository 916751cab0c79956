//! The outgoing queue of a connection: a view of the rooms’ shared tails.
