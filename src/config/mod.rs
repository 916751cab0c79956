//! Configuration: plain data, its defaults, and how it is loaded.
