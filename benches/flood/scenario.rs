//! What a run consists of, read from the command line.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

/// Somewhere to send to. Every target gets the same requests at the same times.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: String,
    pub address: SocketAddrV4,
}

/// A kind of request, coming at a rate of its own from clients of its own.
#[derive(Clone, Debug)]
pub struct Class {
    pub name: String,
    /// A second, all clients together; a Poisson process.
    pub rate: f64,
    pub method: String,
    /// `{n}` becomes a random number, `{client}` the client's.
    pub path: String,
    /// Values too may name `{client}`.
    pub headers: Vec<String>,
    /// Addresses, from `net` upwards, each its own client with its own connections.
    pub clients: u32,
    pub net: Ipv4Addr,
    pub from_s: f64,
    pub until_s: f64,
    pub timeout: Duration,
    /// A connection for each request.
    pub close: bool,
    /// The same, and it is cut off after this time, answered or not.
    pub torn: Option<Duration>,
}

/// A stretch of the run that the final table reports by itself.
#[derive(Clone, Debug)]
pub struct Phase {
    pub from_s: f64,
    pub name: String,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    pub targets: Vec<Target>,
    pub classes: Vec<Class>,
    pub phases: Vec<Phase>,
    pub seconds: f64,
    pub seed: u64,
    pub title: String,
    /// A file whose last lines are shown: what is being done meanwhile.
    pub note: Option<PathBuf>,
    pub json: Option<PathBuf>,
    /// No live screen.
    pub plain: bool,
    /// No tables either.
    pub quiet: bool,
    /// Asked what it sees: a shop of ours.
    pub shop: Option<SocketAddrV4>,
    /// Asked for `/status` and `/metrics`: a gateway.
    pub status: Option<SocketAddrV4>,
    /// The nginx master, whose workers' use of the CPU is looked at.
    pub nginx: Option<u32>,
    /// When one of its workers is killed.
    pub kill_s: Option<f64>,
}

impl Scenario {
    pub fn parse(args: &mut lexopt::Parser) -> Result<Scenario, String> {
        let mut scenario = Scenario {
            name: "run".into(),
            targets: Vec::new(),
            classes: Vec::new(),
            phases: Vec::new(),
            seconds: 30.0,
            seed: 1,
            title: String::new(),
            note: None,
            json: None,
            plain: false,
            quiet: false,
            shop: None,
            status: None,
            nginx: None,
            kill_s: None,
        };
        while let Some(arg) = args.next().map_err(|error| error.to_string())? {
            let name = match arg {
                lexopt::Arg::Long(name) => name.to_owned(),
                other => return Err(other.unexpected().to_string()),
            };
            if name == "plain" || name == "quiet" {
                scenario.plain = true;
                scenario.quiet |= name == "quiet";
                continue;
            }
            let value = args.value().map_err(|error| error.to_string())?;
            let value = value.to_string_lossy().into_owned();
            match name.as_str() {
                "target" => scenario.targets.push(target(&value)?),
                "class" => scenario.classes.push(Class::parse(&value)?),
                "phase" => {
                    let (from, text) = pair(&value, "--phase")?;
                    scenario.phases.push(Phase {
                        from_s: number("--phase", from)?,
                        name: text.into(),
                    });
                }
                "seconds" => scenario.seconds = number("--seconds", &value)?,
                "seed" => scenario.seed = number("--seed", &value)? as u64,
                "name" => scenario.name = value,
                "shop" => scenario.shop = Some(address(&value)?),
                "status" => scenario.status = Some(address(&value)?),
                "nginx" => scenario.nginx = Some(number("--nginx", &value)? as u32),
                "kill" => scenario.kill_s = Some(number("--kill", &value)?),
                "title" => scenario.title = value,
                "note" => scenario.note = Some(value.into()),
                "json" => scenario.json = Some(value.into()),
                _ => return Err(format!("--{name}: not an option of run")),
            }
        }
        if scenario.targets.is_empty() || scenario.classes.is_empty() {
            return Err("run needs at least one --target and one --class".into());
        }
        if scenario.phases.is_empty() {
            scenario.phases.push(Phase {
                from_s: 0.0,
                name: "the whole run".into(),
            });
        }
        if !scenario.phases.is_sorted_by(|a, b| a.from_s < b.from_s) {
            return Err("--phase: each has to begin after the one before".into());
        }
        Ok(scenario)
    }

