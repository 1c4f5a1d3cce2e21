//! For tests: a worker on a heap region, and requests that are written down.
use super::answer::Answer;
use super::current::{Current, InForce};
use super::decide;
use super::degrade::Pages;
use super::exchange::{Exchange, Out, Text, Var};
use super::files::Files;
use super::options::Options;
use super::publish::{Published, PublishedField};
use super::setup::Setup;
use super::sync;
use super::thread::Shared;
use super::ticket::TicketId;
use super::worker::Worker;
use crate::domain::config;
use crate::shm::Region;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A worker of a gateway whose configuration is this TOML text. No thread runs.
pub fn worker(toml: &str) -> Worker {
    let config = config::from_toml(toml).unwrap_or_else(|e| panic!("the test's own TOML: {e:?}"));
    let region: &'static Region = Box::leak(Box::new(Region::on_heap(config.shm.size_bytes)));
    region
        .attach_worker(region.new_setup_generation())
        .expect("a heap region has room");
    let files = Files::load(&config.lists, None, &mut |line| panic!("{line}")).expect("lists");
    let lists = super::setup::build(&files).expect("lists").map(Arc::new);
    let pages = Pages::load(&config.pools).expect("pages");
    let setup = Arc::new(Setup {
        config: Arc::new(config),
        region,
        generation: region.setup_generation(),
        files,
        lists,
        shm_warning: None,
        pages,
    });
    let force: InForce = sync::in_force(&setup, &Published::default(), None);
    let current = Arc::new(Current::new(force.clone()));
    let shared = Shared::new(
        setup.config.store.clone(),
        "/nonexistent/sluice.sock".into(),
        || false,
        region,
    );
    Worker::new(setup, force, current, shared)
}

/// As when somebody sets it in Redis.
pub fn set_mode(w: &mut Worker, mode: &str) {
    let field = PublishedField {
        raw: mode.into(),
        good: None,
    };
    let published = Published {
        change: 1,
        fields: [("mode".to_owned(), field)].into(),
        ..Published::default()
    };
    w.force = sync::in_force(&w.setup, &published, None);
}

/// A request, and what was done to it.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    pub id: usize,
    pub peer: &'static str,
    pub method: &'static str,
    pub host: &'static str,
    pub uri: &'static str,
    pub request_uri: &'static str,
    pub headers: Vec<(&'static str, &'static str)>,
    pub args: Vec<(&'static str, &'static str)>,
    pub subrequest: bool,
    /// Of the answer, and of the backend's (status and time; empty: none was asked).
    pub status: &'static str,
    pub upstream: (&'static str, &'static str),
    pub gone: bool,
    /// nginx calls at the end.
    pub cleanup: bool,
    pub vars: BTreeMap<&'static str, String>,
    pub set: BTreeMap<&'static str, String>,
    pub forwarded: BTreeMap<&'static str, Option<String>>,
    pub tickets: Vec<TicketId>,
}

impl Fake {
    pub fn get(id: usize, peer: &'static str, uri: &'static str) -> Fake {
        Fake {
            id,
            peer,
            uri,
            request_uri: uri,
            method: "GET",
            host: "shop.example",
            cleanup: true,
            ..Fake::default()
        }
    }

    fn header_of(&self, name: &str) -> Option<&'static [u8]> {
        let found = self.headers.iter().find(|(n, _)| *n == name);
        found.map(|(_, v)| v.as_bytes())
    }

    pub fn var(&self, name: &str) -> &str {
        self.vars.get(name).map_or("-", |s| s)
    }
}

fn some(text: &'static str) -> Option<&'static [u8]> {
    (!text.is_empty()).then_some(text.as_bytes())
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

impl Exchange<'static> for Fake {
    fn id(&self) -> usize {
        self.id
    }
    fn serial(&mut self) -> u64 {
        self.id as u64 | 1
    }
    fn is_subrequest(&mut self) -> bool {
        self.subrequest
    }
    fn var(&mut self, var: Var<'_>) -> Option<&'static [u8]> {
        let value = match var {
            Var::Peer | Var::Remote => self.peer,
            Var::Uri => self.uri,
            Var::RequestUri => self.request_uri,
            Var::Method => self.method,
            Var::Host => self.host,
            Var::ContentLength => return self.header_of("content-length"),
            Var::TransferEncoding => return self.header_of("transfer-encoding"),
            Var::RequestLength => "100",
            Var::Status => self.status,
            Var::UpstreamStatus => return some(self.upstream.0),
            Var::UpstreamTime | Var::UpstreamHeaderTime => return some(self.upstream.1),
            Var::Arg(name) => self.args.iter().find(|(n, _)| *n == name)?.1,
        };
        Some(value.as_bytes())
    }
    fn header(&mut self, name: &str, out: &mut Vec<u8>) -> bool {
        let found: Vec<&str> = self
            .headers
            .iter()
            .filter(|(n, _)| *n == name)
            .map(|(_, v)| *v)
            .collect();
        out.extend_from_slice(found.join(", ").as_bytes());
        !found.is_empty()
    }
    fn set_var(&mut self, var: Out, value: Text<'static, '_>) {
        self.vars.insert(var.name(), text(value.bytes()));
    }
    fn set_header(&mut self, name: &'static str, value: &[u8]) {
        self.set.insert(name, text(value));
    }
    fn set_request_header(&mut self, name: &'static str, value: Option<&[u8]>) {
        self.forwarded.insert(name, value.map(text));
    }
    fn client_gone(&mut self) -> bool {
        self.gone
    }
    fn at_end(&mut self, ticket: u64) -> bool {
        self.tickets.push(TicketId::unpack(ticket));
        self.cleanup
    }
}

/// An answer to be filled in.
pub fn blank() -> Answer {
    Answer {
        action: -1,
        status: 0,
        ticket: 0,
        generation: 0,
        seconds: 0.0,
        remaining: 0.0,
        body_len: 0,
        message_len: 0,
        file: 0,
        unused: 0,
        body: [0; 512],
        message: [0; 768],
    }
}

/// Decides a request and lets it end; what was said of it.
pub fn run(w: &mut Worker, mut x: Fake, options: &Options<'static>) -> (Fake, Answer) {
    let mut out = blank();
    decide::access(w, &mut x, options, &mut out);
    for t in std::mem::take(&mut x.tickets) {
        w.end(t);
    }
    (x, out)
}

/// The verdict alone.
pub fn verdict(w: &mut Worker, x: Fake) -> String {
    run(w, x, &Options::default())
        .0
        .var("sluice_verdict")
        .to_owned()
}
