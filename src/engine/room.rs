//! Whether the shared memory has room for the pools of a configuration: how many
//! there can be, and for how many requests each.
use crate::domain::config::{self, Config, FieldError, PoolConfig, PoolLimit};
use crate::shm::{PoolRoom, Region};

/// What a region of the configured size would have no room for.
pub fn check(config: &Config) -> Vec<FieldError> {
    errors(config, PoolRoom::for_size(config.shm.size_bytes))
}

/// What this region has no room for.
pub fn check_in(config: &Config, region: &Region) -> Vec<FieldError> {
    errors(config, region.pool_room())
}

fn errors(config: &Config, room: PoolRoom) -> Vec<FieldError> {
    let enabled = || config.pools.iter().filter(|pool| pool.enabled);
    let mut errors = Vec::new();
    if enabled().count() > room.pools {
        let wanted = PoolRoom {
            pools: enabled().count(),
            ..room
        };
        errors.push(FieldError {
            field: "pools".into(),
            problem: format!(
                "are {}, and the shared memory has room for {}; {}",
                wanted.pools,
                room.pools,
                raise(wanted)
            ),
        });
    }
    for (i, pool) in config.pools.iter().enumerate() {
        if pool.enabled {
            errors.extend(of_pool(pool, &format!("pools[{i}]"), room));
        }
    }
    errors
}

impl config::Room for PoolRoom {
    fn pools(&self) -> usize {
        self.pools
    }

    fn pool(&self, pool: &PoolConfig, field: &str) -> Option<FieldError> {
        of_pool(pool, field, *self)
    }

    fn advice(&self, pools: usize) -> String {
        raise(PoolRoom { pools, ..*self })
    }
}

/// What is wrong with one pool, whose place in the configuration is `field`.
fn of_pool(pool: &PoolConfig, field: &str, room: PoolRoom) -> Option<FieldError> {
    let requests = (pool.limit.most() + pool.capacity) as usize;
    if requests <= room.requests {
        return None;
    }
    let name = match pool.limit {
        PoolLimit::Fixed(_) => "limit",
        PoolLimit::Adaptive { .. } => "max",
    };
    let wanted = PoolRoom { requests, ..room };
    Some(FieldError {
        field: format!("{field}.queue.capacity"),
        problem: format!(
            "is {}, and with the {} of {name} that is {requests}, but the shared memory has room \
             for {} requests in a pool; lower it, or {}",
            pool.capacity,
            pool.limit.most(),
            room.requests,
            raise(wanted)
        ),
    })
}

fn raise(wanted: PoolRoom) -> String {
    match wanted.least_size() {
        Some(bytes) => format!("raise shm.size to {}MiB", bytes >> 20),
        None => "raise shm.size".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::config::from_json;

    fn config(size: &str, pools: &[(u32, u32, bool)]) -> Config {
        let pools: Vec<_> = pools
            .iter()
            .enumerate()
            .map(|(n, (limit, capacity, enabled))| {
                serde_json::json!({
                    "name": format!("p{n}"), "limit": limit, "enabled": enabled,
                    "queue": {"capacity": capacity},
                })
            })
            .collect();
        let value = serde_json::json!({"shm": {"size": size}, "pools": pools});
        from_json(value.to_string().as_bytes()).expect("good")
    }

    #[test]
    fn what_there_is_no_room_for_is_named_with_the_size_that_has_it() {
        let lines = |config: &Config| -> Vec<String> {
            let line = |e: &FieldError| format!("{}: {}", e.field, e.problem);
            check(config).iter().map(line).collect()
        };
        let small = |enabled| (10, 100, enabled);
        for (size, pools) in [
            (
                "1MiB",
                vec![(10, 900, true), (10, 900, false), (9000, 1, false)],
            ),
            ("32MiB", vec![(500, 1000, true); 4]),
            ("128MiB", vec![(5000, 10_000, true); 16]),
        ] {
            assert_eq!(lines(&config(size, &pools)), [""; 0], "{size}");
        }
        let too_many = lines(&config("32MiB", &[small(true); 5]));
        let expected =
            "pools: are 5, and the shared memory has room for 4; raise shm.size to 64MiB";
        assert_eq!(too_many, [expected]);
        let too_large = lines(&config("32MiB", &[small(true), (14_000, 1000, true)]));
        let expected = "pools[1].queue.capacity: is 1000, and with the 14000 of limit that is \
                        15000, but the shared memory has room for 8000 requests in a pool; lower \
                        it, or raise shm.size to 64MiB";
        assert_eq!(too_large, [expected]);
    }

    #[test]
    fn a_region_has_the_room_of_its_size() {
        for mib in [1, 2, 8, 32] {
            let region = Region::on_heap(mib << 20);
            assert_eq!(
                region.pool_room(),
                PoolRoom::for_size(mib << 20),
                "{mib} MiB"
            );
        }
    }
}
