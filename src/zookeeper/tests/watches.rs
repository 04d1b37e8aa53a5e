//! Which changes fire which watches, and in which order events and replies come.

use super::{
    Rig,
    client::{Client, Told, drop_ref, write_create},
    until,
};
use crate::wire::{AclEntry, JuteWriter, Opcode};

pub(super) const CREATED: i32 = 1;
pub(super) const DELETED: i32 = 2;
pub(super) const DATA: i32 = 3;
pub(super) const CHILDREN: i32 = 4;

pub(super) fn event(kind: i32, path: &str) -> (i32, String) {
    (kind, path.to_owned())
}

pub(super) async fn add_watch(client: &mut Client, path: &str, mode: i32) {
    let (_, body) = client.ask(Opcode::ADD_WATCH, |out| drop_ref(out.string(path).int(mode))).await.unwrap();
    assert_eq!(body, [0; 4]);
}

/// Waits until everything that happened is told: a sync answers after all events before it. Returns them.
pub(super) async fn events(client: &mut Client) -> Vec<(i32, String)> {
    client.send(Opcode::SYNC, |out| drop_ref(out.string("/"))).await;
    let mut events = Vec::new();
    loop {
        match client.next().await {
            Some(Told::Event { kind, path }) => events.push((kind, path)),
            Some(Told::Reply { .. }) => return events,
            None => panic!("closed"),
        }
    }
}

#[tokio::test]
async fn a_watch_fires_once_and_for_its_kind_of_change() {
    let rig = Rig::new(1).await;
    let mut watcher = rig.client().await;
    let mut writer = rig.client().await;
    assert_eq!(watcher.exists("/a", true).await, Err(-101));
    assert_eq!(watcher.get("/a", true).await, Err(-101), "this sets no watch");
    watcher.children("/", true).await.unwrap();
    writer.create("/a", b"", 0).await.unwrap();
    assert_eq!(events(&mut watcher).await, [event(CREATED, "/a"), event(CHILDREN, "/")]);
    writer.set("/a", b"1", -1).await.unwrap();
    assert_eq!(events(&mut watcher).await, []);

    watcher.get("/a", true).await.unwrap();
    watcher.exists("/a", true).await.unwrap();
    watcher.children("/a", true).await.unwrap();
    writer.set("/a", b"2", -1).await.unwrap();
    writer.set("/a", b"3", -1).await.unwrap();
    writer.create("/a/b", b"", 0).await.unwrap();
    assert_eq!(events(&mut watcher).await, [event(DATA, "/a"), event(CHILDREN, "/a")]);
    writer.delete("/a/b", -1).await.unwrap();

    // Both watches of a node hear of its end by one event.
    watcher.get("/a", true).await.unwrap();
    watcher.children("/a", true).await.unwrap();
    watcher.children("/", true).await.unwrap();
    writer.delete("/a", -1).await.unwrap();
    assert_eq!(events(&mut watcher).await, [event(DELETED, "/a"), event(CHILDREN, "/")]);
    assert_eq!(rig.ports[0].stats().watches, 0);
}

#[tokio::test]
async fn children_and_access_lists_are_no_change_of_the_data() {
    let rig = Rig::new(1).await;
    let mut watcher = rig.client().await;
    let mut writer = rig.client().await;
    writer.create("/a", b"", 0).await.unwrap();
    watcher.get("/a", true).await.unwrap();
    writer.create("/a/b", b"", 0).await.unwrap();
    let set_acl = |out: &mut JuteWriter| {
        out.string("/a");
        AclEntry::write_list(&[AclEntry { permissions: 31, ..AclEntry::open() }], out);
        out.int(-1);
    };
    writer.ask(Opcode::SET_ACL, set_acl).await.unwrap();
    assert_eq!(events(&mut watcher).await, []);
    writer.set("/a", b"x", 0).await.unwrap();
    assert_eq!(events(&mut watcher).await, [event(DATA, "/a")]);
}

