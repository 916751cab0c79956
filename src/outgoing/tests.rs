//! The queue, the feeds and the ladder against a naive model, under random interleavings;
//! no I/O. The model is a list of all events of a room and, per subscriber, the list of
//! those it still has to get.

mod model;

use proptest::prelude::*;

use super::*;
use crate::ids::ConnId;
use model::{CONNS, ROOMS, Since, Step, World};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let conn = || 0..CONNS;
    let room = || 0..ROOMS;
    let sender = || proptest::option::of(0..CONNS);
    let since = prop_oneof![Just(Since::Head), (0_usize..40).prop_map(Since::Back)];
    let budget = prop_oneof![
        6 => 1_usize..400,
        1 => Just(usize::MAX),
    ];
    let step = prop_oneof![
        12 => (room(), 0_u8..5, sender(), 0_usize..80)
            .prop_map(|(room, vehicle, sender, pad)| Step::Position { room, vehicle, sender, pad }),
        2 => (room(), sender(), 0_usize..80)
            .prop_map(|(room, sender, pad)| Step::Other { room, sender, pad }),
        4 => (conn(), room(), since, any::<bool>(), any::<bool>(), proptest::bool::weighted(0.2))
            .prop_map(|(conn, room, since, flat, walk, own)| {
                Step::Join { conn, room, since, flat: flat && own, walk }
            }),
        1 => (conn(), room()).prop_map(|(conn, room)| Step::Leave { conn, room }),
        6 => (conn(), budget, any::<bool>())
            .prop_map(|(conn, budget, flush)| Step::Take { conn, budget, flush }),
        2 => conn().prop_map(|conn| Step::Squeeze { conn }),
        1 => conn().prop_map(|conn| Step::Mark { conn }),
        1 => conn().prop_map(|conn| Step::Stop { conn }),
        2 => (conn(), any::<bool>(), 0_usize..80)
            .prop_map(|(conn, counts, pad)| Step::Push { conn, counts, pad }),
        4 => (0_usize..8, 0_usize..6, proptest::bool::weighted(0.1))
            .prop_map(|(which, size, fail)| Step::Page { which, size, fail }),
        1 => (conn(), room()).prop_map(|(conn, room)| Step::Show { conn, room }),
        1 => conn().prop_map(|conn| Step::Close { conn }),
    ];
    proptest::collection::vec(step, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_subscriber_gets_what_a_naive_model_says(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(&step);
        }
        world.finish();
    }
}

#[test]
fn comings_and_goings_leave_nothing_behind_in_a_quiet_room() {
    let world = World::new();
    let feed = world.feed(0);
    let stays = std::sync::Arc::new(Queue::new(ConnId(1)));
    feed.with(|state| feed.subscribe(state, &stays, Events::All, Start::Head, None));
    for conn in 0..5_000 {
        let queue = std::sync::Arc::new(Queue::new(ConnId(1_000 + conn)));
        feed.with(|state| feed.subscribe(state, &queue, Events::All, Start::Head, None));
        if conn % 2 == 0 {
            feed.unsubscribe(queue.conn());
        }
        queue.close();
        assert!(queue.is_empty());
    }
    feed.with(|state| {
        assert_eq!(state.seats.len(), 1);
        assert_eq!(state.by_conn.len(), 1);
        assert!(state.parked.len() <= 32, "{} ids for one seat", state.parked.len());
    });
}
