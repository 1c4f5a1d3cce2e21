//! The demo shop: a backend with a fixed number of workers.
//!
//! Each request takes a worker for its service time, sleeping, and waits in line (first
//! come, first served) while none is free: what a pool of PHP children, threads or
//! database connections does. Like those it finishes what it has begun, and takes up what
//! waited, even if nobody is listening any more. It uses hardly any CPU.

use crate::http::{Connection, Request};
use crate::random::Random;
use crate::record::Backend;
use crate::sleeper::Sleeper;
use crate::watch::own_cpu_s;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Kinds of requests that are counted; a client could name any number.
const KINDS_MAX: usize = 16;

/// How service times lie around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// All the same. Nothing then drives apart what once ended together, and any hiccup makes
    /// more of it end together: slots become free in bunches.
    Fixed,
    /// Evenly within a tenth more and a tenth less.
    Near,
    /// Exponentially distributed.
    Exponential,
}

#[derive(Debug)]
pub struct Options {
    pub listen: String,
    pub slots: usize,
    pub service_ms: f64,
    pub shape: Shape,
    /// What is not of the kind `core` takes so many times as long.
    pub longer: f64,
    /// Requests that may wait; one more is turned away, as by a full listen queue.
    pub backlog: usize,
}

impl Options {
    pub fn parse(args: &mut lexopt::Parser) -> Result<Options, String> {
        let mut options = Options {
            listen: "127.0.0.1:8081".into(),
            slots: 16,
            service_ms: 20.0,
            shape: Shape::Fixed,
            longer: 1.0,
            backlog: 1000,
        };
        while let Some(arg) = args.next().map_err(|error| error.to_string())? {
            let name = match arg {
                lexopt::Arg::Long(name) => name.to_owned(),
                other => return Err(other.unexpected().to_string()),
            };
            let value = args.value().map_err(|error| error.to_string())?;
            let value = value.to_string_lossy().into_owned();
            let number = || {
                value
                    .parse::<f64>()
                    .map_err(|_| format!("--{name}: no number"))
            };
            match name.as_str() {
                "listen" => options.listen = value,
                "slots" => options.slots = number()? as usize,
                "service-ms" => options.service_ms = number()?,
                "longer" => options.longer = number()?,
                "backlog" => options.backlog = number()? as usize,
                "shape" => {
                    options.shape = match value.as_str() {
                        "fixed" => Shape::Fixed,
                        "near" => Shape::Near,
                        "exp" => Shape::Exponential,
                        _ => return Err(format!("--shape {value}: fixed, near or exp")),
                    }
                }
                _ => return Err(format!("--{name}: not an option of shop")),
            }
        }
        let negative = |number: f64| number.is_nan() || number < 0.0;
        if options.slots == 0 || negative(options.service_ms) || negative(options.longer) {
            return Err("--slots, --service-ms and --longer have to be positive".into());
        }
        Ok(options)
    }
}

struct Shop {
    options: Options,
    slots: Semaphore,
    sleeper: Sleeper,
    random: RefCell<Random>,
    waiting: Cell<usize>,
    /// Requests that are here: worked on, or in line.
    inside: Gauge,
    working: Gauge,
    served: RefCell<BTreeMap<String, u64>>,
    /// When a request last ended, and the gaps between ends: their sum, that of the squares.
    ended: Cell<Instant>,
    gaps_s: Cell<(f64, f64)>,
    turned_away: Cell<u64>,
}

/// A number that goes up and down, its sum over time, and the most that it was.
struct Gauge {
    now: Cell<usize>,
    since: Cell<Instant>,
    sum_s: Cell<f64>,
    most: Cell<usize>,
}

impl Gauge {
    fn new() -> Gauge {
        Gauge {
            now: Cell::new(0),
            since: Cell::new(Instant::now()),
            sum_s: Cell::new(0.0),
            most: Cell::new(0),
        }
    }

    fn set(&self, value: usize) {
        let now = Instant::now();
        let past_s = (now - self.since.replace(now)).as_secs_f64();
        let was = self.now.replace(value);
        self.sum_s.set(self.sum_s.get() + past_s * was as f64);
        self.most.set(self.most.get().max(value));
    }

    fn up(&self) {
        self.set(self.now.get() + 1);
    }

    fn down(&self) {
        self.set(self.now.get() - 1);
    }

    /// The sum over time until now, and the most at once since the last call.
    fn read(&self) -> (f64, usize) {
        self.set(self.now.get());
        (self.sum_s.get(), self.most.replace(self.now.get()))
    }
}

