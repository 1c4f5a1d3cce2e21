//! `status()`: the state of this gateway as JSON.
use super::rules::CompiledPool;
use super::setup;
use super::worker;
use crate::domain::config::{Backend, FieldError};
use serde_json::{Value, json};

fn texts(list: &[FieldError]) -> Vec<Value> {
    list.iter()
        .map(|e| json!({ "field": e.field, "error": e.problem }))
        .collect()
}

/// The JSON text; an error where this process is not set up.
pub fn json() -> Result<String, String> {
    worker::with(status)
        .ok_or_else(|| "sluice: status() needs a worker that start() has attached".to_owned())
        .map(|v| format!("{v}\n"))
}

/// Each pool in force. One whose lock is not to be had is shown without numbers.
fn pools(w: &worker::Worker) -> Vec<Value> {
    let of = |p: &CompiledPool| {
        let Some(touched) = w
            .region
            .pool(p.id, |it, now, _| (it.view(now), it.state.cluster))
        else {
            return json!({ "name": p.name });
        };
        let (view, cluster) = touched.value;
        let mut shown = json!({
            "name": p.name,
            "limit": view.limit,
            "saturated": view.saturated,
            "in_flight": view.in_flight,
            "abandoned": view.ghosts,
            "waiting": view.waiting,
        });
        if p.cluster {
            // `limit` is this gateway's share.
            shown["cluster"] = json!({
                "limit": cluster.limit,
                "gateways": cluster.gateways,
                "slot_by_slot": cluster.strict == 1,
                "limits_differ": cluster.differs == 1,
            });
        }
        shown
    };
    w.force.rules.pools.iter().map(of).collect()
}

fn status(w: &mut worker::Worker) -> Value {
    w.refresh();
    let healthy = w.setup.config.store.url.is_none() || (w.region.store_up() && w.store_up());
    let region = w.region;
    let rules = &w.force.rules;
    let config = &w.setup.config;
    let (capacity, used) = region.bucket_slots();
    let mut counts = w.lists.iter().map(|l| l.counts()).fold((0, 0, 0), |a, c| {
        (a.0 + c.allow, a.1 + c.block, a.2 + c.bans)
    });
    if config.store.url.is_none() {
        counts.2 += region.bans_count();
    }
    let published = super::publish::Published::load(region, &config.store);
    let mut warnings: Vec<String> = config
        .warnings
        .iter()
        .chain(&rules.warnings)
        .map(|e| format!("{}: {}", e.field, e.problem))
        .collect();
    // The rules' warnings are the configuration's, and those of entries in Redis.
    let mut seen = std::collections::HashSet::new();
    warnings.retain(|w| seen.insert(w.clone()));
    warnings.extend(match &published.file_warnings {
        Some((setup, since)) if *setup == w.setup.generation => since.clone(),
        _ => w.setup.files.warnings(),
    });
    warnings.extend(w.setup.shm_warning.iter().cloned());
    warnings.extend(
        published
            .troubles
            .iter()
            .map(|(key, what)| format!("{key}: {what}")),
    );
    if crate::engine::exchange::variables_missing() {
        warnings.push(
            "the include sluice.conf is missing at http level: requests are decided, but \
             $sluice_verdict and the other variables are not set"
                .into(),
        );
    }
    if setup::current().is_some_and(|s| s.generation != w.setup.generation) {
        warnings.push("this worker belongs to an older setup".into());
    }
    let workers: Vec<Value> = region
        .workers()
        .iter()
        .map(|i| {
            json!({
                "pid": i.pid,
                "config_generation": i.config_generation,
                "setup_generation": i.setup_generation,
            })
        })
        .collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "mode": format!("{:?}", rules.mode).to_lowercase(),
        "config": { "generation": rules.generation, "errors": texts(&rules.errors) },
        "rules": rules.rules.iter().map(|r| &r.name).collect::<Vec<_>>(),
        "pools": pools(w),
        "workers": workers,
        "store": {
            "backend": match config.store.backend {
                Backend::Local => "local",
                Backend::Redis => "redis",
            },
            "healthy": healthy,
            "gateways": region.gateways(),
        },
        "shm": {
            "path": region.path(),
            "size": region.size_bytes(),
            "buckets": { "capacity": capacity, "used": used },
        },
        "blocklist": { "entries": counts.1, "rejected": w.force.rejected },
        "allowlist": { "entries": counts.0 },
        "bans": { "entries": counts.2 },
        "warnings": warnings,
    })
}
