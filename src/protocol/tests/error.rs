//! The table of codes, and what only some may say.

use crate::protocol::error::{
    DEFAULT_RETRY_AFTER_MS, ErrorCode, HandlerError, Refusal, Retry, WireError,
};

#[test]
fn names_are_unique_and_read_back() {
    for code in ErrorCode::ALL {
        assert_eq!(ErrorCode::from_name(code.name()), Some(code));
        assert_eq!(Retry::from_name(code.retry().name()), Some(code.retry()));
    }
    assert_eq!(ErrorCode::from_name("server_busy"), None);
}

#[test]
fn numbers_are_those_of_the_contract() {
    let numbers: Vec<i32> = ErrorCode::ALL.into_iter().map(ErrorCode::number).collect();
    assert_eq!(
        numbers,
        [
            -32700, -32601, -32602, -32602, -32010, -32011, -32012, -32013, -32013, -32014, -32000,
            -32001, -32603
        ]
    );
}

#[test]
fn every_later_says_when() {
    for error in [
        WireError::from(HandlerError::room_full("a", 3)),
        HandlerError::room_limit_exceeded("x").into(),
        Refusal::ServerBusy { waiting: 7 }.into(),
    ] {
        assert_eq!(error.code().retry(), Retry::Later);
        assert_eq!(error.retry_after_ms(), Some(DEFAULT_RETRY_AFTER_MS));
    }
    let error: WireError = HandlerError::rate_limited("x", 40).into();
    assert_eq!(error.retry_after_ms(), Some(40));
    let error: WireError = Refusal::ServerDraining.into();
    assert_eq!((error.code().retry(), error.retry_after_ms()), (Retry::Elsewhere, None));
}

#[test]
fn busy_says_how_many_wait() {
    let error: WireError = Refusal::ServerBusy { waiting: 10_000 }.into();
    assert!(error.message().contains("10000"), "{error}");
}

#[test]
fn fields_become_paths() {
    let error = HandlerError::validation("latitude", "x").inside("positions[3]");
    assert_eq!(error.wire().field(), Some("positions[3].latitude"));
    let error = HandlerError::message_too_large("A position", 2, 1).inside("positions[0]");
    assert_eq!(error.wire().field(), Some("positions[0]"));
}
