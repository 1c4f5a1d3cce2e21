//! A private Redis for tests and benches: its own directory, a free port,
//! nothing saved; stopped by its pid when dropped.
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Server {
    child: Child,
    pub port: u16,
    /// Beside the port it listens on `unix()`.
    directory: tempfile::TempDir,
    arguments: Vec<String>,
}

/// Says, once a test, why it does nothing: there is no redis-server.
pub fn installed() -> bool {
    let found = Command::new("redis-server")
        .arg("--version")
        .output()
        .is_ok();
    if !found {
        eprintln!("SKIPPED: redis-server is not installed, nothing was tested");
    }
    found
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|it| it.local_addr())
        .expect("a free port")
        .port()
}

impl Server {
    pub fn start() -> Server {
        Server::with(&[])
    }

    /// `arguments` as on redis-server's command line.
    pub fn with(arguments: &[&str]) -> Server {
        Server::on(free_port(), arguments)
    }

    pub fn on(port: u16, arguments: &[&str]) -> Server {
        let directory = tempfile::tempdir().expect("a directory");
        let arguments: Vec<String> = arguments.iter().map(|&it| it.to_owned()).collect();
        let child = spawn(port, &directory, &arguments);
        let mut server = Server {
            child,
            port,
            directory,
            arguments,
        };
        server.ready();
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn unix(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    /// A blocking connection of the test's own.
    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url())
            .and_then(|it| it.get_connection())
            .expect("a connection")
    }

    /// Runs one command given as words.
    pub fn run<T: redis::FromRedisValue>(&self, words: &str) -> T {
        let mut words = words.split_ascii_whitespace();
        let mut command = redis::cmd(words.next().expect("a command"));
        command.arg(words.collect::<Vec<_>>());
        command.query(&mut self.connection()).expect("a reply")
    }

    /// SIGSTOP: it hangs, its sockets stay open.
    pub fn hang(&self) {
        self.signal("STOP");
    }

    pub fn wake(&self) {
        self.signal("CONT");
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it was running");
        self.child.wait().expect("it was running");
    }

    /// Again, empty, on the same port.
    pub fn restart(&mut self) {
        self.kill();
        self.revive();
    }

    pub fn revive(&mut self) {
        self.child = spawn(self.port, &self.directory, &self.arguments);
        self.ready();
    }

    fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.arg(format!("-{name}"))
            .arg(self.child.id().to_string());
        assert!(kill.status().expect("kill runs").success());
    }

    fn ready(&mut self) {
        let output = self.child.stdout.take().expect("piped");
        let mut lines = BufReader::new(output).lines();
        let end = Instant::now() + Duration::from_secs(20);
        let mut said = Vec::new();
        while Instant::now() < end {
            let Some(Ok(line)) = lines.next() else { break };
            if line.contains("Ready to accept connections")
                || line.contains("accept connections at")
            {
                // What it says later goes nowhere, but is read, or it would stop.
                std::thread::spawn(move || lines.for_each(drop));
                return;
            }
            said.push(line);
        }
        panic!("redis-server did not start: {said:?}");
    }
}

fn spawn(port: u16, directory: &tempfile::TempDir, arguments: &[String]) -> Child {
    let socket = directory.path().join("redis.sock");
    Command::new("redis-server")
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ])
        .args(["--appendonly", "no", "--daemonize", "no", "--unixsocket"])
        .arg(socket)
        .arg("--dir")
        .arg(directory.path())
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server starts")
}

impl Drop for Server {
    fn drop(&mut self) {
        // Also when it is stopped by a signal: SIGKILL needs no SIGCONT.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
