//! `[store]`: where buckets live, and how Redis is reached.
use super::load::Outside;
use super::reader::{NOT_YET, Node, Object};
use super::{Backend, OnError, Secret, Store, Tls};
use crate::domain::units::quoted;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use std::time::Duration;

const DEFAULT_URL: &str = "redis://127.0.0.1:6379/0";
const DEFAULT_PREFIX: &str = "sluice";
const MAX_PREFIX_BYTES: usize = 64;
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(20);
const DEFAULT_SYNC: Duration = Duration::from_secs(1);
/// Bounds of `timeout`.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(10));
/// Bounds of `sync`.
const SYNC: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(3600));

impl Default for Store {
    fn default() -> Store {
        Store {
            backend: Backend::Local,
            url: None,
            username: None,
            password: None,
            password_in_url: false,
            tls: None,
            prefix: DEFAULT_PREFIX.to_string(),
            timeout: DEFAULT_TIMEOUT,
            on_error: OnError::Local,
            sync: DEFAULT_SYNC,
        }
    }
}

pub(super) fn read(node: Option<Node<'_>>, outside: &dyn Outside) -> Store {
    let mut store = Store::default();
    let Some(object) = node.and_then(|node| node.object()) else {
        return store;
    };
    let backend = object
        .get("backend")
        .and_then(|node| node.choice(&[("local", Backend::Local), ("redis", Backend::Redis)]));
    store.backend = backend.unwrap_or(store.backend);
    let url_node = object.get("url");
    let url = url_node.as_ref().and_then(read_url);
    let username = object.get("username").and_then(|node| node.text());
    let username = username.filter(|name| !name.is_empty()).map(str::to_string);
    let password = read_password(&object, outside);
    if let (Some(node), Some(url)) = (&url_node, &url) {
        for (ours, what) in [
            (username.is_some(), "username"),
            (password.is_some(), "password"),
        ] {
            let theirs = if what == "username" {
                &url.username
            } else {
                &url.password
            };
            if ours && theirs.is_some() {
                node.error(format!(
                    "has a {what}, which another field gives too; leave out one"
                ));
            }
        }
    }
    let (url_username, url_password) = match url {
        Some(url) => {
            store.url = Some(url.text);
            (url.username, url.password)
        }
        None => (None, None),
    };
    if store.url.is_none() && url_node.is_none() && store.backend == Backend::Redis {
        store.url = Some(DEFAULT_URL.to_string());
    }
    store.username = username.or(url_username);
    store.password_in_url = url_password.is_some();
    store.password = password.or(url_password.map(Secret));
    store.tls = object
        .get("tls")
        .and_then(|node| read_tls(&node, store.url.as_deref(), outside));
    if let Some(prefix) = object
        .get("prefix")
        .and_then(|node| node.parsed("a text", parse_prefix))
    {
        store.prefix = prefix;
    }
    if let Some(timeout) = object
        .get("timeout")
        .and_then(|node| node.duration(TIMEOUT))
    {
        store.timeout = timeout;
    }
    let on_error = object.get("on_error").and_then(|node| {
        node.choice(&[
            ("local", OnError::Local),
            ("allow", OnError::Allow),
            ("deny", OnError::Deny),
        ])
    });
    store.on_error = on_error.unwrap_or(store.on_error);
    if let Some(sync) = object.get("sync").and_then(|node| node.duration(SYNC)) {
        store.sync = sync;
    }
    object.refuse_others();
    store
}

fn parse_prefix(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    if !(1..=MAX_PREFIX_BYTES).contains(&text.len()) || !text.bytes().all(plain) {
        return Err(format!(
            "{} is not a prefix; it must be 1 to {MAX_PREFIX_BYTES} of A-Z, a-z, 0-9, _ . : -",
            quoted(text)
        ));
    }
    Ok(text.to_string())
}

struct Url {
    /// Without username and password.
    text: String,
    username: Option<String>,
    password: Option<String>,
}

fn read_url(node: &Node<'_>) -> Option<Url> {
    if matches!(node.value, Value::Array(_)) {
        node.error(format!(
            "is a list, the seeds of a Redis Cluster, which {NOT_YET}; name one server"
        ));
        return None;
    }
    node.parsed("a url such as \"redis://127.0.0.1:6379/0\"", parse_url)
}

