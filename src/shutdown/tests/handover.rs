//! The hand-over: clients are served on to their own slots while other instances are
//! about, and what is said to those and to the broker fits into the budget.

use super::*;

/// A millisecond of the client's script, and one of the clock's resolution.
const STEP: Duration = ms(2);

fn between(what: &str, at: Duration, least: Duration) {
    assert!(at >= least && at <= least + 2 * STEP, "{what}: {at:?}, expected {least:?}");
}

#[tokio::test(start_paused = true)]
async fn clients_are_served_on_to_their_slots() {
    let others = FakeOthers::new(1);
    // One a second from 0: noticed at 100 ms, let go at 350, 1350 and 2350.
    let stage = Stage::new().with(&[HEALTHY; 3]).others(&others);
    let registry = stage.registry.clone();
    let started = Instant::now();
    let run = tokio::spawn(stage.run(Trigger::Sigterm));
    let mut live = Vec::new();
    // The first has passed its slot before the drain begins and goes with it.
    for at in [499, 510, 1349, 1360, 2349] {
        sleep_until(started + ms(at)).await;
        live.push(registry.len());
        assert_eq!(registry.tally().notified.load(Ordering::Relaxed), 3);
    }
    assert_eq!(live, [3, 2, 2, 1, 1]);
    assert_eq!(registry.tally().drained.load(Ordering::Relaxed), 3, "all drained long since");
    let went = run.await.unwrap();
    between("closing", went.reached(Phase::Close).unwrap(), ms(2350));
    between("end", went.ended, ms(2353));
    let report = &went.outcome.report;
    assert_eq!((report.drained, report.acked, report.terminated), (3, 3, 0));
    assert_eq!((report.left_early, report.exit_code), (0, 0));
    assert!(report.broker_flushed && !report.has_losses());
    let told: Vec<_> = others.told.lock().iter().map(|(what, at)| (*what, *at - started)).collect();
    assert_eq!(told[0], ("draining", Duration::ZERO), "at the signal");
    assert_eq!(told[1].0, "leaving");
    assert_eq!(told.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn with_nobody_to_go_to_they_are_closed_once_drained() {
    let alone = FakeOthers::new(0);
    let went = Stage::new().with(&[HEALTHY; 3]).others(&alone).run(Trigger::Sigterm).await;
    between("closing", went.reached(Phase::Close).unwrap(), ms(503));
    assert!(went.ended <= ms(510), "{:?}", went.ended);
    assert_eq!(alone.told.lock().len(), 2, "it takes leave all the same");
}

#[tokio::test(start_paused = true)]
async fn those_who_leave_by_themselves_end_the_drain() {
    let leaving = Script { leaves: Some(ms(900)), ..HEALTHY };
    let went =
        Stage::new().with(&[leaving; 3]).others(&FakeOthers::new(2)).run(Trigger::Sigterm).await;
    // One was let go before it thought of leaving.
    between("end", went.ended, ms(1000));
    let report = &went.outcome.report;
    assert_eq!((report.drained, report.acked, report.left_early), (3, 1, 2));
    assert_eq!((report.terminated, report.exit_code), (0, 0));
    assert!(!report.has_losses());
}

#[tokio::test(start_paused = true)]
async fn the_hand_over_ends_with_the_drain() {
    for (longer, let_go) in [(ms(3899), ms(3999)), (ms(3900), ms(4000)), (ms(60_000), ms(4000))] {
        let mut stage = Stage::new().with(&[HEALTHY]).others(&FakeOthers::new(1));
        stage.returns.handover = longer;
        let registry = stage.registry.clone();
        let started = Instant::now();
        let run = tokio::spawn(stage.run(Trigger::Sigterm));
        sleep_until(started + let_go - ms(1)).await;
        let progress = |registry: &Registry| {
            registry.handles().iter().map(|handle| handle.progress()).collect::<Vec<_>>()
        };
        assert_eq!(progress(&registry), [Progress::Drained], "served to the last: {longer:?}");
        let went = run.await.unwrap();
        between("closing", went.reached(Phase::Close).unwrap(), let_go);
        between("end", went.ended, let_go + ms(3));
        let report = &went.outcome.report;
        assert_eq!((report.drained, report.acked, report.terminated), (1, 1, 0), "{longer:?}");
        assert_eq!(report.exit_code, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_drain_is_not_saved_by_the_hand_over() {
    let went = Stage::new().with(&[STUCK]).others(&FakeOthers::new(1)).run(Trigger::Sigterm).await;
    assert_eq!(went.reached(Phase::Close), Some(ms(4000)));
    assert_eq!((went.outcome.report.terminated, went.outcome.report.drained), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_broker_has_the_rest_of_the_budget() {
    let slow = |leave| FakeOthers::slow(1, Some(Duration::ZERO), leave);
    let went = Stage::new().others(&slow(Some(ms(4999)))).run(Trigger::Sigterm).await;
    assert_eq!(went.ended, ms(4999));
    assert_eq!((went.outcome.report.exit_code, went.outcome.report.broker_flushed), (0, true));

    for leave in [Some(ms(5001)), None] {
        let went = Stage::new().others(&slow(leave)).run(Trigger::Sigterm).await;
        assert_eq!(went.ended, ms(5000));
        let report = &went.outcome.report;
        assert_eq!((report.exit_code, report.log_flushed, report.broker_flushed), (1, true, false));
        assert!(report.has_losses());
        assert_eq!(went.phases.last(), Some(&(Phase::ForceExit, ms(5000))));
    }
}

#[tokio::test(start_paused = true)]
async fn leave_is_taken_after_the_log_is_closed() {
    let others = FakeOthers::new(1);
    let log = FakeLog { flush: Some(ms(0)), close: Some(ms(1200)) };
    let started = Instant::now();
    let went = Stage::new().log(log).others(&others).run(Trigger::Sigterm).await;
    assert_eq!(went.ended, ms(1200));
    let told: Vec<_> = others.told.lock().iter().map(|(what, at)| (*what, *at - started)).collect();
    assert_eq!(told, [("draining", ms(0)), ("leaving", ms(1200))]);

    // One that cannot be closed leaves no time for it.
    let hangs = FakeLog { flush: None, close: None };
    let others = FakeOthers::slow(1, None, None);
    let went = Stage::new().log(hangs).others(&others).run(Trigger::Sigterm).await;
    assert_eq!(went.ended, ms(5000));
    let report = &went.outcome.report;
    assert_eq!((report.log_flushed, report.broker_flushed, report.exit_code), (false, false, 1));
}

#[tokio::test(start_paused = true)]
async fn a_client_left_at_the_end_does_not_keep_the_broker_from_being_flushed() {
    for (flush, flushed) in [(Some(ms(40)), true), (Some(ms(60)), false), (None, false)] {
        let others = FakeOthers::slow(1, flush, Some(Duration::ZERO));
        let went = Stage::new().with(&[MUTE]).others(&others).run(Trigger::Sigterm).await;
        assert_eq!(went.ended, ms(5000));
        let report = &went.outcome.report;
        assert_eq!((report.log_flushed, report.broker_flushed), (true, flushed), "{flush:?}");
        assert_eq!((report.unacked_close, report.exit_code), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn the_lame_duck_is_announced_at_the_signal() {
    let others = FakeOthers::new(1);
    let mut stage = Stage::new().with(&[HEALTHY]).others(&others);
    stage.deadlines.lame_duck = ms(2000);
    let started = Instant::now();
    let went = stage.run(Trigger::Sigterm).await;
    assert_eq!(others.told.lock()[0], ("draining", started));
    between("closing", went.reached(Phase::Close).unwrap(), ms(2503));
}

#[tokio::test(start_paused = true)]
async fn a_second_sigint_does_not_claim_that_the_broker_was_flushed() {
    let stage = Stage::new().with(&[MUTE]).others(&FakeOthers::new(1));
    let went = stage.again(ms(300), Trigger::Sigint).run(Trigger::Sigint).await;
    assert_eq!((went.outcome.report.exit_code, went.outcome.report.broker_flushed), (130, false));
}
