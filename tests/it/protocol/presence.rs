//! Who is in a room, by identity, and who is told of it.

use serde_json::{Value, json};

use crate::harness::{Client, Server};

/// The next change of presence.
async fn change(client: &mut Client) -> Value {
    client.recv_where(|message| message["type"].as_str().unwrap().starts_with("member")).await
}

/// A watcher of room `r` whose own coming has been announced, and who was told of it.
async fn watcher(server: &Server) -> (Client, Client) {
    let mut first = Client::connect(server, "first").await;
    first.join("r").await;
    let mut watcher = Client::connect(server, "watcher").await;
    watcher.join("r").await;
    loop {
        let members = change(&mut first).await["payload"]["members"].clone();
        if members.to_string().contains("watcher") {
            if members != json!(["watcher"]) {
                // Both in one list, which both get.
                assert_eq!(change(&mut watcher).await["payload"]["members"], members);
            }
            return (first, watcher);
        }
    }
}

#[tokio::test]
async fn who_comes_and_goes_is_told() {
    let server = Server::start();
    let (_first, mut watcher) = watcher(&server).await;
    let mut a = Client::connect(&server, "a").await;
    a.join("r").await;
    let joined = change(&mut watcher).await;
    assert_eq!(joined["type"], "member_joined");
    assert_eq!(joined["payload"], json!({ "roomId": "r", "members": ["a"], "clientId": "a" }));

    a.request("leave_room", json!({ "roomId": "r" })).await;
    let left = change(&mut watcher).await;
    let expected = json!({ "roomId": "r", "members": ["a"], "clientId": "a", "reason": "left" });
    assert_eq!((&left["type"], &left["payload"]), (&json!("member_left"), &expected));

    a.join("r").await;
    change(&mut watcher).await;
    a.close().await;
    let left = change(&mut watcher).await;
    assert_eq!(left["payload"]["reason"], "disconnected", "{left}");
    // Without a close frame it is the same.
    let mut b = Client::connect(&server, "b").await;
    b.join("r").await;
    change(&mut watcher).await;
    drop(b);
    assert_eq!(change(&mut watcher).await["payload"]["reason"], "disconnected");
}

#[tokio::test]
async fn changes_of_a_moment_are_one_list() {
    let server = Server::start();
    let (_first, mut watcher) = watcher(&server).await;
    let mut clients = Vec::new();
    for n in 0..20 {
        clients.push(Client::connect(&server, &format!("c{n:02}")).await);
    }
    for client in &mut clients {
        client.ask("join_room", json!({ "roomId": "r" })).await;
    }
    let mut messages = 0;
    let mut members: Vec<Value> = Vec::new();
    while members.len() < 20 {
        let message = change(&mut watcher).await;
        assert_eq!(message["type"], "member_joined", "{message}");
        let list = message["payload"]["members"].as_array().unwrap();
        // The single name is there only when there is a single one.
        assert_eq!(message["payload"].get("clientId").is_some(), list.len() == 1, "{message}");
        members.extend(list.clone());
        messages += 1;
    }
    members.sort_by_key(ToString::to_string);
    let expected: Vec<Value> = (0..20).map(|n| json!(format!("c{n:02}"))).collect();
    assert_eq!(members, expected, "each once");
    assert!(messages < 20, "{messages} messages for 20 joins at once");
}

#[tokio::test]
async fn an_ordinary_reconnect_is_no_event() {
    let server = Server::start();
    let (_first, mut watcher) = watcher(&server).await;
    let mut phone = Client::connect(&server, "phone").await;
    phone.join("r").await;
    change(&mut watcher).await;
    // The new socket comes before the old one dies.
    let mut again = Client::connect(&server, "phone").await;
    let joined = again.join("r").await;
    assert_eq!(joined["memberCount"], 3, "{joined}");
    phone.close().await;
    server.wait_for_line(|l| l["event"] == "connection.closed" && l["client_id"] == "phone");
    // The next change is the next one's, and the phone is still a member.
    let mut third = Client::connect(&server, "third").await;
    assert_eq!(third.join("r").await["members"], json!(["first", "phone", "third", "watcher"]));
    assert_eq!(change(&mut watcher).await["payload"]["members"], json!(["third"]));
    // Its rooms are its own: the old socket's end has not taken them.
    third.publish(crate::harness::client::position(1.0, 2.0)).await;
    again.recv_type("location_update").await;
}

#[tokio::test]
async fn a_large_room_gets_counts() {
    let server = Server::builder().set("limits.presence_members", 3).start();
    let mut watcher = Client::connect(&server, "a-watcher").await;
    watcher.join("r").await;
    let mut clients = Vec::new();
    for n in 0..4 {
        let mut client = Client::connect(&server, &format!("c{n}")).await;
        client.join("r").await;
        clients.push(client);
    }
    let mut last = change(&mut watcher).await;
    while last["payload"]["memberCount"] != 5 {
        last = change(&mut watcher).await;
    }
    assert_eq!(last["type"], "members_changed", "{last}");
    assert!(last["payload"]["joined"].as_u64().unwrap() >= 1, "{last}");
    assert_eq!(last["payload"]["left"], 0);
    assert_eq!(last["payload"].get("members"), None);
    let mut late = Client::connect(&server, "z").await;
    let joined = late.join("r").await;
    assert_eq!(joined["memberCount"], 6);
    assert_eq!(joined["members"], json!(["a-watcher", "c0", "c1"]), "the first ones: {joined}");
    let clients = clients.split_off(3);
    drop(clients);
    let mut last = change(&mut watcher).await;
    while last["payload"]["left"] != 1 {
        last = change(&mut watcher).await;
    }
    assert_eq!(last["type"], "members_changed", "{last}");
}

/// Who joins in the very moment between another's coming and going is not left with a
/// ghost.
#[tokio::test]
async fn a_list_that_showed_a_fleeting_member_is_corrected() {
    let server = Server::start();
    let (_first, mut watcher) = watcher(&server).await;
    let mut fleeting = Client::connect(&server, "fleeting").await;
    let mut late = Client::connect(&server, "late").await;
    fleeting.ask("join_room", json!({ "roomId": "r" })).await;
    fleeting.recv_type("room_joined").await;
    let joined = late.join("r").await;
    assert!(joined["members"].to_string().contains("fleeting"), "{joined}");
    fleeting.request("leave_room", json!({ "roomId": "r" })).await;
    loop {
        let left = change(&mut late).await;
        if left["type"] == "member_left" {
            assert_eq!(left["payload"]["members"], json!(["fleeting"]), "{left}");
            break;
        }
    }
    watcher.request("leave_room", json!({ "roomId": "r" })).await;
}
