//! The main path, from outside: publish, watch, stop.

use serde_json::json;

use crate::harness::client::{Seen, position};
use crate::harness::{Client, Server};

#[tokio::test]
async fn a_position_reaches_the_room_and_the_stop_is_announced() {
    let mut server = Server::start();
    let mut vehicle = Client::connect(&server, "bus-1").await;
    let mut dispatcher = Client::connect(&server, "dispatcher").await;
    dispatcher.join("north").await;
    vehicle.join("north").await;

    let ack = vehicle.request("location_update", position(60.2, 24.9)).await;
    assert_eq!(ack["type"], "ack", "{ack}");
    let event = dispatcher.recv_type("location_update").await;
    assert_eq!(event["payload"]["vehicleId"], "bus-1");
    assert_eq!(event["payload"]["seq"], ack["payload"]["rooms"]["north"]);

    let signalled = server.terminate();
    for client in [&mut vehicle, &mut dispatcher] {
        let notice = client.recv_type("server_shutting_down").await;
        assert_eq!(notice["payload"]["reason"], "shutdown");
        let (_, end) = client.see_to_end().await;
        assert_eq!(end, Seen::Close(1001, "server shutting down".to_owned()));
    }
    let exit = server.wait();
    assert_eq!(exit.code, Some(0));
    assert!(exit.at - signalled < std::time::Duration::from_millis(5250));
    assert_eq!(
        server.shutdown_messages(),
        [
            "shutdown: stopping accept",
            "shutdown: notifying 2 clients",
            "shutdown: draining 2 clients",
            "shutdown: closing 2 clients",
            "shutdown: complete",
        ]
    );
    assert_eq!(server.shutdown_lines()[4]["acked"], json!(2));
}
