//! A headless Chromium, driven by the DevTools protocol over two pipes: messages of JSON that end with a zero
//! byte.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use vmlane_tests::Process;

pub struct Browser {
    /// Its other processes end with it.
    _process: Process,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    requests: u64,
    session: Option<String>,
    /// Events that it sent since they were last taken.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts it with one empty page.
    pub fn start() -> Browser {
        let profile = tempfile::tempdir().unwrap();
        // The protocol is on descriptors 3 and 4.
        let script = "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
                      --remote-debugging-pipe --no-first-run --user-data-dir=\"$0\" about:blank \
                      3<&0 4>&1 </dev/null >/dev/null 2>\"$0/log\"";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(profile.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process(command.spawn().unwrap());
        let (to, from) = (process.0.stdin.take().unwrap(), process.0.stdout.take().unwrap());
        let mut browser = Browser {
            _process: process,
            to,
            from: BufReader::new(from),
            requests: 0,
            session: None,
            events: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = Some(session["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// `light` or `dark`, as the user's system prefers.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Opens a page and waits until it is loaded. What went wrong meanwhile: errors and warnings of its
    /// console, exceptions, resources that are missing.
    pub fn open(&mut self, url: &str) -> Vec<String> {
        self.events.clear();
        let answer = self.call("Page.navigate", json!({"url": url}));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            let event = self.read();
            self.events.push(event);
        }
        // Whatever its scripts do once it is loaded.
        self.evaluate("new Promise(done => setTimeout(done, 20))");
        self.events.iter().filter_map(complaint).collect()
    }

    /// The value of an expression, which may be a promise, in the page.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let call = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", call);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.requests += 1;
        let mut message = json!({"id": self.requests, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser runs");
        loop {
            let mut message = self.read();
            if message["id"] != self.requests {
                self.events.push(message);
                continue;
            }
            assert!(message["error"].is_null(), "{method}: {message}");
            return message["result"].take();
        }
    }

    fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).unwrap();
        assert_eq!(
            bytes.pop(),
            Some(0),
            "the browser ended: apt-get install --no-install-recommends chromium"
        );
        serde_json::from_slice(&bytes).unwrap()
    }
}

/// What is wrong, if an event reports it.
fn complaint(event: &Value) -> Option<String> {
    let params = &event["params"];
    let is_wrong = match event["method"].as_str()? {
        "Runtime.exceptionThrown" | "Network.loadingFailed" => true,
        "Runtime.consoleAPICalled" => ["error", "warning", "assert"].contains(&params["type"].as_str()?),
        "Log.entryAdded" => ["error", "warning"].contains(&params["entry"]["level"].as_str()?),
        "Network.responseReceived" => params["response"]["status"].as_u64()? >= 400,
        _ => false,
    };
    is_wrong.then(|| params.to_string())
}
