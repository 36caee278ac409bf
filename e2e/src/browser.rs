//! A real browser without a screen, driven by its own protocol (Chrome DevTools), for what only a browser
//! can show: that a page works, for hands, keys and screen readers.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

/// How long the browser may take to say where it listens, on a busy machine.
const START_WITHIN: Duration = Duration::from_secs(60);

/// How long it may take for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// How long a page may take until it shows what is waited for.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);

const POLL_PERIOD: Duration = Duration::from_millis(50);

/// A browser with one page. Its process is killed, and its folder removed, on drop.
pub struct Browser {
    process: Child,
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    session: String,
    next: u64,
    /// What the page has thrown or logged as an error.
    complaints: Vec<String>,
    _folder: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Browser {
    /// Starts a browser with an empty page. It reaches nothing but loopback.
    ///
    /// Panics when there is none, or it does not start.
    #[track_caller]
    pub fn start() -> Browser {
        let home = whimbrel_lab::browser_home().expect("a browser: ./dev engines chromium brings it");
        let folder = tempfile::tempdir().expect("a folder");
        let mut process = launch(&home, folder.path());
        let stderr = process.stderr.take().expect("it is piped");
        let (sender, lines) = mpsc::channel();
        // Reads until the browser ends: one that nobody listens to would stand still.
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let began = Instant::now();
        let mut output = Vec::new();
        let at = loop {
            let left = START_WITHIN.saturating_sub(began.elapsed());
            let line = lines.recv_timeout(left).unwrap_or_else(|_| {
                let _ = process.kill();
                panic!("the browser does not start:\n{}", output.join("\n"))
            });
            if let Some(at) = line.strip_prefix("DevTools listening on ") {
                break at.to_owned();
            }
            output.push(line);
        };
        let (socket, _) = tungstenite::connect(&at).expect("it can be driven");
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_read_timeout(Some(ANSWER_WITHIN)).expect("a timeout");
        }
        let (session, complaints) = (String::new(), Vec::new());
        let mut browser = Browser { process, socket, session, next: 0, complaints, _folder: folder };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached =
            browser.call("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser
    }

    /// Asks for something, and waits for the answer.
    #[track_caller]
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The same, where the answer may be an error.
    #[track_caller]
    fn ask(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.next += 1;
        let id = self.next;
        let mut request = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            request["sessionId"] = json!(self.session);
        }
        self.socket.send(Message::text(request.to_string())).expect("the browser listens");
        loop {
            let message = self.socket.read().unwrap_or_else(|e| panic!("{method} has no answer: {e}"));
            let Message::Text(text) = message else { continue };
            let message: Value = serde_json::from_str(&text).expect("JSON");
            if message["id"] == json!(id) {
                let error = message["error"].clone();
                return if error.is_null() { Ok(message["result"].clone()) } else { Err(error) };
            }
            self.hear(&message);
        }
    }

