//! The stream's set-up.

use super::*;

async fn refused(server: &NatsServer, config: serde_json::Value) -> String {
    let link = link(server).await;
    let api = Api { link: link.clone(), subjects: Subjects::new("fleet") };
    api.call::<serde_json::Value>("STREAM.CREATE.fleet", &config).await.unwrap();
    let (sender, _events) = mpsc::unbounded_channel();
    let opened = Nats::open(link, Settings::default(), metrics(), sender).await;
    let Err(error) = opened else { panic!("opened") };
    assert!(!error.is_temporary(), "{error}");
    api.call::<serde_json::Value>("STREAM.DELETE.fleet", &serde_json::Value::Null).await.unwrap();
    error.to_string()
}

#[tokio::test]
async fn a_stream_of_something_else_is_named_with_what_differs() {
    let server = NatsServer::start();
    let mut config = serde_json::json!({
        "name": "fleet", "subjects": ["orders.>"], "storage": "file", "retention": "limits",
        "discard": "old", "num_replicas": 1, "max_msgs_per_subject": -1,
    });
    let text = refused(&server, config.clone()).await;
    assert!(text.contains("stream fleet") && text.contains("orders.>"), "{text}");
    assert!(text.contains("subjects") && text.contains("fleet.log.*.*.*"), "{text}");
    config["subjects"] = serde_json::json!(["fleet.log.*.*.*"]);
    let text = refused(&server, config.clone()).await;
    assert!(text.contains("republish") && text.contains("fleet.feed.>"), "{text}");
    config["republish"] = serde_json::json!({ "src": "fleet.log.>", "dest": "fleet.feed.>" });
    config["storage"] = serde_json::json!("memory");
    let text = refused(&server, config).await;
    assert!(text.contains("storage") && text.contains("memory"), "{text}");
}

#[tokio::test]
async fn retention_is_updated_and_everything_else_left_alone() {
    let server = NatsServer::start();
    let mut log = Log::open(&server).await;
    let epoch = log.engine.epoch();
    let seq = newest(&log.append(position(&["a"], "v", 1)).await);
    log.engine.close().await;
    let settings = Settings {
        retention_age: Duration::from_secs(3600),
        retention_bytes: 1 << 20,
        dedup_window: Duration::from_secs(30),
        ..Settings::default()
    };
    let mut log = Log::open_with(&server, settings).await;
    assert_eq!(log.engine.epoch(), epoch);
    let api = Api { link: log.link.clone(), subjects: Subjects::new("fleet") };
    let config = api.info().await.unwrap().config;
    assert_eq!(config["max_age"], 3_600_000_000_000_u64);
    assert_eq!(config["max_bytes"], 1 << 20);
    assert_eq!(config["duplicate_window"], 30_000_000_000_u64);
    // What is over the size leaves, the oldest first, and resumes are told.
    for second in 2..400 {
        let body = "\"x\":\"".to_owned() + &"x".repeat(4000) + "\"";
        let append = Append { body: body.into(), ..position(&["a"], "v", second) };
        newest(&log.append(append).await);
    }
    let error = log.engine.read(room("a"), seq, 300, 1000, true).await.unwrap_err();
    let ReadError::Trimmed { trimmed_to } = error else { panic!("{error}") };
    assert!(trimmed_to > seq);
    let page = log.engine.read(room("a"), trimmed_to, 399, 1 << 30, true).await.unwrap();
    assert_eq!(page.events.first().map(|event| event.seq), Some(trimmed_to + 1));
    assert_eq!(page.events.last().map(|event| event.seq), Some(399));
}

#[tokio::test]
async fn a_server_without_jetstream_and_a_bad_name_are_refused() {
    let server = NatsServer::start_with("max_payload: 1024");
    let error = open_error(&server, "fleet").await;
    assert!(error.to_string().contains("max_payload is 1024"), "{error}");
    let error = open_error(&server, "a.b").await;
    assert!(error.to_string().contains("\"a.b\""), "{error}");
}

async fn open_error(server: &NatsServer, stream: &str) -> StreamError {
    let settings = broker::Settings {
        urls: vec![server.url()],
        stream: stream.to_owned(),
        ..broker::Settings::default()
    };
    let link = Link::connect(settings).await.unwrap();
    let (sender, _events) = mpsc::unbounded_channel();
    match Nats::open(link, Settings::default(), metrics(), sender).await {
        Ok(_) => panic!("opened"),
        Err(error) => error,
    }
}
