//! Pictures of clusters that are empty, busy and broken, at several sizes. Each is a file in `pictures/`; to record them again, run with
//! `UPDATE_GOLDENFILES=1`, and read the difference.

use std::{env, fs, path::Path, time::Duration};

use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers},
};
use tokio::time::Instant;

use super::{
    super::{
        nodes::AskedNode,
        table::TableLayout,
        views::tests::{holder, lock_without_holders, waiter},
    },
    draw::{self, Theme},
    look::TopLook,
    model::TopModel,
    plain,
    ui::Ui,
};
use crate::{
    client::{Busiest, BusyLock, Error, Holder, LockInfo, LongWait, Member, NodeStatus, Role, Totals, Waiter},
    machine::{LockName, SessionId, WallTime},
};

const NOW_MS: u64 = 1_000_000_000;

/// A member of three that answers, and leads if `leader_id` says so.
fn up(node_id: u64, leader_id: Option<u64>, applied_index: u64) -> AskedNode {
    let member = |node_id| {
        let mut member = Member::default();
        (member.node_id, member.client_address, member.voter) = (node_id, format!("10.0.0.{node_id}:7101"), true);
        member
    };
    let mut status = NodeStatus::default();
    (status.cluster_id, status.node_id, status.term) = ("orders".to_owned(), node_id, 5);
    (status.leader_id, status.serving) = (leader_id, leader_id.is_some());
    status.trouble = leader_id.is_none().then(|| "no leader is known".to_owned());
    status.role = if leader_id == Some(node_id) { Role::Leader } else { Role::Follower };
    (status.last_log_index, status.applied_index, status.start) = (applied_index, applied_index, Some("s".to_owned()));
    status.members = (1..=3).map(member).collect();
    AskedNode { address: format!("10.0.0.{node_id}:7101"), node_id: Some(node_id), answer: Ok(status) }
}

fn down(node_id: u64) -> AskedNode {
    let answer = Err(Error::NoCluster { why: "connection refused".to_owned() });
    AskedNode { address: format!("10.0.0.{node_id}:7101"), node_id: Some(node_id), answer }
}

/// The seconds of a look, and what the nodes said then.
fn look(began: Instant, second: u64, nodes: Vec<AskedNode>, busiest: Option<Busiest>) -> TopLook {
    let at = began + Duration::from_secs(second);
    TopLook { at, unix_ms: NOW_MS, nodes, busiest: busiest.map(Ok), prefix: String::new() }
}

fn totals(granted: u64, released: u64, expired: u64) -> Totals {
    let mut totals = Totals::default();
    (totals.granted, totals.released, totals.expired) = (granted, released, expired);
    totals
}

fn quiet(index: u64, totals: Totals) -> Busiest {
    let locks = Vec::new();
    let waits = Vec::new();
    Busiest { locks, waits, more_waits: false, counted_after_index: 0, index, node_id: 2, totals }
}

fn held(name: &str, label: &str, held_for_s: u64, queue_length: u64, grants: u64) -> BusyLock {
    let holder = Holder { since: WallTime(NOW_MS - held_for_s * 1_000), ..holder(7, label) };
    let lock = LockInfo { holders: vec![holder], holder_count: 1, queue_length, ..lock_without_holders(name) };
    BusyLock { lock, grants }
}

fn long_wait(name: &str, label: &str, waited_s: u64, held_by: &str) -> LongWait {
    let since = WallTime(NOW_MS - waited_s * 1_000);
    let waiter = Waiter { label: label.to_owned(), since, ..waiter(3, SessionId(2)) };
    LongWait { name: LockName::new(name).unwrap(), waiter, holder: Some(holder(7, held_by)), queue_length: 3 }
}

fn members(applied: u64) -> Vec<AskedNode> {
    vec![up(1, Some(2), applied - 3), up(2, Some(2), applied), up(3, Some(2), applied)]
}

fn model() -> TopModel {
    TopModel::new(vec!["10.0.0.1:7101".to_owned(), "10.0.0.2:7101".to_owned()], "from --endpoints".to_owned())
}

fn empty(began: Instant) -> TopModel {
    let mut model = model();
    for second in 0..2 {
        model.add(look(began, second, members(10), Some(quiet(10, Totals::default()))));
    }
    model
}

/// Some seconds of work, that rises and falls.
fn busy(began: Instant) -> TopModel {
    let mut model = model();
    let mut granted = 0;
    let mut index = 100;
    for second in 0..30 {
        granted += [0, 40, 400, 900, 1_600, 800, 90, 5][second as usize % 8];
        index += 10;
        let mut nodes = members(index);
        for node in &mut nodes {
            let status = node.answer.as_mut().unwrap();
            (status.sessions, status.locks, status.waiters) = (1_203, 100_000, 10_004);
        }
        let busiest = Busiest {
            locks: vec![
                held("reports/nightly", "worker-1", 3_700, 10_000, 1),
                held("orders/7", "shop-3", 2, 3, 1_200),
                held("a\x1b[2Jb/\u{202e}…", "evil\n\x07", 0, 0, 5),
                held("öffnungszeiten/köln/straße/hausnummer/stockwerk/zimmer", "büro", 61, 1, 0),
            ],
            waits: vec![
                long_wait("reports/nightly", "worker-2", 3_600, "worker-1"),
                long_wait("reports/nightly", "worker-3", 62, "worker-1"),
                long_wait("orders/7", "shop-1", 1, "shop-3"),
            ],
            more_waits: second == 29,
            counted_after_index: index - 100,
            index,
            node_id: 2,
            totals: totals(granted, granted - granted / 50, second / 3),
        };
        model.add(look(began, second, nodes, Some(busiest)));
    }
    model
}