    /// Seconds from which and until which a phase lasts.
    pub fn span_s(&self, phase: usize) -> (f64, f64) {
        let until = self
            .phases
            .get(phase + 1)
            .map_or(self.seconds, |next| next.from_s);
        (self.phases[phase].from_s, until)
    }
}

fn pair<'a>(text: &'a str, of: &str) -> Result<(&'a str, &'a str), String> {
    text.split_once('=')
        .ok_or_else(|| format!("{of} {text}: no = in it"))
}

fn number(of: &str, text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(format!("{of}: {text} is not a number from 0 upwards")),
    }
}

fn target(text: &str) -> Result<Target, String> {
    let (name, to) = pair(text, "--target")?;
    Ok(Target {
        name: name.into(),
        address: address(to)?,
    })
}

fn address(text: &str) -> Result<SocketAddrV4, String> {
    match text.parse::<SocketAddrV4>() {
        Ok(address) if address.ip().is_loopback() => Ok(address),
        _ => Err(format!(
            "{text}: an address of this machine (127.0.0.0/8) and a port are wanted"
        )),
    }
}

impl Class {
    pub fn parse(text: &str) -> Result<Class, String> {
        let mut class = Class {
            name: String::new(),
            rate: 0.0,
            method: "GET".into(),
            path: "/".into(),
            headers: Vec::new(),
            clients: 1,
            net: Ipv4Addr::LOCALHOST,
            from_s: 0.0,
            until_s: f64::INFINITY,
            timeout: Duration::from_secs(10),
            close: false,
            torn: None,
        };
        for part in text.split(',') {
            if part == "close" {
                class.close = true;
                continue;
            }
            let (key, value) = pair(part, "--class")?;
            match key {
                "name" => class.name = value.into(),
                "rate" => class.rate = number(key, value)?,
                "method" => class.method = value.into(),
                "path" => class.path = value.into(),
                "header" => class.headers.push(value.into()),
                "clients" => class.clients = number(key, value)? as u32,
                "net" => class.net = value.parse().map_err(|_| format!("net: {value}"))?,
                "from" => class.from_s = number(key, value)?,
                "until" => class.until_s = number(key, value)?,
                "timeout" => class.timeout = Duration::from_secs_f64(number(key, value)?),
                "torn" => class.torn = Some(Duration::from_secs_f64(number(key, value)?)),
                _ => return Err(format!("--class: {key} is not a part of one")),
            }
        }
        if class.name.is_empty() || class.rate <= 0.0 || class.clients == 0 {
            return Err(format!("--class {text}: name, rate and clients are needed"));
        }
        if !class.net.is_loopback() || !class.address(class.clients - 1).is_loopback() {
            return Err(format!(
                "--class {}: clients have to be in 127.0.0.0/8",
                class.name
            ));
        }
        Ok(class)
    }

    /// The address of a client.
    pub fn address(&self, client: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.net).saturating_add(client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_loopback_is_taken() {
        assert!(target("a=127.0.0.1:80").is_ok());
        for wrong in [
            "a=10.0.0.1:80",
            "a=[::1]:80",
            "a=example.com:80",
            "127.0.0.1:80",
        ] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
        assert!(Class::parse("name=a,rate=1,net=127.255.255.250,clients=100").is_err());
        assert!(Class::parse("name=a,rate=1,net=127.9.0.0,clients=1000").is_ok());
        assert!(Class::parse("name=a,rate=NaN").is_err());
    }
}