fn parse_url(text: &str) -> Result<Url, String> {
    let wrong = |why: &str| {
        // Never the text: there may be a password in it.
        Err(format!(
            "{why}; it must be redis://host:port/db, rediss://…, valkey://… or unix:///path"
        ))
    };
    if text.starts_with("sentinel://") {
        return Err(format!("sentinel:// {NOT_YET}; name one server"));
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        return wrong("has no scheme");
    };
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return wrong("has blanks or characters that are not ASCII");
    }
    match scheme {
        "unix" => {
            let path = rest.split('?').next().unwrap_or_default();
            let query = rest.split_once('?').map(|(_, query)| query);
            let db = query.map(|query| query.strip_prefix("db=").map(is_db));
            if !path.starts_with('/') || path.len() < 2 || matches!(db, Some(None | Some(false))) {
                return wrong("is not unix:///path or unix:///path?db=N");
            }
            return Ok(Url {
                text: text.to_string(),
                username: None,
                password: None,
            });
        }
        "redis" | "rediss" | "valkey" => {}
        _ => return wrong("has an unknown scheme"),
    }
    let (user_info, place) = match rest.rsplit_once('@') {
        Some((user_info, place)) => (Some(user_info), place),
        None => (None, rest),
    };
    let (authority, db) = match place.split_once('/') {
        Some((authority, db)) => (authority, db),
        None => (place, ""),
    };
    let Some((host, port)) = host_and_port(authority) else {
        return wrong("has no host, or a bad one");
    };
    let port_good = port.is_none_or(|port| {
        port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if host.is_empty() || !port_good {
        return wrong("has no host, or a bad port");
    }
    if !db.is_empty() && !is_db(db) {
        return wrong("has something other than the number of a database after the host");
    }
    let decoded = |part: &str| {
        let text = percent_decode_str(part).decode_utf8().ok()?;
        (!text.is_empty()).then(|| text.into_owned())
    };
    let (username, password) =
        match user_info.map(|info| info.split_once(':').unwrap_or((info, ""))) {
            Some((username, password)) => (decoded(username), decoded(password)),
            None => (None, None),
        };
    // The client knows Valkey by Redis's name.
    let scheme = if scheme == "valkey" { "redis" } else { scheme };
    Ok(Url {
        text: format!("{scheme}://{place}"),
        username,
        password,
    })
}

fn is_db(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && text.parse::<u32>().is_ok_and(|db| db <= 16_383)
}

fn host_and_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        return match port {
            "" => Some((host, None)),
            port => Some((host, Some(port.strip_prefix(':')?))),
        };
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    host.bytes().all(plain).then_some((host, port))
}

fn read_password(object: &Object<'_>, outside: &dyn Outside) -> Option<Secret> {
    let from_env = object.get("password_env");
    let from_file = object.get("password_file");
    if let Some(node) = object.get("password") {
        node.error("must not stand here in clear; name a variable in password_env or a file in password_file");
    }
    if let (Some(_), Some(node)) = (&from_env, &from_file) {
        node.error("and password_env are both given; leave out one");
        return None;
    }
    if let Some(node) = from_env {
        let name = node.text()?;
        return match outside.env(name) {
            Some(password) if !password.is_empty() => Some(Secret(password)),
            _ => {
                node.error(format!(
                    "names {}, which is empty or not set where this runs; set it, or name a file in \
                     password_file",
                    quoted(name)
                ));
                None
            }
        };
    }
    let node = from_file?;
    let bytes = read_file(&node, outside)?;
    // Editors end a file with a newline, which is not the password's.
    let text = std::str::from_utf8(&bytes).map(|text| text.trim_end_matches(['\r', '\n']));
    match text {
        Ok(text) if !text.is_empty() => Some(Secret(text.to_string())),
        _ => {
            node.error("names a file that holds no text");
            None
        }
    }
}

fn read_file(node: &Node<'_>, outside: &dyn Outside) -> Option<Vec<u8>> {
    let path = node.text_of_path()?;
    outside
        .file(path)
        .map_err(|error| {
            let path = quoted(path);
            node.error(format!("{path}: {error}; name a file that can be read"));
        })
        .ok()
}

fn read_tls(node: &Node<'_>, url: Option<&str>, outside: &dyn Outside) -> Option<Tls> {
    let object = node.object()?;
    let pem = |name: &'static str, marks: &[&str]| {
        let node = object.get(name)?;
        let bytes = read_file(&node, outside)?;
        let text = String::from_utf8_lossy(&bytes);
        if !marks.iter().any(|mark| text.contains(mark)) {
            node.error(format!(
                "names a file without {:?}; it must be PEM",
                marks[0]
            ));
            return None;
        }
        Some(bytes)
    };
    let ca = pem("ca_file", &["-----BEGIN CERTIFICATE-----"]);
    let cert = pem("cert_file", &["-----BEGIN CERTIFICATE-----"]);
    let key = pem(
        "key_file",
        &[
            "-----BEGIN PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----",
            "-----BEGIN EC PRIVATE KEY-----",
        ],
    );
    let verify = object
        .get("verify")
        .and_then(|node| node.flag())
        .unwrap_or(true);
    match (object.get("cert_file"), object.get("key_file")) {
        (Some(node), None) => node.error("needs key_file beside it"),
        (None, Some(node)) => node.error("needs cert_file beside it"),
        _ => {}
    }
    if !url.is_some_and(|url| url.starts_with("rediss://")) {
        node.error("needs a rediss:// url; over any other nothing is encrypted");
    }
    object.refuse_others();
    let key = key.map(|bytes| Secret(String::from_utf8_lossy(&bytes).into_owned()));
    Some(Tls {
        ca,
        cert,
        key,
        verify,
    })
}