/// The leader is gone, and one of the others too.
fn broken(began: Instant) -> TopModel {
    let mut model = busy(began);
    let last = quiet(400, totals(1, 1, 0));
    model.add(look(began, 30, vec![up(1, None, 397), down(2), down(3)], Some(Busiest { node_id: 1, ..last })));
    model
}

/// No node answers any more.
fn silent(began: Instant) -> TopModel {
    let mut model = busy(began);
    for second in 30..35 {
        model.add(look(began, second, vec![down(1), down(2), down(3)], None));
    }
    model
}

fn picture(model: &TopModel, ui: &mut Ui, (width, height): (u16, u16), now: Instant) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, model, ui, now, Theme::plain())).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = (0..height).map(|y| {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

fn check(name: &str, seen: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cli/top/pictures").join(name);
    if env::var_os("UPDATE_GOLDENFILES").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, seen).unwrap();
    }
    let recorded = fs::read_to_string(&file).unwrap_or_default();
    assert!(recorded == seen, "not as in {}:\n{seen}", file.display());
}

fn press(ui: &mut Ui, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\t' => KeyCode::Tab,
            '\n' => KeyCode::Enter,
            key => KeyCode::Char(key),
        };
        let _ = ui.handle(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    }
}

#[tokio::test(start_paused = true)]
async fn pictures_at_all_sizes() {
    let began = Instant::now();
    let now = began + Duration::from_secs(35);
    let states = [("empty", empty(began)), ("busy", busy(began)), ("broken", broken(began)), ("silent", silent(began))];
    for (state, model) in states {
        for (width, height) in [(140, 30), (80, 24), (40, 24), (40, 10)] {
            let seen = picture(&model, &mut Ui::new(String::new()), (width, height), now);
            check(&format!("{state}_{width}x{height}.txt"), &seen);
        }
    }
    check("asking_80x24.txt", &picture(&model(), &mut Ui::new(String::new()), (80, 24), now));
}

#[tokio::test(start_paused = true)]
async fn keys_change_the_picture() {
    let began = Instant::now();
    let mut ui = Ui::new(String::new());
    let model = busy(began);
    let mut seen = |keys: &str| {
        press(&mut ui, keys);
        picture(&model, &mut ui, (80, 24), began + Duration::from_secs(30))
    };
    check("keys_sorted_by_grants.txt", &seen("s"));
    check("keys_typing_a_prefix.txt", &seen("/orders/"));
    check("keys_filtered_and_paused.txt", &seen("\np"));
    check("keys_focus_on_waits.txt", &seen("\tjj"));
}

#[tokio::test(start_paused = true)]
async fn no_size_breaks_a_picture() {
    let began = Instant::now();
    for made in [empty, busy, broken, silent] {
        let model = made(began);
        for width in [1, 2, 13, 39, 120, 300] {
            for height in [1, 2, 3, 5, 9, 10, 11, 12, 13, 19, 20, 31] {
                let _ = picture(&model, &mut Ui::new("p".to_owned()), (width, height), began + Duration::from_secs(40));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_terminal_it_is_text() {
    let began = Instant::now();
    check("plain_busy.txt", &plain::text(&busy(began), TableLayout::default()));
    check("plain_broken.txt", &plain::text(&broken(began), TableLayout::default()));
}

#[tokio::test(start_paused = true)]
async fn rates_begin_anew_with_another_node_or_another_start_of_it() {
    let began = Instant::now();
    let mut model = model();
    let mut rates = |second, node_id, start: &str, granted| {
        let mut nodes = members(10);
        nodes.iter_mut().for_each(|node| node.answer.as_mut().unwrap().start = Some(start.to_owned()));
        let busiest = Busiest { node_id, ..quiet(10 + second, totals(granted, 0, 0)) };
        model.add(look(began, second, nodes, Some(busiest)));
        model.rates().map(|rates| rates.granted)
    };
    assert_eq!(rates(0, 2, "a", 100), None, "one look says nothing of rates");
    assert_eq!(rates(1, 2, "a", 130), Some(30.0));
    assert_eq!(rates(3, 2, "a", 150), Some(10.0));
    assert_eq!(rates(4, 1, "a", 5_000), None, "another node");
    assert_eq!(rates(5, 1, "a", 5_002), Some(2.0));
    assert_eq!(rates(6, 1, "b", 9_000), None, "it was started again");
}

#[tokio::test(start_paused = true)]
async fn grants_are_counted_over_ten_seconds_or_as_far_as_the_node_knows() {
    let began = Instant::now();
    let mut model = model();
    let mut seen = |second, index, counted_after_index, grants| {
        let locks = vec![held("a", "ann", 1, 0, grants)];
        let busiest = Busiest { locks, counted_after_index, ..quiet(index, Totals::default()) };
        model.add(look(began, second, members(index), Some(busiest)));
        let asked = model.asked("").since.map(|since| since.index);
        (model.grant_rate(&model.locks()[0]), asked)
    };
    assert_eq!(seen(0, 100, 0, 50), (None, Some(100)), "it is not known when they were granted");
    assert_eq!(seen(5, 150, 100, 50), (Some(10.0), Some(100)));
    assert_eq!(seen(10, 200, 100, 50), (Some(5.0), Some(100)));
    assert_eq!(seen(15, 250, 100, 75), (Some(5.0), Some(150)), "the first of them is older than ten seconds");
    // The node keeps less: half of the entries of the last five seconds.
    assert_eq!(seen(20, 300, 275, 50).0, Some(20.0));
}
