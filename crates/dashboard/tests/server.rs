//! The server over loopback, as a browser or an attacker would use it.

#![expect(clippy::unwrap_used, reason = "a test ends where something fails")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use starling_dashboard::{Dashboard, Program};
use starling_record::{RunFolder, RunInfo};
use tempfile::TempDir;

struct Server {
    folder: TempDir,
    address: SocketAddr,
    token: String,
}

struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A run that nobody writes to. Not through `RunFolder::create`, which waits for the disk.
fn make_run(root: &Path, env: &str, name: &str, seed: u64, rows: u64) -> RunFolder {
    let path = root.join(format!("{env}/ppo/{name}-s{seed}-20261115T082500Z"));
    fs::create_dir_all(&path).unwrap();
    let settings =
        format!("env: {{id: {env}}}\nalgo: {{name: ppo, gamma: 0.9}}\nseed: {seed}\nsteps: 9000\n");
    fs::write(path.join("config.yaml"), settings).unwrap();
    let folder = RunFolder::open(&path).unwrap();
    let rows: String = (1..=rows).map(|i| format!("{},{i}\n", i * 100)).collect();
    let text = format!("env_steps,ReturnAverage\n{rows}");
    fs::write(folder.progress_path(), text).unwrap();
    folder
}

fn add_row(run: &RunFolder, row: &str) {
    let file = File::options().append(true).open(run.progress_path());
    file.unwrap().write_all(row.as_bytes()).unwrap();
}

impl Server {
    fn start(folder: TempDir) -> Self {
        Self::start_with(folder, "exit 1")
    }

    /// With a script of the shell in the place of the program that plays.
    fn start_with(folder: TempDir, player: &'static str) -> Self {
        let program = Program {
            preset: Box::new(|_: &RunInfo| None),
            player: Box::new(move |run| {
                let mut command = Command::new("sh");
                command.args(["-c", player]).current_dir(run);
                command
            }),
        };
        let dashboard = Dashboard::open(folder.path(), "127.0.0.1", 0, program).unwrap();
        let address = dashboard.address();
        let token = dashboard.url().split_once("?token=").unwrap().1.to_owned();
        thread::spawn(|| dashboard.run());
        Self {
            folder,
            address,
            token,
        }
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if method == "POST" {
            text += "Content-Length: 0\r\n";
        }
        stream.write_all(format!("{text}\r\n").as_bytes()).unwrap();
        stream
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut bytes = Vec::new();
        let mut stream = self.send(method, path, headers);
        stream.read_to_end(&mut bytes).unwrap();
        let end = bytes
            .windows(4)
            .position(|part| part == b"\r\n\r\n")
            .unwrap();
        let headers = String::from_utf8(bytes[..end].to_vec())
            .unwrap()
            .to_lowercase();
        assert!(!headers.contains("transfer-encoding: chunked"), "{headers}");
        Answer {
            status: headers[9..12].parse().unwrap(),
            headers,
            body: bytes[end + 4..].to_vec(),
        }
    }

    /// The cookie that the token is exchanged for.
    fn cookie(&self) -> String {
        let answer = self.ask("GET", &format!("/?token={}", self.token), &[]);
        assert_eq!(answer.status, 200);
        let line = answer
            .headers
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "));
        let line = line.unwrap();
        assert!(
            line.contains("httponly") && line.contains("samesite=strict"),
            "{line}"
        );
        line.split(';').next().unwrap().to_owned()
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[("Cookie", &self.cookie())])
    }

    /// Events, each as its cursor and its content.
    fn events(
        &self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> impl Iterator<Item = (String, Value)> + use<> {
        let cookie = self.cookie();
        let headers = [headers, &[("Cookie", cookie.as_str())]].concat();
        let stream = BufReader::new(self.send("GET", path, &headers));
        let mut id = String::new();
        stream.lines().filter_map(move |line| {
            let line = line.unwrap();
            if let Some(cursor) = line.strip_prefix("id: ") {
                id = cursor.to_owned();
            }
            let data = line.strip_prefix("data: ")?;
            Some((id.clone(), serde_json::from_str(data).unwrap()))
        })
    }
}

