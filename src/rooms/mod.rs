//! Rooms: membership, presence and the newest positions.