#[tokio::test]
async fn events_come_before_the_reply_that_shows_the_change() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/a", b"", 0).await.unwrap();
    for _ in 0..50 {
        client.get("/a", true).await.unwrap();
        // Its own write fires it: the event is before the reply.
        let sent = client.send(Opcode::SET_DATA, |out| drop_ref(out.string("/a").buffer(None).int(-1))).await;
        assert_eq!(client.event().await, event(DATA, "/a"));
        client.reply(sent).await.unwrap();
    }

    let mut writer = rig.client().await;
    for _ in 0..50 {
        let (_, seen) = client.get("/a", true).await.unwrap();
        writer.set("/a", b"", -1).await.unwrap();
        // A read that shows the other's write comes after its event, however soon it is sent.
        let sent = client.send(Opcode::EXISTS, |out| drop_ref(out.string("/a").bool(false))).await;
        assert_eq!(client.event().await, event(DATA, "/a"), "after version {}", seen.version);
        client.reply(sent).await.unwrap();
    }
}

#[tokio::test]
async fn a_watch_hears_of_exactly_what_its_read_does_not_show() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/a", b"", 0).await.unwrap();
    let mut writer = rig.client().await;
    let writing = tokio::spawn(async move {
        for _ in 0..300 {
            writer.set("/a", b"", -1).await.unwrap();
        }
    });

    // The version that is read after an event is higher than the one that was read with the watch, and no event is missing.
    let (_, mut seen) = client.get("/a", true).await.unwrap();
    while seen.version < 300 {
        assert_eq!(client.event().await, event(DATA, "/a"));
        let (_, next) = client.get("/a", true).await.unwrap();
        assert!(next.version > seen.version, "an event without a change: {} {}", seen.version, next.version);
        seen = next;
    }
    writing.await.unwrap();
    assert_eq!(events(&mut client).await, []);
}

#[tokio::test]
async fn a_watch_does_not_hear_of_a_change_that_its_read_shows() {
    let rig = Rig::new(1).await;
    let mut writer = rig.client().await;
    let mut watcher = rig.client().await;
    writer.create("/a", b"", 0).await.unwrap();
    // The change is applied, and the hub has not heard of it when the watch is set.
    rig.cluster.set_silent(0, true);
    let set = writer.send(Opcode::SET_DATA, |out| drop_ref(out.string("/a").buffer(None).int(0))).await;
    let created = u64::try_from(writer.zxid).unwrap();
    until("it is written", || rig.cluster.stored(b"zookeeper\0a").unwrap().modified > created).await;
    let get = watcher.send(Opcode::GET_DATA, |out| drop_ref(out.string("/a").bool(true))).await;
    until("the watch is set", || rig.ports[0].stats().watches == 1).await;
    rig.cluster.set_silent(0, false);

    watcher.reply(get).await.unwrap();
    writer.reply(set).await.unwrap();
    writer.set("/a", b"", 1).await.unwrap();
    assert_eq!(events(&mut watcher).await, [event(DATA, "/a")]);
}

#[tokio::test]
async fn a_watch_that_is_set_again_by_a_read_of_an_untold_change_hears_of_the_next_one() {
    let rig = Rig::new(1).await;
    let mut watcher = rig.client().await;
    let mut writer = rig.client().await;
    writer.create("/a", b"", 0).await.unwrap();
    watcher.get("/a", true).await.unwrap();
    let before = rig.cluster.stored(b"zookeeper\0a").unwrap().modified;

    rig.cluster.set_silent(0, true);
    let set = writer.send(Opcode::SET_DATA, |out| drop_ref(out.string("/a").buffer(Some(b"1")).int(-1))).await;
    until("it is written", || rig.cluster.stored(b"zookeeper\0a").unwrap().modified > before).await;
    let received = rig.ports[0].stats().received;
    let get = watcher.send(Opcode::GET_DATA, |out| drop_ref(out.string("/a").bool(true))).await;
    until("it is read", || rig.ports[0].stats().received > received).await;
    rig.cluster.set_silent(0, false);

    assert_eq!(watcher.event().await, event(DATA, "/a"));
    watcher.reply(get).await.unwrap();
    writer.reply(set).await.unwrap();
    for data in [b"2", b"3"] {
        writer.set("/a", data, -1).await.unwrap();
    }
    assert_eq!(events(&mut watcher).await, [event(DATA, "/a")]);
}

