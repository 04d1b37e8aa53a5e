//! The port, as a stranger would attack it: whatever comes, a bystander's lock is kept, and the bystander is answered.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{Connection, LONG, Reply, ok, text_of, three_nodes};

/// Sends bytes that are no request of a client, and returns what is answered before the connection ends or is silent.
async fn attack(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    // The port may end the connection before it has read everything.
    let _ = timeout(LONG, stream.write_all(bytes)).await.expect("it reads, or ends the connection");
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(1), stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bystander_keeps_its_lock_while_strangers_send_nonsense() {
    let cluster = three_nodes().await;
    let address = cluster.redis_endpoints().remove(0);
    let mut bystander = Connection::open(&address).await.expect("it listens");
    assert_eq!(bystander.ask(&["SET", "kept", "mine", "NX", "PX", "120000"]).await, ok());

    let many = format!("*1000000\r\n{}", "$1\r\na\r\n".repeat(1000));
    let long_line = "a".repeat(1 << 20);
    let attacks: [&[u8]; 8] = [
        b"*9223372036854775807\r\n$4\r\nPING\r\n",
        b"*1\r\n$9223372036854775807\r\nPING\r\n",
        b"*-5\r\n$-1\r\n",
        b"*2\r\n$3\r\nGET\r\n:1\r\n",
        b"\0\x01\x02\xff\xfe\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        many.as_bytes(),
        long_line.as_bytes(),
    ];
    for bytes in attacks {
        let answer = attack(&address, bytes).await;
        assert!(!answer.contains("mine"), "{answer}");
        assert_eq!(bystander.ask(&["GET", "kept"]).await, text_of("mine"));
    }

    // Scripts that do not end, recurse, or take all memory cost their caller an error.
    let scripts = [
        "while true do end",
        "local function f() return f() + 1 end return f()",
        "local t = {} while true do t[#t + 1] = string.rep('x', 100000) end",
        "while true do pcall(function() while true do end end) end",
    ];
    for script in scripts {
        let mut stranger = Connection::open(&address).await.expect("it listens");
        let answer = stranger.ask(&["EVAL", script, "0"]).await;
        assert!(matches!(answer, Reply::Error(_)), "{script}: {answer:?}");
        assert_eq!(bystander.ask(&["GET", "kept"]).await, text_of("mine"));
    }

    // Requests whose answers nobody reads.
    let mut silent = Connection::open(&address).await.expect("it listens");
    let flood = async {
        for _ in 0..20_000 {
            silent.send(&["ECHO", &"x".repeat(1000)]).await?;
        }
        Some(())
    };
    let _ = timeout(Duration::from_secs(3), flood).await;
    assert_eq!(bystander.ask(&["GET", "kept"]).await, text_of("mine"));
    let Reply::Number(left) = bystander.ask(&["PTTL", "kept"]).await else { panic!("no number") };
    assert!((1..=120_000).contains(&left), "{left}");
}
