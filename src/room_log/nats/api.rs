//! The part of the JetStream API that the log uses, as requests and answers in JSON.
//!
//! By hand rather than through async-nats 0.51's context: that one sends fields which
//! servers before 2.10 drop without a word, and creates what it cannot check.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::{Message, Request};
use serde::Deserialize;
use serde_json::{Value, json};

use super::message::Subjects;
use crate::broker::Link;
use crate::room_log::StoreFailure;
use crate::time::UnixMillis;

/// How long the broker may take to answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// JetStream's code for "stream not found".
pub(super) const STREAM_NOT_FOUND: u64 = 10_059;
/// JetStream's code for "wrong last sequence", of the stream or a subject.
pub(super) const WRONG_LAST_SEQUENCE: u64 = 10_071;
/// JetStream's code for "no message found".
pub(super) const MESSAGE_NOT_FOUND: u64 = 10_037;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ApiError {
    /// There is no link now, or no answer came in time.
    #[error("no answer within {} s", ANSWER_WITHIN.as_secs())]
    NoAnswer,
    /// Nobody answers for JetStream, or for this stream.
    #[error("JetStream does not answer; is it enabled, and has the stream a leader?")]
    NoResponder,
    /// JetStream refused.
    #[error("{text} (JetStream error {code})")]
    Refused {
        /// Its own code.
        code: u64,
        /// Its own words.
        text: String,
    },
    /// An answer that this program does not understand.
    #[error("an answer that is none of JetStream")]
    Garbled,
}

impl ApiError {
    pub(super) fn is(&self, wanted: u64) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == wanted)
    }
}

#[derive(Debug, Deserialize)]
struct Refusal {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// The state of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct StreamState {
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
}

/// A stream as the server describes it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct StreamInfo {
    pub(super) config: Value,
    pub(super) created: String,
    pub(super) state: StreamState,
}

/// The last event of some subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) seq: u64,
    /// Milliseconds since 1970.
    pub(super) stored_at: i64,
}

/// What the server says to a publish.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PublishAnswer {
    /// Stored, or a repetition of what is stored under `seq`.
    Stored { seq: u64, duplicate: bool },
    /// The subject's last event is another one; 0: it has none.
    Behind { last: u64 },
    /// Not stored; trying again may help.
    Failed(ApiError),
}

/// Speaks to JetStream about one stream. It never deletes a message: nats-server 2.9.10
/// loses track of which one is a subject's last when one in between is gone.
#[derive(Debug, Clone)]
pub(super) struct Api {
    pub(super) link: Link,
    pub(super) subjects: Subjects,
}

impl Api {
    /// What an error means, for people.
    pub(super) fn failure(&self, error: &ApiError) -> StoreFailure {
        let hint = match error {
            ApiError::Refused { code: 10_023 | 10_047 | 10_077, .. } => {
                "; free space on the broker's disk or raise its limits"
            }
            _ => "",
        };
        let (urls, stream) = (self.link.urls(), self.subjects.stream());
        StoreFailure::broker(format!("nats {urls}, stream {stream}: {error}{hint}"))
    }

    async fn request(&self, subject: String, body: String) -> Result<Message, ApiError> {
        let request = Request::new().payload(body.into()).timeout(Some(ANSWER_WITHIN));
        if !self.link.state().borrow().is_up() {
            return Err(ApiError::NoAnswer);
        }
        self.link.client().send_request(subject, request).await.map_err(|error| {
            match error.kind() {
                RequestErrorKind::NoResponders => ApiError::NoResponder,
                _ => ApiError::NoAnswer,
            }
        })
    }

    pub(super) async fn call<T: for<'de> Deserialize<'de>>(
        &self,
        method: &str,
        body: &Value,
    ) -> Result<T, ApiError> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.request(format!("$JS.API.{method}"), body).await?;
        let value: Value =
            serde_json::from_slice(&answer.payload).map_err(|_| ApiError::Garbled)?;
        if let Some(error) = value.get("error") {
            let Refusal { err_code, description } =
                Refusal::deserialize(error).map_err(|_| ApiError::Garbled)?;
            return Err(ApiError::Refused { code: err_code, text: description });
        }
        T::deserialize(value).map_err(|_| ApiError::Garbled)
    }

    /// The stream as it is now.
    pub(super) async fn info(&self) -> Result<StreamInfo, ApiError> {
        self.call(&format!("STREAM.INFO.{}", self.subjects.stream()), &Value::Null).await
    }

    /// The last event on subjects that match.
    pub(super) async fn last_of(&self, subject: &str) -> Result<Option<Last>, ApiError> {
        #[derive(Deserialize)]
        struct Answer {
            message: Found,
        }
        #[derive(Deserialize)]
        struct Found {
            seq: u64,
            time: String,
        }
        let method = format!("STREAM.MSG.GET.{}", self.subjects.stream());
        match self.call::<Answer>(&method, &json!({ "last_by_subj": subject })).await {
            Ok(Answer { message: Found { seq, time } }) => {
                let stored_at = UnixMillis::parse_rfc3339(&time).ok_or(ApiError::Garbled)?.get();
                Ok(Some(Last { seq, stored_at }))
            }
            Err(error) if error.is(MESSAGE_NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The subject and payload of the event `seq`, if the stream has it.
    pub(super) async fn message(&self, seq: u64) -> Result<Option<(String, Vec<u8>)>, ApiError> {
        use base64::Engine;
        #[derive(Deserialize)]
        struct Answer {
            message: Found,
        }
        #[derive(Deserialize)]
        struct Found {
            subject: String,
            #[serde(default)]
            data: String,
        }
        let method = format!("STREAM.MSG.GET.{}", self.subjects.stream());
        match self.call::<Answer>(&method, &json!({ "seq": seq })).await {
            Ok(Answer { message }) => {
                let data = base64::engine::general_purpose::STANDARD
                    .decode(message.data)
                    .map_err(|_| ApiError::Garbled)?;
                Ok(Some((message.subject, data)))
            }
            Err(error) if error.is(MESSAGE_NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Reads the answer to a publish.
pub(super) fn publish_answer(message: &Message) -> PublishAnswer {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        seq: u64,
        #[serde(default)]
        duplicate: bool,
        error: Option<Refusal>,
    }
    if message.status.is_some() {
        return PublishAnswer::Failed(ApiError::NoResponder);
    }
    let Ok(answer) = serde_json::from_slice::<Answer>(&message.payload) else {
        return PublishAnswer::Failed(ApiError::Garbled);
    };
    match answer.error {
        None => PublishAnswer::Stored { seq: answer.seq, duplicate: answer.duplicate },
        Some(Refusal { err_code: WRONG_LAST_SEQUENCE, description }) => {
            // "wrong last sequence: 7"
            match description.rsplit(' ').next().and_then(|last| last.parse().ok()) {
                Some(last) => PublishAnswer::Behind { last },
                None => PublishAnswer::Failed(ApiError::Garbled),
            }
        }
        Some(Refusal { err_code, description }) => {
            PublishAnswer::Failed(ApiError::Refused { code: err_code, text: description })
        }
    }
}