#[tokio::test]
async fn events_come_in_the_order_of_the_changes() {
    let rig = Rig::new(1).await;
    let mut watcher = rig.client().await;
    add_watch(&mut watcher, "/", 1).await;
    let mut writer = rig.client().await;
    writer.create("/a", b"", 0).await.unwrap();
    let mut expected = vec![event(CREATED, "/a")];
    for number in 0..30 {
        let path = format!("/a/{number}");
        writer.create(&path, b"", 0).await.unwrap();
        writer.set(&path, b"", -1).await.unwrap();
        writer.delete(&path, -1).await.unwrap();
        expected.extend([CREATED, DATA, DELETED].map(|kind| event(kind, &path)));
    }
    assert_eq!(events(&mut watcher).await, expected);
}

#[tokio::test]
async fn persistent_watches_stay_and_recursive_ones_are_of_all_below() {
    let rig = Rig::new(1).await;
    let mut watcher = rig.client().await;
    let mut writer = rig.client().await;
    add_watch(&mut watcher, "/a", 0).await;
    writer.create("/a", b"", 0).await.unwrap();
    writer.create("/a/b", b"", 0).await.unwrap();
    writer.create("/a/b/c", b"", 0).await.unwrap();
    writer.set("/a", b"", -1).await.unwrap();
    let expected = [event(CREATED, "/a"), event(CHILDREN, "/a"), event(DATA, "/a")];
    assert_eq!(events(&mut watcher).await, expected);

    // The later mode replaces the earlier one, and a watch of one shot beside it gives no second event.
    add_watch(&mut watcher, "/a", 1).await;
    watcher.get("/a/b", true).await.unwrap();
    writer.set("/a/b", b"", -1).await.unwrap();
    writer.delete("/a/b/c", -1).await.unwrap();
    writer.create("/ab", b"", 0).await.unwrap();
    assert_eq!(events(&mut watcher).await, [event(DATA, "/a/b"), event(DELETED, "/a/b/c")]);
    for _ in 0..2 {
        writer.set("/a", b"", -1).await.unwrap();
    }
    assert_eq!(events(&mut watcher).await, [event(DATA, "/a"), event(DATA, "/a")]);
}

#[tokio::test]
async fn watches_are_found_and_removed() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/a", b"", 0).await.unwrap();
    client.get("/a", true).await.unwrap();
    add_watch(&mut client, "/p", 0).await;
    let has = async |client: &mut Client, opcode: Opcode, path: &str, kind: i32| {
        client.ask(opcode, |out| drop_ref(out.string(path).int(kind))).await.map(|_| ())
    };
    assert_eq!(has(&mut client, Opcode::CHECK_WATCHES, "/a", 2).await, Ok(()));
    assert_eq!(has(&mut client, Opcode::CHECK_WATCHES, "/a", 3).await, Ok(()));
    assert_eq!(has(&mut client, Opcode::CHECK_WATCHES, "/a", 1).await, Err(-121));
    assert_eq!(has(&mut client, Opcode::CHECK_WATCHES, "/a", 9).await, Err(-5));
    // 17 leaves it in place.
    assert_eq!(has(&mut client, Opcode::REMOVE_WATCHES, "/a", 1).await, Err(-121));
    assert_eq!(has(&mut client, Opcode::REMOVE_WATCHES, "/a", 3).await, Ok(()));
    assert_eq!(has(&mut client, Opcode::REMOVE_WATCHES, "/a", 3).await, Err(-121));
    assert_eq!(has(&mut client, Opcode::REMOVE_WATCHES, "/p", 3).await, Ok(()));
    client.set("/a", b"", -1).await.unwrap();
    client.create("/p", b"", 0).await.unwrap();
    assert_eq!(rig.ports[0].stats().watches, 0);
}

fn write_watches(out: &mut JuteWriter, relative: i64, lists: &[&[&str]]) {
    out.long(relative);
    for list in lists {
        out.strings(list.iter().copied());
    }
}

