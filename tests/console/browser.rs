//! A headless Chromium, driven by the WebDriver protocol: the few commands that the tests need, over plain HTTP.
//!
//! The browser is Debian's `chromium`, which is installed where it is missing and the test runs as root. Its driver is `chromedriver` where
//! it is installed; otherwise Debian's package `chromium-driver` is downloaded once and unpacked into the build directory.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{LONG, until};

const CHROMIUM: &str = "/usr/bin/chromium";

/// Where the driver is. Fails with what is missing.
fn driver() -> Result<PathBuf, String> {
    install_chromium().map_err(|why| format!("{CHROMIUM} is not there, and was not installed: {why}"))?;
    let installed = Path::new("/usr/bin/chromedriver");
    if installed.exists() {
        return Ok(installed.to_owned());
    }
    let unpacked = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("chromium-driver");
    let program = unpacked.join("usr/bin/chromedriver");
    fs::create_dir_all(&unpacked).map_err(|error| error.to_string())?;
    // Tests of other processes wait until it is complete.
    let lock = fs::File::create(unpacked.with_extension("lock")).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    if !program.exists() {
        // That of the browser's version.
        let version = run(Command::new("dpkg-query").args(["-W", "-f=${Version}", "chromium"]))?;
        let package = format!("chromium-driver={version}");
        run(Command::new("apt-get").args(["download", &package]).current_dir(&unpacked))?;
        let files = fs::read_dir(&unpacked).map_err(|error| error.to_string())?;
        let archive = files
            .filter_map(Result::ok)
            .map(|file| file.path())
            .find(|path| path.extension().is_some_and(|is| is == "deb"));
        let archive = archive.ok_or("apt-get downloaded no package")?;
        run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&unpacked))?;
    }
    Ok(program)
}

