//! The wire protocol: text in, types out, and back.
