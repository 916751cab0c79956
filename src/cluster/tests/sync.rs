//! Questions and answers, word by word: an answer that does not help causes no question.

use std::time::Duration;

use tokio::time::Instant;

use super::site::{client, room, settings};
use crate::cluster::core::{Core, Input, Output};
use crate::cluster::message::{Beat, Delta, List, Message};

const NONE: [u64; 0] = [];

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn beat(from: &str) -> Message {
    Message::Beat(Beat {
        from: from.to_owned(),
        generation: "g".to_owned(),
        started: 0,
        draining: None,
        away: false,
        clients: 0,
        rooms: 1,
        hello: false,
    })
}

fn delta(prev: u64, version: u64, joined: &[&str], left: &[&str]) -> Message {
    Message::Delta(Delta {
        from: "you".to_owned(),
        room: room("r"),
        prev,
        version,
        joined: joined.iter().map(|name| client(name)).collect(),
        left: vec![("left".to_owned(), left.iter().map(|name| client(name)).collect())],
    })
}

fn list(version: u64, part: u32, last: bool, members: &[&str]) -> Message {
    Message::List(List {
        from: "you".to_owned(),
        room: room("r"),
        version,
        part,
        last,
        members: members.iter().map(|name| client(name)).collect(),
    })
}

struct One {
    core: Core,
    start: Instant,
}

impl One {
    /// It has just asked `you` for the room.
    fn asking() -> Self {
        let start = Instant::now();
        let mut one = Self { core: Core::new(settings("me"), 0, start), start };
        one.core.input(Input::Opened(room("r")), start);
        one.core.input(Input::Listening(room("r")), start);
        assert_eq!(one.asks(0, [beat("me"), beat("you")]), [0]);
        one
    }

    /// The versions with which it asks after these messages.
    fn asks(&mut self, millis: u64, messages: impl IntoIterator<Item = Message>) -> Vec<u64> {
        let now = self.start + ms(millis);
        for message in messages {
            self.core.input(Input::Message(message), now);
        }
        self.core.input(Input::Tick, now);
        let asked = |output: Output| match output {
            Output::Publish(_, Message::Ask { rooms, .. }) => Some(rooms[0].1),
            _ => None,
        };
        self.core.finish(Instant::now()).into_iter().filter_map(asked).collect()
    }

    fn members(&self) -> Vec<String> {
        let mut members: Vec<String> =
            self.core.rooms[&room("r")].claimed().map(ToString::to_string).collect();
        members.sort();
        members
    }
}

#[test]
fn a_change_of_what_its_sender_has_forgotten_is_let_go() {
    let mut one = One::asking();
    let same = || Message::Same { from: "you".to_owned(), rooms: vec![room("r")] };
    assert_eq!(one.asks(10, [delta(5, 6, &[], &["y"])]), NONE);
    assert_eq!(one.asks(20, [same()]), NONE, "asked and answered for ever");
    // A change from nothing is news all the same.
    assert_eq!(one.asks(30, [delta(0, 7, &["z"], &[])]), NONE);
    assert_eq!(one.members(), ["z"]);
}

#[test]
fn a_list_that_is_older_than_what_waits_is_asked_for_in_a_while() {
    let mut one = One::asking();
    assert_eq!(one.asks(10, [delta(5, 6, &["c"], &["a"])]), NONE);
    assert_eq!(one.asks(20, [list(3, 0, true, &["a"])]), NONE);
    assert_eq!(one.members(), ["a"]);
    for millis in [1000, 2000] {
        assert_eq!(one.asks(millis, [beat("me"), beat("you")]), NONE);
    }
    assert_eq!(one.asks(2100, []), [3]);
    assert_eq!(one.asks(2200, [list(5, 0, true, &["a", "b"])]), NONE);
    assert_eq!(one.members(), ["b", "c"], "what waited went on from it");
    for millis in [3000, 4000, 5000, 6000] {
        assert_eq!(one.asks(millis, [beat("me"), beat("you")]), NONE);
    }
}

#[test]
fn a_list_counts_when_all_of_it_is_there() {
    let mut one = One::asking();
    assert_eq!(one.asks(10, [list(5, 0, true, &["a", "b", "c"])]), NONE);
    // Something was missed, and changes go on while the list is on its way.
    assert_eq!(one.asks(20, [delta(6, 7, &["e"], &[])]), [5]);
    assert_eq!(one.asks(30, [list(7, 0, false, &["a"]), delta(7, 8, &["f"], &["a"])]), NONE);
    assert_eq!(one.members(), ["a", "b", "c"]);
    // A part is lost: nothing of it counts, and all of it comes again.
    assert_eq!(one.asks(40, [list(7, 2, true, &["e"])]), NONE);
    assert_eq!(one.members(), ["a", "b", "c"]);
    for millis in [1000, 2000] {
        assert_eq!(one.asks(millis, [beat("me"), beat("you")]), NONE);
    }
    assert_eq!(one.asks(2100, []), [5]);
    let parts = [list(7, 0, false, &["a"]), list(7, 1, false, &["d"]), list(7, 2, true, &["e"])];
    assert_eq!(one.asks(2200, parts), NONE);
    assert_eq!(one.members(), ["d", "e", "f"]);
}
