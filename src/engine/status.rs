//! `status()`: the state of this gateway as JSON.
use super::rules::CompiledPool;
use super::setup;
use super::worker;
use crate::domain::config::{Backend, FieldError};
use crate::domain::pool::{Cluster, View};
use crate::shm::{PoolId, Region};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::HashMap;

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

/// How often a pool's lock is tried, each time for as long as a request waits for it: 10 ms in all,
/// as nginx's own thread waits.
const TRIES: usize = 5;

thread_local! {
    /// What was shown of each pool last, by its place, for when its holder is stopped.
    static LAST: RefCell<HashMap<usize, (PoolId, View, Cluster)>> = RefCell::default();
}

/// What status and metrics show of a pool. `None`: its lock was not to be had.
pub(super) fn look(region: &Region, p: &CompiledPool) -> Option<(View, Cluster)> {
    let look = |_| {
        let touched = region.pool(p.id, |it, now, _| {
            let limit = it.limit_shown(now);
            let view = View {
                limit,
                ..it.view(now)
            };
            (view, it.state.cluster)
        })?;
        Some(touched.value)
    };
    (0..TRIES).find_map(look)
}

/// The same, or what was shown last.
fn look_or_last(region: &Region, p: &CompiledPool) -> Option<(View, Cluster)> {
    let found = look(region, p);
    LAST.with_borrow_mut(|last| {
        if let Some((view, cluster)) = &found {
            last.insert(p.id.index(), (p.id, view.clone(), *cluster));
            return found;
        }
        let (id, view, cluster) = last.get(&p.id.index())?;
        (*id == p.id).then(|| (view.clone(), *cluster))
    })
}

/// Each pool in force.
fn pools(w: &worker::Worker) -> Vec<Value> {
    let of = |p: &CompiledPool| {
        let Some((view, cluster)) = look_or_last(w.region, p) else {
            return json!({
                "name": p.name,
                "limit": null,
                "saturated": null,
                "in_flight": null,
                "abandoned": null,
                "waiting": null,
            });
        };
        let mut shown = json!({
            "name": p.name,
            "limit": view.limit,
            "saturated": view.saturated,
            "in_flight": view.in_flight,
            "abandoned": view.ghosts,
            "waiting": view.waiting,
        });
        if p.cluster {
            // `limit` is this gateway's share, or slot by slot that of all.
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
    warnings.extend(w.setup.pages.troubles());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fake::worker;

    #[test]
    fn a_pool_whose_lock_is_held_is_shown_as_it_was_last() {
        let w = worker("[[pools]]\nname = \"a\"\nlimit = 3\n");
        let region = w.region;
        let pool = &w.force.rules.pools[0];
        let held = |f: &dyn Fn() -> Option<(View, Cluster)>| {
            let touched = region.pool(pool.id, |_, _, _| f());
            touched.expect("nobody else holds it").value
        };
        assert_eq!(held(&|| look_or_last(region, pool)), None);
        let limits = |shown: &Value| shown[0]["limit"].clone();
        let shown = held(&|| {
            let shown = json!(pools(&w));
            assert_eq!(shown[0]["name"], "a");
            for field in ["limit", "saturated", "in_flight", "waiting"] {
                assert_eq!(shown[0].get(field), Some(&Value::Null), "{field}");
            }
            None
        });
        assert_eq!(shown, None);
        let free = look_or_last(region, pool).expect("free");
        assert_eq!((free.0.limit, limits(&json!(pools(&w)))), (3, json!(3)));
        assert_eq!(held(&|| look_or_last(region, pool)), Some(free));
        assert_eq!(held(&|| look(region, pool)), None);
    }
}
