//! Hostile bytes, and clients that take more than they may.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Duration, timeout},
};

use super::{
    PATIENCE, Rig,
    client::{Client, connect_frame, drop_ref, write_create},
    until,
};
use crate::wire::{JuteWriter, Opcode};

/// Sends bytes as the first ones, and reads until the end.
async fn first_bytes(rig: &Rig, bytes: &[u8]) -> Vec<u8> {
    let mut stream = rig.socket(0).await;
    stream.write_all(bytes).await.unwrap();
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("in time");
    rest
}

#[tokio::test]
async fn first_bytes_that_cannot_be_end_the_connection() {
    let rig = Rig::with(1, |options| options.arrival_timeout = Duration::from_millis(300)).await;
    for bytes in [
        &b"\xff\xff\xff\xff"[..],
        b"\x7f\xff\xff\xff",
        b"\x00\x00\x20\x00",
        b"\x00\x00\x00\x04abcd",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\x00\x00\x00",
        b"",
    ] {
        assert_eq!(first_bytes(&rig, bytes).await, b"", "{bytes:?}");
    }
    let half = connect_frame(0, 6_000, 0, &[0; 16]);
    assert_eq!(first_bytes(&rig, &half[..half.len() - 1]).await, b"");
    assert!(rig.cluster.sessions().is_empty());
    // Others are served; a busy machine may take longer than the time for the first frame.
    while rig.connect(0, 0, 6_000, 0, &[0; 16]).await.is_none() {}
}

#[tokio::test]
async fn frames_that_cannot_be_end_the_connection_after_the_replies_before_them() {
    let rig = Rig::new(1).await;
    for bytes in [&b"\xff\xff\xff\xff"[..], b"\x00\x10\x00\x00", b"\x00\x00\x00\x03abc"] {
        let mut client = rig.client().await;
        client.send(Opcode::PING, |_| {}).await;
        client.send_raw(bytes).await;
        assert!(client.next().await.is_some());
        assert_eq!(client.next().await, None, "{bytes:?}");
    }
}

#[tokio::test]
async fn records_that_cannot_be_are_refused_and_the_connection_stays() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    let bodies: [&dyn Fn(&mut JuteWriter); 4] = [
        &|out| drop_ref(out.int(i32::MAX)),
        &|out| drop_ref(out.int(-7)),
        &|out| drop_ref(out.string("/a").int(i32::MAX)),
        &|out| drop_ref(out.string("/a").buffer(None).int(i32::MAX)),
    ];
    for body in bodies {
        assert_eq!(client.ask(Opcode::CREATE, body).await, Err(-5));
    }
    let text = |out: &mut JuteWriter| drop_ref(out.buffer(Some(b"/\xff\xfe")).bool(false));
    assert_eq!(client.ask(Opcode::EXISTS, text).await, Err(-5));
    let endless = |out: &mut JuteWriter| {
        for _ in 0..10_001 {
            out.multi_header(Opcode::CHECK, false, -1).string("/").int(0);
        }
        out.multi_header(Opcode::NONE, true, -1);
    };
    assert_eq!(client.ask(Opcode::MULTI, endless).await, Err(-5));
    client.create("/a", b"", 0).await.unwrap();
}

#[tokio::test]
async fn watches_are_bounded_and_a_bystander_goes_on() {
    let rig = Rig::with(1, |options| {
        options.connection_watches_max = 1_000;
        // One connection may have a quarter of it.
        options.watches_bytes_max = 1_800_000;
    })
    .await;
    let mut greedy = rig.client().await;
    let names: Vec<String> = (0..1_500).map(|number| format!("/w{number}")).collect();
    let write = |out: &mut JuteWriter| {
        out.long(0).count(0);
        out.strings(names.iter().map(String::as_str));
        out.count(0);
    };
    assert_eq!(greedy.ask(Opcode::SET_WATCHES, write).await, Err(-125));
    assert_eq!(rig.ports[0].stats().watches, 1_000);
    assert_eq!(greedy.exists("/other", true).await, Err(-125));
    assert_eq!(greedy.exists("/w0", true).await, Err(-101), "it is set already");

    let mut bystander = rig.client().await;
    bystander.exists("/b", true).await.unwrap_err();
    let mut second = rig.client().await;
    assert_eq!(second.ask(Opcode::SET_WATCHES, write).await, Err(-125), "the bytes of all");
    drop(greedy);
    until("its watches go with it", || rig.ports[0].stats().watches < 1_100).await;
    let sent = bystander.send(Opcode::CREATE, |out| write_create(out, "/b", b"", 0)).await;
    assert_eq!(bystander.event().await, (1, "/b".to_owned()));
    bystander.reply(sent).await.unwrap();
}

