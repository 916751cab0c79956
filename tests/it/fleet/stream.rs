//! The truth where several instances share a broker: the stream, read with the broker's own
//! client.

use async_nats::jetstream;
use futures_util::{StreamExt, TryStreamExt};
use serde::Deserialize;

use super::Log;
use super::audit::Row;

/// The stream of a server that sets none.
const STREAM: &str = "milepost";
/// Events that are asked for at once.
const AT_ONCE: usize = 64;

#[derive(Deserialize)]
struct Payload {
    #[serde(default)]
    quiet: bool,
    position: Body,
}

#[derive(Deserialize)]
struct Body {
    n: u64,
}

impl Log {
    /// Reads the whole stream of the broker at `urls`. A position that is there twice is a
    /// failure.
    pub async fn read_stream(urls: &str) -> Self {
        let servers: Vec<async_nats::ServerAddr> =
            urls.split(',').map(|url| url.parse().unwrap()).collect();
        let client = async_nats::connect(servers).await.unwrap();
        let mut stream = jetstream::new(client).get_stream(STREAM).await.unwrap();
        let state = stream.info().await.unwrap().state.clone();
        assert_eq!(state.messages, state.last_sequence, "nothing has left the stream");
        let rows: Vec<(String, Row)> = futures_util::stream::iter(1..=state.last_sequence)
            .map(|seq| stream.get_raw_message(seq))
            .buffered(AT_ONCE)
            .map_ok(|message| {
                let mut tokens = message.subject.split('.');
                assert_eq!((tokens.next(), tokens.next()), (Some(STREAM), Some("log")));
                let kind = tokens.next().unwrap();
                let room = tokens.next().unwrap().to_owned();
                let Payload { quiet, position } = serde_json::from_slice(&message.payload).unwrap();
                let late = kind == "late" && !quiet;
                (room, Row { seq: message.sequence, n: position.n, late, uploaded: quiet })
            })
            .try_collect()
            .await
            .unwrap();
        Self::of(rows)
    }
}