pub fn serve(options: Options) -> Result<(), String> {
    crate::on_this_thread(async {
        let listener = TcpListener::bind(&options.listen)
            .await
            .map_err(|error| format!("{}: {error}", options.listen))?;
        let shop = Rc::new(Shop {
            slots: Semaphore::new(options.slots),
            sleeper: Sleeper::start(),
            random: RefCell::new(Random::new(1)),
            waiting: Cell::new(0),
            inside: Gauge::new(),
            working: Gauge::new(),
            served: RefCell::new(BTreeMap::new()),
            ended: Cell::new(Instant::now()),
            gaps_s: Cell::new((0.0, 0.0)),
            turned_away: Cell::new(0),
            options,
        });
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::task::spawn_local(client(shop.clone(), stream));
                }
                // Out of descriptors, say. What is open ends sooner or later.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })?
}

async fn client(shop: Rc<Shop>, stream: TcpStream) {
    let mut connection = Connection::new(stream);
    while let Ok(Some(request)) = connection.request().await {
        let (status, kind, body) = shop.answer(&request).await;
        let body = if request.method == "HEAD" {
            String::new()
        } else {
            body
        };
        let end = if request.keep { "keep-alive" } else { "close" };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             Connection: {end}\r\n\r\n{body}",
            body.len()
        );
        if connection.write(answer.as_bytes()).await.is_err() || !request.keep {
            return;
        }
    }
}

type Page = (&'static str, &'static str, String);

impl Shop {
    async fn answer(&self, request: &Request) -> Page {
        let path = request.path.split('?').next().unwrap_or("/");
        match path {
            "/health" => return ("200 OK", "text/plain", "ok\n".into()),
            // Not through a worker either: it is asked while all of them are busy.
            "/-/stats" => return ("200 OK", "application/json", self.stats()),
            _ => {}
        }
        if self.slots.available_permits() == 0 && self.waiting.get() >= self.options.backlog {
            self.turned_away.set(self.turned_away.get() + 1);
            return (
                "503 Service Unavailable",
                "text/plain",
                "All workers are busy.\n".into(),
            );
        }
        self.inside.up();
        self.waiting.set(self.waiting.get() + 1);
        let slot = self.slots.acquire().await;
        self.waiting.set(self.waiting.get() - 1);
        self.working.up();

        let kind = request.kind.as_deref().unwrap_or("any");
        let mut service_ms = self.service_ms();
        if kind != "core" {
            service_ms *= self.options.longer;
        }
        let service = Duration::from_secs_f64(service_ms / 1000.0);
        self.sleeper.sleep(service).await;

        self.working.down();
        self.inside.down();
        let now = Instant::now();
        let gap_s = (now - self.ended.replace(now)).as_secs_f64();
        let (sum, squares) = self.gaps_s.get();
        self.gaps_s.set((sum + gap_s, squares + gap_s * gap_s));
        let mut served = self.served.borrow_mut();
        if let Some(number) = served.get_mut(kind) {
            *number += 1;
        } else if served.len() < KINDS_MAX {
            served.insert(kind.to_owned(), 1);
        }
        drop(slot);
        page(path, request)
    }

    fn service_ms(&self) -> f64 {
        let mean_ms = self.options.service_ms;
        let mut random = self.random.borrow_mut();
        match self.options.shape {
            Shape::Fixed => mean_ms,
            Shape::Near => mean_ms * (0.9 + f64::from(random.below(2001)) / 10_000.0),
            Shape::Exponential => random.exponential(mean_ms),
        }
    }

    fn stats(&self) -> String {
        let (inside_s, most_inside) = self.inside.read();
        let stats = Backend {
            slots: self.options.slots,
            inside_s,
            most_inside,
            working_s: self.working.read().0,
            turned_away: self.turned_away.get(),
            gaps_s: self.gaps_s.get().0,
            gaps2_s2: self.gaps_s.get().1,
            served: self.served.borrow().clone(),
            cpu_s: own_cpu_s(),
        };
        // Plain numbers: cannot fail.
        serde_json::to_string(&stats).unwrap_or_default() + "\n"
    }
}

fn page(path: &str, request: &Request) -> Page {
    if path.starts_with("/api/") {
        let what = path.trim_start_matches("/api/");
        return (
            "200 OK",
            "application/json",
            format!("{{\"done\":\"{}\"}}\n", escaped(what)),
        );
    }
    let body = match path {
        "/" => (1..=8)
            .map(|n| format!("<li><a href=\"/product/{n}\">Lamp no. {n}</a>"))
            .collect::<String>(),
        "/search" => "<li>Three lamps match.".into(),
        _ if path.starts_with("/product/") => {
            "<li>A lamp. <form method=\"post\" action=\"/api/order\"><button>Order</button></form>"
                .into()
        }
        _ => return ("404 Not Found", "text/plain", "No such page.\n".into()),
    };
    let level = request.level.as_deref().unwrap_or("none");
    let html = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>Lamps</title>\
         <h1><a href=\"/\">Lamps</a></h1>\
         <form action=\"/search\"><input name=\"q\"><button>Search</button></form>\
         <ul>{body}</ul><p><small>{} {}, level {}</small>\n",
        escaped(&request.method),
        escaped(path),
        escaped(level),
    );
    ("200 OK", "text/html; charset=utf-8", html)
}

fn escaped(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '<' | '>' | '&' | '"' | '\'' | '\\' => '_',
            c if c.is_control() => '_',
            c => c,
        })
        .collect()
}
