use super::*;
use crate::tally::Tally;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Mutex;
use std::thread;

/// A server that does what the path says, and remembers from where connections came.
struct Server {
    address: String,
    seen: Arc<Mutex<Vec<IpAddr>>>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let its = seen.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // None: it has hung up already.
                if let Ok(peer) = stream.peer_addr() {
                    its.lock().unwrap().push(peer.ip());
                }
                thread::spawn(move || serve(stream));
            }
        });
        Server { address, seen }
    }

    /// One class's requests for half a second at 200/s, and what became of them.
    fn load(&self, class: &str) -> Tally {
        load(&self.address, class, Killed::default())
    }
}

fn load(address: &str, class: &str, killed: Killed) -> Tally {
    let class = format!("name=a,rate=200,{class}");
    let target = format!("t={address}");
    let words = [
        "--quiet",
        "--seconds",
        "0.5",
        "--target",
        &target,
        "--class",
        &class,
    ];
    let scenario = Scenario::parse(&mut lexopt::Parser::from_args(words)).unwrap();
    let mut load = Load::new(scenario, Instant::now(), Arc::new(killed)).unwrap();
    load.all().unwrap();
    assert_eq!(load.results.not_sent, 0);
    let sum = load.results.tracks[0][0].due(0, 60);
    assert!(sum.asked > 50, "{sum:?}");
    assert!(load.connections.len() < 100, "slots are not used again");
    sum
}

fn serve(mut stream: TcpStream) {
    let mut bytes = [0; 4096];
    loop {
        let Ok(length) = stream.read(&mut bytes) else {
            return;
        };
        let path = |path: &str| {
            let line = format!("GET {path} ");
            bytes[..length].starts_with(line.as_bytes())
        };
        if length == 0 || path("/cut") {
            return;
        }
        if path("/never") {
            continue;
        }
        let answer = b"HTTP/1.1 200 OK\r\nX-Worker: 5\r\nContent-Length: 2\r\n\r\nok";
        // In two parts, so that answers are put together.
        let _ = stream.write_all(&answer[..30]);
        if path("/parts") {
            thread::sleep(Duration::from_millis(1));
        }
        let _ = stream.write_all(&answer[30..]);
        if path("/once") {
            return;
        }
    }
}

#[test]
fn requests_are_answered_over_connections_of_their_clients() {
    let server = Server::start();
    for path in ["/ok", "/parts"] {
        let sum = server.load(&format!("path={path},clients=3,net=127.30.0.1"));
        assert_eq!(sum.full.count(), sum.asked);
    }
    let seen = server.seen.lock().unwrap();
    let known = [1, 2, 3].map(|last| IpAddr::V4(Ipv4Addr::new(127, 30, 0, last)));
    assert!(
        seen.iter().all(|address| known.contains(address)),
        "{seen:?}"
    );
    assert!(seen.len() < 60, "connections are not kept: {}", seen.len());
}

#[test]
fn a_kept_connection_that_the_server_closed_costs_no_request() {
    let sum = Server::start().load("path=/once,clients=2");
    assert_eq!(sum.full.count(), sum.asked, "{sum:?}");
}

#[test]
fn what_is_not_answered_is_lost() {
    let server = Server::start();
    let sum = server.load("path=/never,timeout=0.1");
    assert_eq!(sum.lost, sum.asked);
    let sum = server.load("path=/cut");
    assert_eq!(sum.lost, sum.asked);
}

#[test]
fn what_its_client_gives_up_is_not_lost() {
    let sum = Server::start().load("path=/never,torn=0.002");
    assert_eq!(sum.torn, sum.asked);
}

#[test]
fn without_a_server_nothing_is_available() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let sum = load(&address, "path=/", Killed::default());
    assert_eq!(sum.unavailable, sum.asked, "{sum:?}");
}

#[test]
fn what_a_killed_worker_held_is_apart() {
    let server = Server::start();
    // Answers come from worker 5; of connections without one it is not known.
    let sum = load(&server.address, "path=/cut", Killed::of(6));
    assert_eq!(sum.killed, sum.asked, "{sum:?}");
    let sum = load(&server.address, "path=/ok", Killed::of(5));
    assert_eq!(sum.full.count(), sum.asked);
}

#[test]
fn a_request_is_filled_in() {
    let class = "name=a,rate=1,method=POST,path=/p/{n}?c={client},header=X-User: u{client}";
    let mut text = Vec::new();
    Text::new(&Class::parse(class).unwrap()).write(&mut text, 7, 31);
    assert_eq!(
        String::from_utf8(text).unwrap(),
        "POST /p/7?c=31 HTTP/1.1\r\nHost: shop.test\r\nX-User: u31\r\n\
         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    );
}