fn ids(news: &Value) -> Vec<&str> {
    let runs = news["runs"].as_array().unwrap().iter();
    runs.map(|run| run["id"].as_str().unwrap()).collect()
}

/// The run of this name.
fn named<'a>(news: &'a Value, name: &str) -> &'a Value {
    let mut runs = news["runs"].as_array().unwrap().iter();
    runs.find(|run| run["name"] == name).unwrap()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn nothing_is_shown_without_the_token() {
    let folder = tempfile::tempdir().unwrap();
    make_run(folder.path(), "E", "a", 1, 3);
    let server = Server::start(folder);
    let run = server.get("/api/runs").json()["runs"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    for path in [
        "/",
        "/?token=",
        "/?token=0000",
        "/assets/main.js",
        "/api/runs",
        "/api/events",
        "/api/session",
    ] {
        assert_eq!(server.ask("GET", path, &[]).status, 401, "{path}");
    }
    let wrong = format!("/?token={}0", server.token);
    let cookie = server.cookie();
    // A wrong token is refused even with the cookie, and sets none.
    let answer = server.ask("GET", &wrong, &[("Cookie", &cookie)]);
    assert_eq!(answer.status, 401);
    assert!(!answer.headers.contains("set-cookie"));
    let (name, value) = cookie.split_once('=').unwrap();
    let wrong = format!(
        "{name}={}",
        value.replace(|c: char| c.is_ascii_digit(), "z")
    );
    assert_eq!(
        server.ask("GET", "/api/runs", &[("Cookie", &wrong)]).status,
        401
    );
    // The token alone is no cookie, and counts nowhere but at the page itself.
    let as_cookie = format!("{name}={}", server.token);
    assert_eq!(
        server
            .ask("GET", "/api/runs", &[("Cookie", &as_cookie)])
            .status,
        401
    );
    let path = format!("/api/runs?token={}", server.token);
    assert_eq!(server.ask("GET", &path, &[]).status, 401);
    // Reading is possible with the cookie; changing needs the page's token too.
    assert_eq!(server.get("/api/runs").status, 200);
    let stop = format!("/api/runs/{run}/stop");
    let answer = server.ask("POST", &stop, &[("Cookie", &cookie)]);
    assert_eq!(answer.status, 403, "{}", answer.text());
    let action = server.get("/api/session").json()["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let allowed = [("Cookie", cookie.as_str()), ("X-Starling-Token", &action)];
    // Not from a page of another site.
    let elsewhere = [allowed[0], allowed[1], ("Origin", "http://evil.example")];
    assert_eq!(server.ask("POST", &stop, &elsewhere).status, 403);
    assert_eq!(server.ask("POST", &stop, &allowed[1..]).status, 401);
    // Allowed, but no process has locked the run.
    let answer = server.ask("POST", &stop, &allowed);
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert_eq!(server.ask("GET", &stop, &allowed).status, 405);
}

#[test]
fn other_names_of_this_server_are_refused() {
    let server = Server::start(tempfile::tempdir().unwrap());
    let cookie = server.cookie();
    for host in ["evil.example", "evil.example:80", "192.168.0.1", ""] {
        let headers = [("Cookie", cookie.as_str()), ("Host", host)];
        assert_eq!(
            server.ask("GET", "/api/runs", &headers).status,
            403,
            "{host}"
        );
    }
    let headers = [("Cookie", cookie.as_str()), ("Host", "localhost:1234")];
    assert_eq!(server.ask("GET", "/api/runs", &headers).status, 200);
}

#[test]
fn every_answer_has_the_headers_that_protect_the_page() {
    let server = Server::start(tempfile::tempdir().unwrap());
    let page = format!("/?token={}", server.token);
    for path in [page.as_str(), "/nothing", "/assets/uplot.js"] {
        let answer = server.ask("GET", path, &[("Cookie", &server.cookie())]);
        for header in [
            "content-security-policy: default-src 'self';",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
        ] {
            assert!(
                answer.headers.contains(header),
                "{path}: {}",
                answer.headers
            );
        }
    }
}

#[test]
fn no_request_names_a_path() {
    let folder = tempfile::tempdir().unwrap();
    make_run(folder.path(), "E", "a", 1, 3);
    fs::write(folder.path().join("secret"), "secret").unwrap();
    let server = Server::start(folder);
    let id = server.get("/api/runs").json()["runs"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    for path in [
        "/api/runs/0000000000000000".to_owned(),
        "/api/runs/..%2f..%2fsecret".to_owned(),
        "/api/runs/0000000000000000/log".to_owned(),
        "/api/runs/0000000000000000/live".to_owned(),
        "/api/runs/..%2f..%2fsecret/checkpoints".to_owned(),
        "/assets/..%2fCargo.toml".to_owned(),
        "/assets/%2fetc%2fpasswd".to_owned(),
        format!("/api/runs/{id}/videos/0"),
        "/api/columns?names=a&runs=0000000000000000.0.0".to_owned(),
    ] {
        let answer = server.get(&path);
        assert_eq!(answer.status, 404, "{path}");
        assert!(!answer.text().contains("root:"), "{path}");
    }
    for path in [
        format!("/api/runs/{id}/videos/..%2f..%2fconfig.yaml"),
        "/api/columns?names=a&runs=..%2f..".to_owned(),
    ] {
        assert_eq!(server.get(&path).status, 400, "{path}");
    }
    let details = server.get(&format!("/api/runs/{id}")).json();
    assert_eq!(details["settings"]["algo.gamma"], 0.9);
    assert_eq!(
        details["columns"],
        serde_json::json!(["env_steps", "ReturnAverage"])
    );
}

#[test]
fn a_reconnect_brings_only_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let first = make_run(folder.path(), "E", "a", 1, 3);
    make_run(folder.path(), "E", "b", 2, 3);
    let server = Server::start(folder);
    let all = server.get("/api/runs").json();
    assert_eq!(ids(&all).len(), 2);
    let start = all["cursor"].as_str().unwrap();
    let mut events = server.events(&format!("/api/events?after={start}"), &[]);
    // Something is written.
    add_row(&first, "400,4\n");
    let (cursor, news) = events.next().unwrap();
    assert_eq!(
        (ids(&news).len(), &news["runs"][0]["return"]),
        (1, &Value::from(4.0))
    );
    assert!(news["runs"][0].get("settings").is_none() && news.get("all").is_none());
    drop(events);
    // While there is no connection: another row, a new run.
    add_row(&first, "500,5\n");
    make_run(server.folder.path(), "E", "c", 3, 1);
    wait_until("the server has not seen both", || {
        let all = server.get("/api/runs").json();
        ids(&all).len() == 3 && named(&all, "a")["return"] == 5.0
    });
    // As a browser does it: the same address, and the last cursor in a header.
    let path = format!("/api/events?after={start}");
    let (later, news) = server
        .events(&path, &[("Last-Event-ID", &cursor)])
        .next()
        .unwrap();
    let runs = news["runs"].as_array().unwrap();
    let seen = |name: &str| runs.iter().find(|run| run["name"] == name);
    assert_eq!(runs.len(), 2, "{news}");
    assert_eq!(seen("a").unwrap()["return"], 5.0);
    assert_eq!(seen("c").unwrap()["settings"]["seed"], 3);
    // A cursor of an earlier start of the server brings everything.
    let (_, news) = server.events("/api/events?after=0-7", &[]).next().unwrap();
    assert_eq!((ids(&news).len(), &news["all"]), (3, &Value::Bool(true)));
    // A deleted run is named.
    let mut events = server.events("/api/events", &[("Last-Event-ID", &later)]);
    fs::remove_dir_all(first.path()).unwrap();
    let gone = events.find_map(|(_, news)| Some(news["gone"].get(0)?.as_str()?.to_owned()));
    assert_eq!(gone.as_deref(), seen("a").unwrap()["id"].as_str());
}

/// The description and the numbers of an answer with columns.
fn decode(bytes: &[u8]) -> (Value, Vec<f64>) {
    let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    assert_eq!((4 + length) % 8, 0);
    let described = serde_json::from_slice(&bytes[4..4 + length]).unwrap();
    let numbers = bytes[4 + length..].as_chunks::<8>().0.iter();
    (
        described,
        numbers.map(|eight| f64::from_le_bytes(*eight)).collect(),
    )
}

#[test]
fn columns_are_binary_and_begin_with_the_first_missing_row() {
    let folder = tempfile::tempdir().unwrap();
    let run = make_run(folder.path(), "E", "a", 1, 3);
    let server = Server::start(folder);
    let id = server.get("/api/runs").json()["runs"][0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let ask = |from: &str| {
        let names = "names=env_steps%0AReturnAverage";
        decode(
            &server
                .get(&format!("/api/columns?{names}&runs={id}.{from}"))
                .body,
        )
    };
    let (described, numbers) = ask("0.0");
    assert_eq!(numbers, [100.0, 200.0, 300.0, 1.0, 2.0, 3.0]);
    assert_eq!(
        (&described[0]["rows"], &described[0]["generation"]),
        (&3.into(), &1.into())
    );
    add_row(&run, "400,4\n");
    wait_until("there is no new row", || !ask("1.3").1.is_empty());
    let (described, numbers) = ask("1.3");
    assert_eq!(
        (numbers.as_slice(), &described[0]["from"]),
        (&[400.0, 4.0][..], &3.into())
    );
    // The file was replaced, as by a resumed run.
    let other = run.path().join("other");
    fs::write(&other, "env_steps,ReturnAverage\n100,7\n").unwrap();
    fs::rename(other, run.progress_path()).unwrap();
    wait_until("the new file is not seen", || !ask("1.4").1.is_empty());
    let (described, numbers) = ask("1.4");
    assert_eq!(
        (numbers.as_slice(), &described[0]["from"]),
        (&[100.0, 7.0][..], &0.into())
    );
}

#[test]
fn states_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    // Locked by this process.
    let running = make_run(root, "E", "running", 1, 3);
    let running = RunFolder::open_to_write(running.path()).unwrap();
    make_run(root, "E", "stopped", 1, 3);
    make_run(root, "E", "finished", 1, 90);
    let failed = make_run(root, "E", "failed", 1, 3);
    let line = "2026-11-16T19:40:29.417923Z ERROR environment 3 failed\n";
    fs::write(failed.log_path(), line).unwrap();
    let server = Server::start(folder);
    let all = server.get("/api/runs").json();
    let runs = all["runs"].as_array().unwrap();
    for run in runs {
        assert_eq!(run["state"], run["name"], "{run}");
    }
    let failed = runs.iter().find(|run| run["name"] == "failed").unwrap();
    assert_eq!(failed["error"], "environment 3 failed");
    drop(running);
    wait_until("the run is still running", || {
        let all = server.get("/api/runs").json();
        named(&all, "running")["state"] == "stopped"
    });
}

#[test]
fn a_thousand_runs_are_listed_quickly() {
    let mut folder = tempfile::tempdir().unwrap();
    for seed in 0..1000 {
        make_run(folder.path(), &format!("E{}", seed % 20), "a", seed, 50);
    }
    // Other programs of this machine can only make it slower: the best of some attempts counts.
    let mut best = Duration::MAX;
    for _ in 0..4 {
        let began = Instant::now();
        let server = Server::start(folder);
        let cookie = server.cookie();
        let answer = server.ask("GET", "/api/runs", &[("Cookie", &cookie)]);
        best = best.min(began.elapsed());
        assert_eq!(ids(&answer.json()).len(), 1000);
        folder = server.folder;
        if best < Duration::from_secs(2) {
            return;
        }
    }
    panic!("it took {best:?} and more");
}

#[test]
fn what_a_run_says_about_itself_is_passed_on() {
    let folder = tempfile::tempdir().unwrap();
    let run = make_run(folder.path(), "E", "a", 1, 3);
    let server = Server::start(folder);
    let all = server.get("/api/runs").json();
    let id = ids(&all)[0].to_owned();
    let path = format!("/api/runs/{id}/live");
    assert_eq!(server.get(&path).json(), Value::Null);
    let cursor = all["cursor"].as_str().unwrap();
    let mut events = server.events(&format!("/api/events?after={cursor}"), &[]);
    let live = starling_record::Live {
        roles: vec![starling_record::Role {
            role: "actor".into(),
            name: "gpu1:7 (place 0)".into(),
            ..starling_record::Role::default()
        }],
        ..starling_record::Live::default()
    };
    fs::write(run.live_path(), serde_json::to_vec(&live).unwrap()).unwrap();
    // Pages are told, and read it.
    let (_, news) = events.next().unwrap();
    assert!(news["runs"][0]["live"].as_f64().unwrap() > 1e9, "{news}");
    assert_eq!(server.get(&path).json()["roles"][0]["role"], "actor");
}

/// Whether a process is there and has not ended.
fn is_alive(process: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.starts_with(" Z"))
}

#[test]
fn an_agent_plays_only_while_somebody_looks() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 1..=3 {
        make_run(folder.path(), "E", "a", seed, 3);
    }
    // A description of two bytes and a picture of three.
    let player = r"echo $$ >>processes
                   while printf '\002\000\000\000\003\000\000\000{}abc'; do sleep 0.05; done";
    let server = Server::start_with(folder, player);
    let cookie = server.cookie();
    let action = server.get("/api/session").json()["token"].clone();
    let allowed = [
        ("Cookie", cookie.as_str()),
        ("X-Starling-Token", action.as_str().unwrap()),
    ];
    let all = server.get("/api/runs").json();
    let runs: Vec<String> = ids(&all).into_iter().map(str::to_owned).collect();
    // Not without the page's own token.
    let path = format!("/api/runs/{}/play", runs[0]);
    assert_eq!(server.ask("POST", &path, &allowed[..1]).status, 403);
    let watch = |run: &str| {
        let mut stream = server.send("POST", &format!("/api/runs/{run}/play"), &allowed);
        let mut seen = Vec::new();
        let mut some = [0; 512];
        while seen.windows(5).filter(|part| part == b"{}abc").count() < 3 {
            let count = stream.read(&mut some).unwrap();
            assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&some[..count]);
        }
        stream
    };
    let (one, two) = (watch(&runs[0]), watch(&runs[0]));
    let processes = || -> Vec<String> {
        let files = (1..=3).map(|seed| {
            let run = format!("E/ppo/a-s{seed}-20261115T082500Z/processes");
            fs::read_to_string(server.folder.path().join(run)).unwrap_or_default()
        });
        let lines: Vec<String> = files.collect();
        lines.concat().lines().map(str::to_owned).collect()
    };
    // Both see the same one.
    let playing = processes();
    assert_eq!(playing.len(), 1);
    drop(one);
    thread::sleep(Duration::from_millis(300));
    assert!(is_alive(&playing[0]), "somebody still looks");
    // A second agent, but no third.
    let other = watch(&runs[1]);
    let answer = server.ask("POST", &format!("/api/runs/{}/play", runs[2]), &allowed);
    assert_eq!(answer.status, 409, "{}", answer.text());
    drop((two, other));
    let started = processes();
    assert_eq!(started.len(), 2);
    wait_until("processes still play", || {
        !started.iter().any(|process| is_alive(process))
    });
    drop(watch(&runs[2]));
}

#[test]
fn a_player_that_ends_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    make_run(folder.path(), "E", "a", 1, 3);
    let server = Server::start_with(folder, "exit 3");
    let cookie = server.cookie();
    let action = server.get("/api/session").json()["token"].clone();
    let run = ids(&server.get("/api/runs").json())[0].to_owned();
    let headers = [
        ("Cookie", cookie.as_str()),
        ("X-Starling-Token", action.as_str().unwrap()),
    ];
    let mut stream = server.send("POST", &format!("/api/runs/{run}/play"), &headers);
    let mut text = Vec::new();
    stream.read_to_end(&mut text).unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(
        text.contains("the process that plays has ended (exit status: 3)"),
        "{text}"
    );
}
