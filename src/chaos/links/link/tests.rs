use tokio::time::timeout;

use super::*;

/// Timeout for expected data on a busy machine.
const LONG: Duration = Duration::from_secs(20);
/// Without data for this time, none is expected.
const SHORT: Duration = Duration::from_millis(100);

/// Both ends of one connection through a link.
async fn linked() -> (Link, TcpStream, TcpStream) {
    let (link, server) = link().await;
    let near = TcpStream::connect(link.address()).await.unwrap();
    let (far, _) = timeout(LONG, server.accept()).await.unwrap().unwrap();
    (link, near, far)
}

async fn link() -> (Link, TcpListener) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::new(listener, server.local_addr().unwrap(), 1).unwrap();
    (link, server)
}

async fn passes(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"x").await.unwrap();
    assert_eq!(timeout(LONG, to.read_u8()).await.unwrap().unwrap(), b'x');
}

async fn is_silent(stream: &mut TcpStream) {
    assert!(timeout(SHORT, stream.read_u8()).await.is_err(), "no data were expected");
}

#[tokio::test]
async fn whole_it_passes_all_both_ways_and_the_end() {
    let (_link, mut near, mut far) = linked().await;
    passes(&mut near, &mut far).await;
    passes(&mut far, &mut near).await;
    near.shutdown().await.unwrap();
    let end = timeout(LONG, far.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    passes(&mut far, &mut near).await;
}

#[tokio::test]
async fn one_way_is_held_while_the_other_passes_and_nothing_is_lost() {
    let (link, mut near, mut far) = linked().await;
    link.set_forward(Direction::Held);
    near.write_all(b"held").await.unwrap();
    is_silent(&mut far).await;
    passes(&mut far, &mut near).await;
    assert!(!link.is_whole());

    link.heal();
    let mut bytes = [0; 4];
    timeout(LONG, far.read_exact(&mut bytes)).await.unwrap().unwrap();
    assert_eq!(&bytes, b"held");
    assert!(link.is_whole());
}

#[tokio::test]
async fn a_reply_is_lost_after_its_request_came_through() {
    let (link, mut near, mut far) = linked().await;
    link.set_backward(Direction::Held);
    passes(&mut near, &mut far).await;
    far.write_all(b"done").await.unwrap();
    is_silent(&mut near).await;
    link.reset();
    let broken = timeout(LONG, near.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(broken.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_sender_into_a_held_link_has_to_wait() {
    let (link, mut near, _far) = linked().await;
    link.set_forward(Direction::Held);
    let flood = vec![0; 64 * 1024 * 1024];
    assert!(timeout(SHORT * 5, near.write_all(&flood)).await.is_err(), "64 MiB were taken");
}

#[tokio::test]
async fn a_link_that_refuses_resets_old_and_new_connections_until_it_heals() {
    let (link, server) = link().await;
    let mut old = TcpStream::connect(link.address()).await.unwrap();
    timeout(LONG, server.accept()).await.unwrap().unwrap();
    link.refuse();
    assert!(timeout(LONG, old.read_u8()).await.unwrap().is_err());
    let mut new = TcpStream::connect(link.address()).await.unwrap();
    assert!(timeout(LONG, new.read_u8()).await.unwrap().is_err());

    link.heal();
    let mut near = TcpStream::connect(link.address()).await.unwrap();
    let (mut far, _) = timeout(LONG, server.accept()).await.unwrap().unwrap();
    passes(&mut near, &mut far).await;
}

#[tokio::test]
async fn delayed_bytes_come_late_and_in_order() {
    let (link, mut near, mut far) = linked().await;
    link.set_forward(Direction::Delayed { latency: SHORT, jitter: SHORT });
    // Delays the data of the next read from the socket; a read in progress may not be delayed.
    passes(&mut near, &mut far).await;
    let began = Instant::now();
    for byte in 0..20 {
        near.write_u8(byte).await.unwrap();
        tokio::task::yield_now().await;
    }
    for byte in 0..20 {
        assert_eq!(timeout(LONG, far.read_u8()).await.unwrap().unwrap(), byte);
    }
    assert!(began.elapsed() >= SHORT);
}

#[tokio::test]
async fn who_connects_where_nobody_listens_is_reset() {
    let (link, server) = link().await;
    drop(server);
    let mut near = TcpStream::connect(link.address()).await.unwrap();
    assert!(timeout(LONG, near.read_u8()).await.unwrap().is_err());
}
