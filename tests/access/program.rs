//! `lockkeeper policy`, `lockkeeper token`, and the program with a token.

use std::fs;

use super::stage::{POLICY, Stage, token};
use crate::support::{lockkeeper, output, text};

async fn run(arguments: &[&str]) -> (i32, String, String) {
    text(&output(&mut lockkeeper(arguments)).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_checked_and_explained() {
    let directory = tempfile::tempdir().expect("a directory");
    let (good, bad) = (directory.path().join("good.toml"), directory.path().join("bad.toml"));
    fs::write(&good, POLICY).expect("written");
    fs::write(&bad, POLICY.replace("prefix", "prefx")).expect("written");
    let (good, bad) = (good.display().to_string(), bad.display().to_string());
    assert_eq!(run(&["policy", "check", &good]).await.0, 0);
    let (code, _, said) = run(&["policy", "check", &bad]).await;
    assert!(code == 1 && said.contains(&format!("{bad}, line 5: unknown field `prefx`")), "{said}");
    let (code, said, _) = run(&["policy", "explain", &good, "shop-1", "acquire", "seats/1"]).await;
    assert_eq!(
        (code, said.as_str()),
        (0, "allowed by the rule at line 2: shop-* may acquire, read, watch under \"seats/\"\n")
    );
    for (arguments, expected) in [
        (&["shop-1", "read", "*"][..], "shop-1 may not read all locks under \"\""),
        (&["shop-1", "administer"], "shop-1 may not administer the cluster"),
        (&["anonymous", "acquire", "seats/1"], "anonymous may not acquire \"seats/1\""),
    ] {
        let (code, said, _) = run(&[&["policy", "explain", &good], arguments].concat()).await;
        assert!(code == 13 && said.contains(expected), "{arguments:?}: {code} {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_is_printed_once_and_works() {
    let stage = Stage::new(Some(POLICY)).await;
    let file = stage.tokens_file().display().to_string();
    let (code, new, said) = run(&["token", "new", "shop-9", "--append", &file]).await;
    assert_eq!((code, said.as_str()), (0, ""));
    let new = new.trim_end();
    assert!(new.starts_with("lkp_") && !fs::read_to_string(&file).expect("readable").contains(new), "{new}");
    let endpoints = stage.cluster.endpoints().join(",").replace("http://", "");
    let as_shop_9 = async || {
        let mut command = lockkeeper(&["get", "seats/1", "--endpoints", &endpoints]);
        text(&output(command.env("LOCKKEEPER_BEARER_TOKEN", new)).await)
    };
    crate::support::until("the nodes to know it", async || (as_shop_9().await.0 == 0).then_some(())).await;

    let secret = stage.path().join("secret");
    fs::write(&secret, format!("{}\n", token("shop-1").reveal())).expect("written");
    let mut command = lockkeeper(&["get", "orders/1", "--endpoints", &endpoints]);
    let (code, _, said) = text(&output(command.env("LOCKKEEPER_BEARER_TOKEN_FILE", &secret)).await);
    assert!(code == 13 && said.contains("shop-1 may not read \"orders/1\""), "{code} {said}");
    let mut command = lockkeeper(&["get", "seats/1", "--endpoints", &endpoints]);
    let (code, _, said) = text(&output(command.env("LOCKKEEPER_BEARER_TOKEN", "lkp_wrong")).await);
    assert!(code == 13 && !said.contains("lkp_wrong"), "{code} {said}");
}
