//! `[shm]`, `[client]`, `[lists]` and `[response]`.
use super::load::is_glob;
use super::reader::Node;
use super::{BodyStyle, Client, HeaderStyle, ListSource, Lists, Response, Shm};
use crate::domain::entry;
use crate::domain::key::is_token;
use crate::domain::units::{parse_size, quoted};
use std::path::PathBuf;

const DEFAULT_SHM_PATH: &str = "/dev/shm/sluice";
/// The bridge's socket is `path.<pid>.sock`, and a socket's path has 107 bytes.
const MAX_SHM_PATH_BYTES: usize = 107 - ".4194304.sock".len();
const DEFAULT_SHM_BYTES: u64 = 32 << 20;
/// Bounds of `shm.size`.
const SHM_BYTES: (u64, u64) = (1 << 20, 64 << 30);
const DEFAULT_HEADER: &str = "x-forwarded-for";
const UNIX: &str = "unix:";

impl Default for Shm {
    fn default() -> Shm {
        Shm {
            path: PathBuf::from(DEFAULT_SHM_PATH),
            size_bytes: DEFAULT_SHM_BYTES,
        }
    }
}

pub(super) fn shm(node: Option<Node<'_>>) -> Shm {
    let mut shm = Shm::default();
    let Some(object) = node.and_then(|node| node.object()) else {
        return shm;
    };
    if let Some(node) = object.get("path")
        && let Some(path) = node.text_of_path()
    {
        if path.len() > MAX_SHM_PATH_BYTES || path.ends_with('/') {
            node.error(format!(
                "must be the path of a file of at most {MAX_SHM_PATH_BYTES} bytes, as a socket beside it has its name, not {}",
                quoted(path)
            ));
        }
        shm.path = PathBuf::from(path);
    }
    if let Some(node) = object.get("size")
        && let Some(bytes) = node.parsed("a size such as \"64MiB\"", parse_size)
    {
        let (least, most) = SHM_BYTES;
        if (least..=most).contains(&bytes) {
            shm.size_bytes = bytes;
        } else {
            node.error(format!(
                "must be from {}MiB to {}GiB, not {}",
                least >> 20,
                most >> 30,
                quoted(node.value.as_str().unwrap_or_default())
            ));
        }
    }
    object.refuse_others();
    shm
}

impl Default for Client {
    fn default() -> Client {
        Client {
            trusted_proxies: Vec::new(),
            trust_unix: false,
            header: DEFAULT_HEADER.to_string(),
            ipv4_prefix: 32,
            ipv6_prefix: 64,
        }
    }
}

pub(super) fn client(node: Option<Node<'_>>) -> Client {
    let mut client = Client::default();
    let Some(object) = node.and_then(|node| node.object()) else {
        return client;
    };
    let proxies = object.get("trusted_proxies").and_then(|node| node.list());
    for node in proxies.unwrap_or_default() {
        match node.text() {
            Some(UNIX) => client.trust_unix = true,
            Some(text) => match entry::parse_net(text.trim_ascii().as_bytes()) {
                Ok(net) => client.trusted_proxies.push(net),
                Err(_) => node.error(format!(
                    "{} is not an address, a network (10.0.0.0/8) or \"unix:\"",
                    quoted(text)
                )),
            },
            None => {}
        }
    }
    if let Some(node) = object.get("header")
        && let Some(name) = node.text()
    {
        if is_token(name) {
            client.header = name.to_ascii_lowercase();
        } else {
            node.error(format!(
                "{} is not the name of a header; write one such as \"X-Forwarded-For\"",
                quoted(name)
            ));
        }
    }
    let prefix = |name, most| object.get(name).and_then(|node| node.whole(1, most));
    if let Some(bits) = prefix("ipv4_prefix", 32) {
        client.ipv4_prefix = bits as u8;
    }
    if let Some(bits) = prefix("ipv6_prefix", 128) {
        client.ipv6_prefix = bits as u8;
    }
    object.refuse_others();
    client
}

pub(super) fn lists(node: Option<Node<'_>>) -> Lists {
    let mut lists = Lists::default();
    let Some(object) = node.and_then(|node| node.object()) else {
        return lists;
    };
    lists.blocklist = object
        .get("blocklist")
        .map_or(Vec::new(), |node| sources(&node));
    lists.allowlist = object
        .get("allowlist")
        .map_or(Vec::new(), |node| sources(&node));
    object.refuse_others();
    lists
}

fn sources(node: &Node<'_>) -> Vec<ListSource> {
    let items = node.list().unwrap_or_default();
    let mut sources = Vec::with_capacity(items.len());
    for item in items {
        let Some(text) = item.text() else { continue };
        match entry::parse(text.as_bytes()) {
            Ok(subject) => sources.push(ListSource::Entry(subject)),
            Err(_) if text.starts_with('/') => match check_pattern(text) {
                Ok(()) => sources.push(ListSource::File(text.to_string())),
                Err(problem) => item.error(problem),
            },
            Err(error) => item.error(format!(
                "{}, and not an absolute path either",
                entry::describe(text.as_bytes(), error)
            )),
        }
    }
    sources
}

fn check_pattern(text: &str) -> Result<(), String> {
    if text.contains('\0') {
        return Err(format!("{} is not a path", quoted(text)));
    }
    if is_glob(text)
        && let Err(error) = glob::Pattern::new(text)
    {
        return Err(format!("{} is not a glob: {}", quoted(text), error.msg));
    }
    Ok(())
}

impl Default for Response {
    fn default() -> Response {
        Response {
            headers: HeaderStyle::Standard,
            body: BodyStyle::Problem,
        }
    }
}

pub(super) fn response(node: Option<Node<'_>>) -> Response {
    let mut response = Response::default();
    let Some(object) = node.and_then(|node| node.object()) else {
        return response;
    };
    let headers = object.get("headers").and_then(|node| {
        node.choice(&[
            ("standard", HeaderStyle::Standard),
            ("legacy", HeaderStyle::Legacy),
            ("off", HeaderStyle::Off),
        ])
    });
    response.headers = headers.unwrap_or(response.headers);
    let body = object.get("body").and_then(|node| {
        node.choice(&[("problem", BodyStyle::Problem), ("nginx", BodyStyle::Nginx)])
    });
    response.body = body.unwrap_or(response.body);
    object.refuse_others();
    response
}