/// Installs Debian's `chromium` where it is missing, as in a fresh container: it needs dozens of libraries, so it cannot merely be
/// unpacked.
fn install_chromium() -> Result<(), String> {
    if Path::new(CHROMIUM).exists() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err("that takes root; install Debian's packages chromium and chromium-driver".to_owned());
    }
    // Tests of other processes wait until it is complete.
    let lock = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("chromium.lock");
    let lock = fs::File::create(lock).map_err(|error| error.to_string())?;
    lock.lock().map_err(|error| error.to_string())?;
    if Path::new(CHROMIUM).exists() {
        return Ok(());
    }
    let apt_get = |arguments: &[&str]| {
        // Another program may use apt now: then it waits, but not for ever.
        let mut command = Command::new("apt-get");
        command.args(["-o", "DPkg::Lock::Timeout=120"]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        run(&mut command).map(drop)
    };
    let install = ["install", "--yes", "--no-install-recommends", "chromium", "chromium-driver"];
    // Its lists of packages may be missing, or too old.
    apt_get(&install).or_else(|_| apt_get(&["update"]).and_then(|()| apt_get(&install)))
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// The body of an answer. The driver says that it closes the connection, and leaves it open: the length counts.
fn body_of(stream: TcpStream) -> Option<Vec<u8>> {
    let mut stream = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

/// A browser with one window. It ends when this is dropped.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// `None`: there is none on this machine, and the test says so.
    pub(crate) async fn start() -> Option<Self> {
        let program = match driver() {
            Ok(program) => program,
            Err(problem) => {
                crate::skipped::skipped(format_args!("no browser: {problem}"));
                return None;
            }
        };
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("a free port").port();
        let driver = Command::new(program)
            .arg(format!("--port={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let profile = tempfile::tempdir().expect("a directory");
        let mut browser = Self { driver: driver.expect("it runs"), port, session: String::new(), _profile: profile };
        until("the driver", async || browser.request("GET", "/status", None)).await;
        let arguments = [
            "--headless=new",
            // The tests may run as root, where Chromium's sandbox does not.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            &format!("--user-data-dir={}", browser._profile.path().display()),
        ];
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "acceptInsecureCerts": true,
            "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.request("POST", "/session", Some(&capabilities)).expect("a browser");
        browser.session = session["sessionId"].as_str().expect("an id").to_owned();
        browser.size(1440, 900);
        Some(browser)
    }

    /// One command; `None`: the driver does not answer. Panics on an error of the browser.
    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(LONG)).ok()?;
        let body = body.map_or_else(String::new, Value::to_string);
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        write!(stream, "{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}").ok()?;
        let mut told: Value = serde_json::from_slice(&body_of(stream)?).ok()?;
        let value = told["value"].take();
        assert!(value["error"].is_null(), "{method} {path}: {}: {}", value["error"], value["message"]);
        Some(value)
    }

    fn command(&self, method: &str, command: &str, body: &Value) -> Value {
        let path = format!("/session/{}{command}", self.session);
        self.request(method, &path, (method == "POST").then_some(body)).expect("the driver answers")
    }

    fn devtools(&self, command: &str, parameters: &Value) {
        self.command("POST", "/goog/cdp/execute", &json!({"cmd": command, "params": parameters}));
    }

    pub(crate) fn size(&self, width: u32, height: u32) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    pub(crate) fn prefers(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    pub(crate) fn open(&self, url: &str) {
        self.command("POST", "/url", &json!({ "url": url }));
        self.script("window.violations = []; document.addEventListener('securitypolicyviolation', (e) => window.violations.push(e.violatedDirective));");
    }

    /// What the script returns.
    pub(crate) fn script(&self, script: &str) -> Value {
        self.command("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    /// The value of an expression.
    pub(crate) fn value(&self, expression: &str) -> Value {
        self.script(&format!("return {expression};"))
    }

    /// The text of all elements that match, with a line each.
    pub(crate) fn text(&self, selector: &str) -> String {
        let texts =
            self.value(&format!("[...document.querySelectorAll({selector:?})].map((e) => e.innerText).join('\\n')"));
        texts.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        let mut polls = 0_u32;
        let found = until(expression, async || {
            polls += 1;
            if polls.is_multiple_of(500) {
                eprintln!("waits for {expression}; the page shows:\n{}", self.text("body"));
            }
            self.value(&format!("Boolean({expression})")).as_bool().filter(|is| *is)
        });
        found.await;
    }

    /// Waits until the text of what matches contains a text.
    pub(crate) async fn shows(&self, selector: &str, text: &str) {
        let texts = format!("[...document.querySelectorAll({selector:?})].some((e) => e.innerText.includes({text:?}))");
        self.until(&texts).await;
    }

    /// Presses keys, one after the other.
    pub(crate) fn press(&self, keys: &str) {
        let actions: Vec<Value> = keys
            .chars()
            .flat_map(|key| [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})])
            .collect();
        self.command("POST", "/actions", &json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]}));
    }

    /// Clicks the first element that matches.
    pub(crate) fn click(&self, selector: &str) {
        let found = self.command("POST", "/element", &json!({"using": "css selector", "value": selector}));
        let element = found.as_object().and_then(|found| found.values().next()).and_then(Value::as_str);
        self.command("POST", &format!("/element/{}/click", element.expect("an element")), &json!({}));
    }

    /// Asserts that the browser has reported nothing: no error of a script, nothing that the policy forbids. `expected`: requests that the
    /// test made fail.
    pub(crate) fn assert_clean(&self, expected: &[&str]) {
        let violations = self.value("window.violations");
        assert_eq!(violations, json!([]), "the page breaks its own policy");
        let log = self.command("POST", "/se/log", &json!({"type": "browser"}));
        let lines = log.as_array().expect("a list").iter().filter_map(|line| line["message"].as_str());
        let unexpected: Vec<_> = lines.filter(|line| !expected.iter().any(|part| line.contains(part))).collect();
        assert_eq!(unexpected, [] as [&str; 0]);
    }

    /// Saves pictures of the whole page on a phone, a tablet and a desktop, light and dark, if LOCKKEEPER_SCREENSHOTS names a directory.
    /// Asserts in any case that nothing is wider than the screen.
    pub(crate) fn pictures(&self, name: &str) {
        for (width, height) in [(390, 844), (768, 1024), (1440, 900)] {
            self.size(width, height);
            let wide = self.value("document.documentElement.scrollWidth - window.innerWidth");
            assert!(wide.as_i64().is_some_and(|wide| wide <= 0), "{name} is {wide} pixels wider than {width}");
            let Some(directory) = env::var_os("LOCKKEEPER_SCREENSHOTS") else { continue };
            for scheme in ["light", "dark"] {
                self.prefers(scheme);
                let parameters = json!({"format": "png", "captureBeyondViewport": true});
                let shot = json!({"cmd": "Page.captureScreenshot", "params": parameters});
                let picture = self.command("POST", "/goog/cdp/execute", &shot);
                let path = Path::new(&directory).join(format!("{name}-{width}-{scheme}.png.base64"));
                fs::write(&path, picture["data"].as_str().unwrap_or_default()).expect("it can be written");
            }
        }
    }

    /// What can be pressed on a phone and is smaller than 44 pixels, with its size. A link inside a sentence is as high as its line.
    pub(crate) fn small_targets(&self) -> String {
        let script = "
            const small = [...document.querySelectorAll('a, button, input, select')].filter((e) => {
              const target = e.matches('[type=checkbox]') ? e.closest('label') : e;
              if (!e.checkVisibility() || getComputedStyle(e).pointerEvents === 'none') return false;
              const { width, height } = target.getBoundingClientRect();
              e.measured = `${Math.round(width)}x${Math.round(height)}`;
              return width < 43.5 || height < 43.5;
            });
            return small.map((e) => `${e.tagName} ${e.className} ${e.textContent.slice(0, 20)} ${e.measured}`).join(', ');";
        self.script(script).as_str().unwrap_or_default().to_owned()
    }

    /// Saves a picture, if LOCKKEEPER_SCREENSHOTS names a directory.
    pub(crate) fn picture(&self, name: &str) {
        let Some(directory) = env::var_os("LOCKKEEPER_SCREENSHOTS") else { return };
        let picture = self.command("GET", "/screenshot", &Value::Null);
        let path = Path::new(&directory).join(format!("{name}.png.base64"));
        fs::write(&path, picture.as_str().unwrap_or_default()).expect("it can be written");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty()
            && let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port))
        {
            // The driver ends its browser with the session; killed first, it would leave it behind.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = write!(
                stream,
                "DELETE /session/{} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
                self.session
            );
            let _ = body_of(stream);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