#[tokio::test]
async fn who_comes_when_others_have_all_watches_that_they_may_have_can_set_one() {
    let rig = Rig::with(1, |options| options.watches_bytes_max = 10_000_000).await;
    let mut greedy = Vec::new();
    for number in 0..8 {
        let mut client = rig.client().await;
        let mut set = 0;
        let path = |set: u32| format!("/{number}-{set}-{}", "x".repeat(1_500));
        while client.exists(&path(set), true).await == Err(-101) {
            set += 1;
        }
        assert_eq!(client.exists(&path(set), true).await, Err(-125));
        greedy.push(client);
    }

    // Neither one that comes from where they do, nor one from elsewhere.
    let mut near = rig.client().await;
    assert_eq!(near.exists("/near", true).await, Err(-101));
    let mut far = rig.client_from("127.0.0.2").await;
    for number in 0..1_000 {
        assert_eq!(far.exists(&format!("/far{number}"), true).await, Err(-101));
    }
    // The path of a node that can never be is no watch of a megabyte.
    let endless = format!("/{}", "x".repeat(1_000_000));
    assert_eq!(far.exists(&endless, true).await, Err(-8));
    let add = |out: &mut JuteWriter| drop_ref(out.string(&endless).int(1));
    assert_eq!(far.ask(Opcode::ADD_WATCH, add).await, Err(-8));

    near.send(Opcode::CREATE, |out| write_create(out, "/near", b"", 0)).await;
    assert_eq!(near.event().await, (1, "/near".to_owned()));
}

#[tokio::test]
async fn a_hundred_thousand_watches_are_set_and_told() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    let mut set = 0;
    while set < 100_000 {
        let names: Vec<String> = (set..set + 10_000).map(|number| format!("/w{number}")).collect();
        let write = |out: &mut JuteWriter| {
            out.long(0).count(0);
            out.strings(names.iter().map(String::as_str));
            out.count(0);
        };
        client.ask(Opcode::SET_WATCHES, write).await.unwrap();
        set += 10_000;
    }
    assert_eq!(rig.ports[0].stats().watches, 100_000);
    client.send(Opcode::CREATE, |out| write_create(out, "/w99999", b"", 0)).await;
    assert_eq!(client.event().await, (1, "/w99999".to_owned()));
}

#[tokio::test]
async fn a_client_that_does_not_read_its_events_is_cut_off() {
    let rig = Rig::with(1, |options| {
        options.connection_events_bytes_max = 20_000;
        options.connection_replies_bytes_max = 20_000;
    })
    .await;
    let mut slow = rig.client().await;
    let mut writer = rig.client().await;
    slow.ask(Opcode::ADD_WATCH, |out| drop_ref(out.string("/").int(1))).await.unwrap();
    // It asks for much and reads nothing, until its replies fill its socket.
    writer.create("/large", &[0; 300_000], 0).await.unwrap();
    for _ in 0..400 {
        slow.send(Opcode::GET_DATA, |out| drop_ref(out.string("/large").bool(false))).await;
    }
    let flood = timeout(PATIENCE, async {
        while rig.ports[0].stats().connections > 1 {
            writer.set("/large", b"", -1).await.unwrap();
        }
    });
    flood.await.expect("it is cut off");
    writer.create("/after", b"", 0).await.unwrap();
}

#[tokio::test]
async fn a_client_that_sends_and_does_not_read_is_bounded() {
    let rig = Rig::with(1, |options| options.connection_replies_bytes_max = 100_000).await;
    let mut other = rig.client().await;
    other.create("/large", &[0; 300_000], 0).await.unwrap();
    let greedy = rig.client().await;
    let mut one = Vec::new();
    let mut writer = JuteWriter::default();
    writer.int(1).int(4).string("/large").bool(false);
    writer.put_frame(&mut one);
    let flood = one.repeat(1_000_000);
    let mut stream = greedy.stream;
    let sent = timeout(Duration::from_secs(1), stream.write_all(&flood)).await;
    assert!(sent.is_err(), "all of it was read");
    other.create("/b", b"", 0).await.unwrap();
}

#[tokio::test]
async fn requests_that_take_all_memory_end_their_connection() {
    let rig = Rig::with(1, |options| options.requests_bytes_max = 300_000).await;
    let mut large = rig.client().await;
    let create = |out: &mut JuteWriter| write_create(out, "/a", &[0; 250_000], 0);
    large.send(Opcode::CREATE, create).await;
    assert_eq!(large.next().await, None);
    let mut small = rig.client().await;
    small.create("/a", b"", 0).await.unwrap();
}

#[tokio::test]
async fn answers_that_wait_for_the_events_before_them_count_as_replies() {
    // One address may have half of it: one answer, and not two.
    let rig = Rig::with(1, |options| options.replies_bytes_max = 300_000).await;
    let mut writer = rig.client().await;
    writer.create("/large", &[0; 100_000], 0).await.unwrap();
    let mut readers = [rig.client().await, rig.client().await];

    // The change is applied, and not told: answers that show it wait.
    rig.cluster.set_silent(0, true);
    writer.send(Opcode::CREATE, |out| write_create(out, "/other", b"", 0)).await;
    until("it is written", || rig.cluster.stored(b"zookeeper\0other").is_some()).await;
    for reader in &mut readers {
        reader.send(Opcode::GET_DATA, |out| drop_ref(out.string("/large").bool(false))).await;
    }
    until("one of them has no room", || rig.ports[0].stats().connections == 2).await;
    rig.cluster.set_silent(0, false);

    let [first, second] = readers.each_mut().map(Client::next);
    let answered = [first.await.is_some(), second.await.is_some()];
    assert_eq!(answered.iter().filter(|is_answered| **is_answered).count(), 1, "{answered:?}");
}