#[tokio::test]
async fn watches_that_are_set_again_tell_what_was_missed() {
    let rig = Rig::new(2).await;
    let mut writer = rig.client().await;
    for path in ["/same", "/changed", "/gone", "/parent", "/emptied"] {
        writer.create(path, b"", 0).await.unwrap();
    }
    writer.create("/emptied/x", b"", 0).await.unwrap();
    let mut watcher = rig.client_at(1).await;
    let relative = watcher.sync().await;
    writer.set("/changed", b"", -1).await.unwrap();
    writer.delete("/gone", -1).await.unwrap();
    writer.create("/new", b"", 0).await.unwrap();
    writer.create("/parent/x", b"", 0).await.unwrap();
    writer.delete("/emptied/x", -1).await.unwrap();

    let data: &[&str] = &["/same", "/changed", "/gone"];
    let exist: &[&str] = &["/new", "/never"];
    let child: &[&str] = &["/parent", "/emptied", "/same", "/gone"];
    let mut again = rig.again(0, &watcher).await.unwrap();
    let sent = again.send(Opcode::SET_WATCHES, |out| write_watches(out, relative, &[data, exist, child])).await;
    let mut missed = Vec::new();
    for _ in 0..6 {
        missed.push(again.event().await);
    }
    let expected = [
        event(DATA, "/changed"),
        event(DELETED, "/gone"),
        event(CREATED, "/new"),
        event(CHILDREN, "/parent"),
        event(CHILDREN, "/emptied"),
        event(DELETED, "/gone"),
    ];
    assert_eq!(missed, expected);
    again.reply(sent).await.unwrap();

    // The others are set.
    writer.set("/same", b"", -1).await.unwrap();
    writer.create("/never", b"", 0).await.unwrap();
    writer.create("/same/x", b"", 0).await.unwrap();
    writer.set("/changed", b"", -1).await.unwrap();
    let expected = [event(DATA, "/same"), event(CREATED, "/never"), event(CHILDREN, "/same")];
    assert_eq!(events(&mut again).await, expected);
}

#[tokio::test]
async fn a_path_that_is_set_again_many_times_is_one_watch() {
    let rig = Rig::new(1).await;
    let mut writer = rig.client().await;
    writer.create("/changed", b"", 0).await.unwrap();
    writer.create("/same", b"", 0).await.unwrap();
    let relative = writer.sync().await;
    writer.set("/changed", b"", -1).await.unwrap();

    // One event for each of them would be more than a client may leave unread.
    let mut watcher = rig.client().await;
    let mut data = vec!["/changed"; 60_000];
    data.resize(80_000, "/same");
    let lists: &[&[&str]] = &[&data, &[], &[]];
    let sent = watcher.send(Opcode::SET_WATCHES, |out| write_watches(out, relative, lists)).await;
    assert_eq!(watcher.event().await, event(DATA, "/changed"));
    watcher.reply(sent).await.unwrap();
    assert_eq!(rig.ports[0].stats().watches, 1);
}

#[tokio::test]
async fn persistent_watches_that_are_set_again_tell_nothing_of_what_was_missed() {
    let rig = Rig::new(1).await;
    let mut writer = rig.client().await;
    writer.create("/a", b"", 0).await.unwrap();
    let mut watcher = rig.client().await;
    let none: &[&str] = &[];
    let lists: &[&[&str]] = &[none, none, none, &["/p"], &["/a"]];
    watcher.ask(Opcode::SET_ALL_WATCHES, |out| write_watches(out, 0, lists)).await.unwrap();
    writer.create("/a/b", b"", 0).await.unwrap();
    writer.create("/p", b"", 0).await.unwrap();
    assert_eq!(events(&mut watcher).await, [event(CREATED, "/a/b"), event(CREATED, "/p")]);
}

#[tokio::test]
async fn watches_die_with_their_connection_and_the_rest_of_a_multi_is_told() {
    let rig = Rig::new(1).await;
    let mut first = rig.client().await;
    first.create("/a", b"", 0).await.unwrap();
    first.get("/a", true).await.unwrap();
    let mut again = rig.again(0, &first).await.unwrap();
    again.set("/a", b"", -1).await.unwrap();

    again.exists("/b", true).await.unwrap_err();
    again.children("/", true).await.unwrap();
    let multi = |out: &mut JuteWriter| {
        out.multi_header(Opcode::DELETE, false, -1).string("/a").int(-1);
        out.multi_header(Opcode::CREATE, false, -1);
        write_create(out, "/b", b"", 0);
        out.multi_header(Opcode::NONE, true, -1);
    };
    let sent = again.send(Opcode::MULTI, multi).await;
    assert_eq!(again.event().await, event(CHILDREN, "/"));
    assert_eq!(again.event().await, event(CREATED, "/b"));
    again.reply(sent).await.unwrap();
}

