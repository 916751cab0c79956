//! Reading: input into the decoder, messages into the session.

use std::cell::RefCell;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::end::End;
use super::wire::Wire;
use super::{Connection, Input, Stage};
use crate::close::Close;
use crate::outgoing::Weight;
use crate::protocol::envelope::EnvelopeError;
use crate::protocol::frame;
use crate::rooms::LeaveReason;
use crate::telemetry::events::Initiator;

/// What is read from a socket at once; one buffer per worker thread.
const READ_BUFFER: usize = 16 * 1024;
/// The reason that tungstenite puts in place of a close frame with a forbidden code.
const FORBIDDEN_CODE: &str = "Protocol violation";

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BUFFER]);
}

impl Connection {
    pub(super) fn may_read(&mut self) -> bool {
        match self.stage {
            Stage::PeerClosed => false,
            Stage::Closing(_) => true,
            Stage::Open | Stage::Finishing => {
                let settings = &self.services.settings;
                let own = self.handle().queue.lane_bytes();
                let limit = if self.paused { settings.low_water } else { settings.high_water };
                self.paused = own > limit;
                !self.paused
                    && self
                        .session
                        .as_ref()
                        .is_none_or(|session| !session.is_busy() && !session.is_flooded())
            }
        }
    }

    pub(super) fn read(&mut self, cx: &mut Context<'_>, now: u64) -> Input {
        if self.end.is_some() {
            return Input::NotNow;
        }
        let mut progress = false;
        if matches!(self.stage, Stage::Open | Stage::Finishing)
            && let Some(session) = &mut self.session
            && (session.paused || !session.held.is_empty())
        {
            progress = session.release_held();
        }
        if !self.may_read() {
            return if progress { Input::Some } else { Input::NotNow };
        }
        if self.stashed {
            self.stashed = false;
            let stash = std::mem::take(&mut self.stash);
            self.decode(&stash, now);
            return Input::Some;
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let socket = self.handle().socket.clone();
            match socket.poll_read_into(cx, scratch) {
                Poll::Pending if progress => Input::Some,
                Poll::Pending => Input::None,
                Poll::Ready(Ok(0)) => {
                    self.peer_gone("end of stream");
                    Input::Some
                }
                Poll::Ready(Ok(read)) => {
                    self.last_received = now;
                    if !self.deaf {
                        self.decode(&scratch[..read], now);
                    }
                    Input::Some
                }
                Poll::Ready(Err(_)) => {
                    self.peer_gone("connection lost");
                    Input::Some
                }
            }
        })
    }

    pub(super) fn decode(&mut self, input: &[u8], now: u64) {
        let mut rest = input;
        while self.end.is_none() && !self.deaf {
            if !self.may_read() {
                self.stash.extend_from_slice(rest);
                self.stashed = true;
                break;
            }
            let mut wire = Wire { input: rest, control: &mut self.control };
            let message = self.ws.read(&mut wire);
            rest = wire.input;
            // Before the message: a pong may be that of a ping in its middle. Also when no
            // message came: tungstenite answers a ping at its next turn.
            if !matches!(message, Ok(Message::Close(_))) {
                self.send_control();
            }
            match message {
                Ok(message @ (Message::Text(_) | Message::Binary(_))) if cfg!(feature = "echo") => {
                    self.echo(message);
                }
                Ok(Message::Text(text)) => self.receive(&text),
                Ok(Message::Binary(bytes)) => match std::str::from_utf8(&bytes) {
                    Ok(text) => self.receive(text),
                    Err(_) => self.receive_garbage(),
                },
                Ok(Message::Close(frame)) => self.peer_closed(frame, now),
                Ok(_) => {}
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => self.violated(&error, now),
            }
        }
    }

    /// Queues what tungstenite has to say: pongs, mostly.
    pub(super) fn send_control(&mut self) {
        if !self.control.is_empty() && matches!(self.stage, Stage::Open | Stage::Finishing) {
            let pong = Bytes::from(std::mem::take(&mut self.control));
            self.handle().queue.push(pong, Weight::Free);
        }
    }

    /// Answers a message with itself, in test builds only (see `tests/peers/echo.rs`).
    pub(super) fn echo(&mut self, message: Message) {
        match message {
            Message::Text(text) => {
                self.handle().queue.push(frame::text_frame(&text), Weight::Free);
            }
            // The server itself never sends one; it leaves with the control frames.
            binary => {
                let mut wire = Wire { input: &[], control: &mut self.control };
                let _ = self.ws.write(&mut wire, binary);
                self.send_control();
            }
        }
    }

    pub(super) fn receive(&mut self, text: &str) {
        let Some(session) = &mut self.session else { return };
        match self.stage {
            Stage::Open | Stage::Finishing => session.receive(text),
            Stage::Closing(Close::ShuttingDown) => session.receive_after_close(text),
            Stage::Closing(_) | Stage::PeerClosed => {}
        }
    }

    pub(super) fn receive_garbage(&mut self) {
        if let (Some(session), Stage::Open) = (&mut self.session, self.stage) {
            session.messages_in += 1;
            if session.spend_rate().is_ok() {
                session.complain(None, &EnvelopeError::not_utf8().error);
            }
        }
    }

    pub(super) fn violated(&mut self, error: &Error, now: u64) {
        self.deaf = true;
        let close = match error {
            Error::Capacity(_) => Close::FrameTooLarge,
            Error::Utf8(_) => Close::InvalidText,
            Error::ConnectionClosed | Error::AlreadyClosed => return self.peer_gone("closed"),
            _ => Close::ProtocolError,
        };
        match self.stage {
            Stage::Open | Stage::Finishing => self.close(close, now),
            Stage::Closing(_) | Stage::PeerClosed => {}
        }
    }

    pub(super) fn peer_closed(&mut self, frame: Option<CloseFrame>, now: u64) {
        if let Stage::Closing(close) = self.stage {
            self.acked = true;
            self.end = Some(End::closed(close));
            return;
        }
        // What tungstenite makes of a code that may not be sent (RFC 6455, 7.4): our own text
        // goes out instead.
        if frame.as_ref().is_some_and(|frame| frame.reason.as_str() == FORBIDDEN_CODE) {
            self.deaf = true;
            return self.close(Close::ProtocolError, now);
        }
        let (code, reason) = frame.map_or((1005, String::new()), |frame| {
            (u16::from(frame.code), frame.reason.as_str().to_owned())
        });
        self.end_of_queue();
        self.batch.drop_rest();
        // The answer, which tungstenite hands out at its next turn.
        let mut wire = Wire { input: &[], control: &mut self.control };
        let _ = self.ws.flush(&mut wire);
        self.batch.push_own(Bytes::from(std::mem::take(&mut self.control)));
        self.stage = Stage::PeerClosed;
        self.set_close_deadline(now);
        self.later = Some(End {
            code,
            reason: reason.into(),
            initiator: Initiator::Peer,
            leave: LeaveReason::Disconnected,
        });
    }

    pub(super) fn peer_gone(&mut self, how: &'static str) {
        let end = match self.stage {
            // End of stream after our close frame is a clean end.
            Stage::Closing(close) => {
                self.acked = true;
                End::closed(close)
            }
            _ => End::lost(how),
        };
        self.end = Some(end);
    }
}