    fn hear(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(params["exceptionDetails"].to_string()),
            // What is refused by the policy for contents is logged so; answers with an error are no fault of
            // the page.
            Some("Log.entryAdded")
                if params["entry"]["level"] == "error" && params["entry"]["source"] != "network" =>
            {
                self.complaints.push(params["entry"]["text"].to_string());
            }
            _ => {}
        }
    }

    /// What the page has thrown so far, or was refused by its own policy.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Goes there.
    #[track_caller]
    pub fn open(&mut self, url: &str) {
        let gone = self.call("Page.navigate", json!({"url": url}));
        assert!(gone["errorText"].is_null(), "{url}: {}", gone["errorText"]);
    }

    /// Loads the page again, and waits until the new one is there: what is asked of one that is on its way
    /// out has no answer.
    #[track_caller]
    pub fn reload(&mut self) {
        self.eval("window.isBeforeReload = true");
        self.call("Page.reload", json!({}));
        let until = Instant::now() + SHOWN_WITHIN;
        loop {
            let asked = json!({"expression": "window.isBeforeReload ?? null", "returnByValue": true});
            if let Ok(result) = self.ask("Runtime.evaluate", asked)
                && result["result"]["value"].is_null()
            {
                return;
            }
            assert!(Instant::now() < until, "it is not loaded again");
            thread::sleep(POLL_PERIOD);
        }
    }

    /// How wide and high the page is, in pixels.
    #[track_caller]
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Whether the user likes it dark.
    #[track_caller]
    pub fn prefer_dark(&mut self, dark: bool) {
        let scheme = if dark { "dark" } else { "light" };
        let feature = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", feature);
    }

    /// What a script of the page's own returns, which may be a promise.
    #[track_caller]
    pub fn eval(&mut self, script: &str) -> Value {
        let asked = json!({"expression": script, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", asked);
        assert!(result["exceptionDetails"].is_null(), "{script}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Waits until a script returns something that is true.
    #[track_caller]
    pub fn wait_for(&mut self, script: &str) -> Value {
        self.wait_within(script, SHOWN_WITHIN)
    }

    /// The same, for so long.
    #[track_caller]
    pub fn wait_within(&mut self, script: &str, within: Duration) -> Value {
        let until = Instant::now() + within;
        loop {
            // What it looks for may not be there yet.
            let tried =
                format!("(() => {{ try {{ return ({script}) || null; }} catch {{ return null; }} }})()");
            let value = self.eval(&tried);
            if !value.is_null() {
                return value;
            }
            if Instant::now() >= until {
                let shown = self.eval("document.body ? document.body.innerText : ''");
                panic!("not within {within:?}: {script}\n{}\n{:?}", shown, self.complaints);
            }
            thread::sleep(POLL_PERIOD);
        }
    }

    /// The text of an element, once there is one that has some.
    #[track_caller]
    pub fn text(&mut self, selector: &str) -> String {
        let found = self.wait_for(&format!("document.querySelector({selector:?})?.innerText"));
        found.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an element has this text somewhere in it.
    #[track_caller]
    pub fn wait_for_text(&mut self, selector: &str, text: &str) {
        self.wait_for(&format!("document.querySelector({selector:?})?.innerText.includes({text:?})"));
    }

    /// Clicks where a hand would: at the middle of the element, of its first line where it has several, once
    /// it is there, nothing covers it, and it is not disabled.
    #[track_caller]
    pub fn click(&mut self, selector: &str) {
        let ready = format!(
            "(async () => {{ const e = document.querySelector({selector:?});
                if (!e || e.disabled) return null;
                e.scrollIntoView({{ block: 'center', behavior: 'instant' }});
                const before = e.getClientRects()[0]; if (!before) return null;
                // What still moves is not hit.
                await new Promise(done => setTimeout(done, 100));
                const r = e.getClientRects()[0];
                if (!r || r.top !== before.top || r.left !== before.left) return null;
                const [x, y] = [r.left + r.width / 2, r.top + r.height / 2];
                const at = document.elementFromPoint(x, y);
                return at && e.contains(at) ? {{ x, y }} : null; }})()"
        );
        // What is painted in the moment between may have moved the element away.
        let listen = format!(
            "window.wasHit = false; addEventListener('click', e => {{
                window.wasHit = Boolean(e.target.closest({selector:?})); }}, {{ capture: true, once: true }})"
        );
        let until = Instant::now() + SHOWN_WITHIN;
        loop {
            let at = self.wait_for(&ready);
            self.eval(&listen);
            self.press_mouse(&at);
            // Where another page has come, nobody knows of this any more.
            if self.eval("window.wasHit ?? null") != false {
                return;
            }
            assert!(Instant::now() < until, "{selector} is not hit");
        }
    }

    fn press_mouse(&mut self, at: &Value) {
        for (kind, count) in [("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 1)] {
            let event = json!({
                "type": kind, "x": at["x"], "y": at["y"], "button": if count == 0 { "none" } else { "left" },
                "clickCount": count,
            });
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Types into the element, once it is there, in the place of what it has.
    #[track_caller]
    pub fn fill(&mut self, selector: &str, text: &str) {
        self.click(selector);
        self.eval(&format!("document.querySelector({selector:?}).select?.()"));
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Presses a key by its name: `Tab`, `Enter`, `Escape`.
    #[track_caller]
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            _ => panic!("no code is known for {key}"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text,
            });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Whether the browser's own network is cut.
    #[track_caller]
    pub fn cut_network(&mut self, cut: bool) {
        self.call("Network.enable", json!({}));
        let rates = json!({
            "offline": cut, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1,
        });
        self.call("Network.emulateNetworkConditions", rates);
    }

    /// Writes what is shown as a picture there.
    #[track_caller]
    pub fn screenshot(&mut self, path: &Path) {
        let size = self.call("Page.getLayoutMetrics", json!({}));
        let (width, height) = (&size["cssContentSize"]["width"], &size["cssContentSize"]["height"]);
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let asked = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let picture = self.call("Page.captureScreenshot", asked);
        let encoded = picture["data"].as_str().expect("a picture");
        let picture = STANDARD.decode(encoded).expect("Base64");
        fs::write(path, picture).expect("the picture is written");
    }
}

fn launch(home: &Path, folder: &Path) -> Child {
    // Fonts that came with the browser: a machine for tests may have none.
    let fonts = folder.join("fonts.conf");
    let (from, cache) = (home.join("fonts"), folder.join("fonts"));
    let conf = format!(
        "<?xml version=\"1.0\"?>\n<fontconfig><dir>{}</dir><cachedir>{}</cachedir></fontconfig>\n",
        from.display(),
        cache.display()
    );
    fs::write(&fonts, conf).expect("a file");
    let mut command = Command::new(home.join("bin/chromium-headless-shell"));
    command
        .args(["--remote-debugging-port=0", "--remote-allow-origins=*", "--no-first-run"])
        // Tests may run as root, and in a container, where its own sandbox cannot be had.
        .args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg("about:blank")
        .env("HOME", folder)
        .env("FONTCONFIG_FILE", fonts)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command.spawn().expect("the browser starts")
}