/// Clients take no notice of the reply's error.
#[tokio::test]
async fn a_watch_that_is_not_allowed_any_more_fires_and_the_others_are_set_again() {
    let rig = Rig::new(1).await;
    let mut writer = rig.client().await;
    for path in ["/open", "/hidden"] {
        writer.create(path, b"", 0).await.unwrap();
    }
    let relative = writer.sync().await;
    rig.cluster.forbid("hidden");

    let mut watcher = rig.client().await;
    let lists: &[&[&str]] = &[&["/hidden", "/open"], &["/hidden/x"], &["/hidden", "/open"]];
    let sent = watcher.send(Opcode::SET_WATCHES, |out| write_watches(out, relative, lists)).await;
    for expected in [event(DATA, "/hidden"), event(CREATED, "/hidden/x"), event(CHILDREN, "/hidden")] {
        assert_eq!(watcher.event().await, expected);
    }
    watcher.reply(sent).await.unwrap();
    assert_eq!(rig.ports[0].stats().watches, 2);

    writer.set("/open", b"", -1).await.unwrap();
    assert_eq!(watcher.event().await, event(DATA, "/open"));
}

#[tokio::test]
async fn who_finds_no_room_for_watches_that_are_set_again_loses_the_connection() {
    let rig = Rig::with(1, |options| options.watches_bytes_max = 100_000).await;
    let names: Vec<String> = (0..500).map(|number| format!("/w{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let lists: &[&[&str]] = &[&[], &names, &[]];
    let mut client = rig.client().await;
    let sent = client.send(Opcode::SET_WATCHES, |out| write_watches(out, 0, lists)).await;
    assert_eq!(client.reply(sent).await, Err(-125));
    assert_eq!(client.next().await, None, "it looks for another node, and does not count on watches that it has not");
    until("its watches go with it", || rig.ports[0].stats().watches == 0).await;
}

#[tokio::test]
async fn a_refused_list_of_watches_is_answered_after_the_events_of_those_before() {
    let rig = Rig::with(1, |options| options.connection_watches_max = 1).await;
    let mut writer = rig.client().await;
    let mut watcher = rig.client().await;
    writer.create("/changed", b"", 0).await.unwrap();
    let relative = writer.sync().await;
    let before = rig.cluster.stored(b"zookeeper\0changed").unwrap().modified;

    // The change is applied, and the hub has not heard of it when the watches are set again.
    rig.cluster.set_silent(0, true);
    writer.send(Opcode::SET_DATA, |out| drop_ref(out.string("/changed").buffer(None).int(-1))).await;
    until("it is written", || rig.cluster.stored(b"zookeeper\0changed").unwrap().modified > before).await;
    let lists: &[&[&str]] = &[&["/changed"], &["/first", "/second"], &[]];
    let sent = watcher.send(Opcode::SET_WATCHES, |out| write_watches(out, relative, lists)).await;
    until("the first one is set", || rig.ports[0].stats().watches == 1).await;
    rig.cluster.set_silent(0, false);

    assert_eq!(watcher.event().await, event(DATA, "/changed"));
    assert_eq!(watcher.reply(sent).await, Err(-125));
}

/// They are removed one part after the other, and the client comes back at once.
#[tokio::test]
async fn watches_that_are_set_again_find_the_room_of_those_before() {
    // One connection may have a quarter of it, and less of what another one of its address leaves.
    let rig = Rig::with(1, |options| options.watches_bytes_max = 20_000 * 4 * 410).await;
    let names: Vec<String> = (0..20_000).map(|number| format!("/w{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let lists: &[&[&str]] = &[&[], &names, &[]];
    let mut client = rig.client().await;
    client.ask(Opcode::SET_WATCHES, |out| write_watches(out, 0, lists)).await.unwrap();
    for _ in 0..3 {
        client = rig.again(0, &client).await.unwrap();
        client.ask(Opcode::SET_WATCHES, |out| write_watches(out, 0, lists)).await.unwrap();
    }
    until("those before are gone", || rig.ports[0].stats().watches == 20_000).await;
}
