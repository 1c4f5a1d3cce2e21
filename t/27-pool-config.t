# Pools that are refused at start, and pools that change while nginx runs.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== every wrong field is refused, named
--- before_setup
local sluice = require("resty.sluice")
local function pool(more)
    local entry = { name = "p", limit = 5 }
    for key, value in pairs(more) do
        entry[key] = value
    end
    return { pools = { entry } }
end
local cases = {
    { { pools = "p" }, "pools" },
    { { pools = { "p" } }, "pools[0]" },
    { { pools = { { limit = 5 } } }, "pools[0].name" },
    { { pools = { { name = "p" } } }, "pools[0].limit" },
    { { pools = { { name = "p", limit = 5 }, { name = "p", limit = 6 } } },
      "pools[1].name" },
    { pool { name = "a b" }, "pools[0].name" },
    { pool { name = ("n"):rep(65) }, "pools[0].name" },
    { pool { limit = 0 }, "pools[0].limit" },
    { pool { limit = -1 }, "pools[0].limit" },
    { pool { limit = 1.5 }, "pools[0].limit" },
    { pool { limit = "many" }, "pools[0].limit", "adaptive" },
    { pool { limit = 1000000000 }, "pools[0].limit" },
    { pool { limit = 0/0 }, "pools[0].limit" },
    { pool { min = 1 }, "pools[0].min", "adaptive" },
    { pool { limit = "adaptive", min = 0 }, "pools[0].min" },
    { pool { limit = "adaptive", min = 9, max = 8 }, "pools[0].max", "9" },
    { pool { limit = "adaptive", start = 1.5 }, "pools[0].start" },
    { pool { limit = "adaptive", min = 9, start = 8 }, "pools[0].start" },
    { pool { scope = "world" }, "pools[0].scope" },
    { pool { scope = "cluster" }, "pools[0].scope", "store.url" },
    { pool { queue = 5 }, "pools[0].queue" },
    { pool { queue = { capacity = 0 } }, "pools[0].queue.capacity" },
    { pool { queue = { capacity = "x" } }, "pools[0].queue.capacity" },
    { pool { queue = { max_wait = "0s" } }, "pools[0].queue.max_wait" },
    { pool { queue = { max_wait = 5 } }, "pools[0].queue.max_wait" },
    { pool { queue = { max_wait = "2h" } }, "pools[0].queue.max_wait" },
    { pool { queue = { weights = { 8, 2 } } }, "pools[0].queue.weights", "3" },
    { pool { queue = { weights = { 8, 2, 0 } } }, "pools[0].queue.weights" },
    { pool { queue = { weights = { 8, 2, "x" } } }, "pools[0].queue.weights" },
    { pool { queue = { waits = 5 } }, "pools[0].queue.waits" },
    { pool { timeout = "soon" }, "pools[0].timeout" },
    { pool { timeout = 60 }, "pools[0].timeout" },
    { pool { degrade = "@x" }, "pools[0].degrade" },
    { pool { degrade = { page = "@x" } }, "pools[0].degrade.page" },
    { pool { degrade = { file = "busy.html" } }, "pools[0].degrade.file" },
    { pool { degrade = { file = "/nowhere/busy.html" } },
      "pools[0].degrade.file", "/nowhere/busy.html" },
    { pool { degrade = { location = "x" } }, "pools[0].degrade.location" },
    { pool { degrade = { file = "/etc/hostname", location = "@x" } },
      "pools[0].degrade" },
    { pool { release = "soon" }, "pools[0].release", "headers" },
    { pool { enabled = 1 }, "pools[0].enabled" },
    { pool { match = { pth = "/a" } }, "pools[0].match.pth" },
    { pool { unless = { path = "a" } }, "pools[0].unless.path" },
    { pool { max_wait = "5s" }, "pools[0].max_wait" },
    { { priority = { user_cap = 0 } }, "priority.user_cap" },
    { { priority = { rules = { { name = "p", level = -1 } } } },
      "priority.rules[0].level" },
    { { priority = { rules = { { name = "p", level = 2147483647 } } } },
      "priority.rules[0].level" },
    { { priority = { rules = { { name = "p", level = "high" } } } },
      "priority.rules[0].level" },
}
local wrong = {}
for i, case in ipairs(cases) do
    case[1].shm = { path = "$TMP/shm-odd", size = "8MiB" }
    local ok, err = pcall(sluice.setup, case[1])
    err = tostring(err)
    if ok or not err:find(case[2], 1, true)
        or case[3] and not err:find(case[3], 1, true)
    then
        wrong[#wrong + 1] = i .. " " .. case[2] .. ": " .. err
    end
end
wrong[#wrong + 1] = #cases .. " cases"
package.loaded.wrong = wrong
--- config
    location = /wrong {
        content_by_lua_block {
            ngx.print(table.concat(package.loaded.wrong, "\n"))
        }
    }
--- request
GET /wrong
--- response_body chomp
47 cases
--- no_error_log
[error]



=== pools that do not fit into the region: a start error that names shm.size
--- toml
[shm]
path = "$SHM"
size = "1MiB"
[client]
trusted_proxies = ["127.0.0.1"]
[[pools]]
name = "one"
limit = 5000
queue = { capacity = 10000 }
[[pools]]
name = "two"
limit = 5000
queue = { capacity = 10000 }
--- must_die
--- error_log
shm.size



=== a pool comes, changes while requests wait, is switched off, and goes
--- backend
--- hooks: user
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
sync = "100ms"
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- driver
local function entry(limit)
    return '{"match":{"path":"/b/*"},"limit":' .. limit
           .. ',"queue":{"capacity":50,"max_wait":"20s"}}'
end
local core = { path = "/b/0/x", user = "u#" }
redis("HSET", "sluice:config", "pool:b", entry(1))
say(within(3, function() return pool("b").limit == 1 end))
local some = hold(1, "k", core)
for _, started in ipairs(queue(5, "k", { path = "/b/0/x", user = "w#" })) do
    some[#some + 1] = started
end
say((backend.counts()))
-- Raised: the waiting go on, nobody asks again.
redis("HSET", "sluice:config", "pool:b", entry(4))
say(within(3, function() return backend.counts() == 4 end))
say(pool("b").limit, pool("b").in_flight, pool("b").queued)
-- Lowered: what runs, runs on; nobody else comes until it has gone down.
redis("HSET", "sluice:config", "pool:b", entry(2))
say(within(3, function() return pool("b").limit == 2 end))
say(backend.counts(), pool("b").in_flight)
release("k", 2)
say(within(2, function() return pool("b").in_flight == 2 end))
sleep(0.2)
say(select(3, backend.counts()), pool("b").queued)
release("k", 1)
say(within(2, function() return select(3, backend.counts()) == 5 end))
say(pool("b").in_flight, pool("b").queued)
-- Switched off: nothing is held up any more.
redis("HSET", "sluice:config", "pool:b", '{"enabled":false}')
say(within(3, function() return #status().pools == 0 end))
local free = hold(3, "f", { path = "/b/x" })
release("f", 3)
release("k", 3)
for _, started in ipairs(free) do
    say(finish(started).status)
end
local ends = {}
for i, started in ipairs(some) do
    ends[i] = finish(started).status
end
say(unpack(ends))
-- On again: nothing was left behind.
redis("HSET", "sluice:config", "pool:b", entry(1))
say(within(3, function() return pool("b").limit == 1 end))
say(within(2, function() return pool("b").in_flight == 0 end), pool("b").queued)
many(5, function() return GET("/b/x") end)
-- Gone.
redis("HDEL", "sluice:config", "pool:b")
say(within(3, function() return #status().pools == 0 end))
say(#status().config.errors)
--- timeout: 40
--- response_body
true
1
true
4 4 2
true
4 4
true
4 2
true
2 1
true
200
200
200
200 200 200 200 200 200
true
true 0
5 x 200 pass
true
0
--- no_error_log
[error]



=== an entry replaces the file's of that name whole; removed, the file's is back
--- backend
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
sync = "100ms"
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 7
queue = { capacity = 2 }
--- driver
say(pool("b").limit)
redis("HSET", "sluice:config", "pool:b", '{"match":{"path":"/other"},"limit":9}')
say(within(3, function() return pool("b").limit == 9 end))
local some = hold(1, "k")
say(pool("b").in_flight)
redis("HDEL", "sluice:config", "pool:b")
say(within(3, function() return pool("b").limit == 7 end))
some[2] = hold(1, "k")[1]
say(pool("b").in_flight)
redis("HSET", "sluice:config", "pool:b", '{"enabled":false}')
say(within(3, function() return #status().pools == 0 end))
redis("DEL", "sluice:config")
say(within(3, function() return pool("b").limit == 7 end))
release("k", 2)
say(finish(some[1]).status, finish(some[2]).status)
say(within(2, function() return pool("b").in_flight == 0 end))
--- timeout: 20
--- response_body
7
true
0
true
1
true
true
200 200
true
--- no_error_log
[error]



=== a bad entry is refused alone, said once, and shown until mended
--- backend
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
sync = "100ms"
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 7
--- driver
redis("HSET", "sluice:config", "pool:b", '{"match":{"path":"/b/*"},"limit":3}')
say(within(3, function() return pool("b").limit == 3 end))
-- The last good version stays; its neighbours apply.
redis("HSET", "sluice:config", "pool:b", '{"match":{"path":"/b/*"},"limit":0}',
      "pool:good", '{"match":{"path":"/good"},"limit":6}',
      "pool:bad", '{"limit":5,"lmit":5}', "pool:worse", "{", "pool:", "{}",
      "pool:cluster", '{"limit":5,"queue":{"weights":[1]}}')
say(within(3, function() return pool("good").limit == 6 end))
say(pool("b").limit, #status().pools)
local fields = {}
for _, e in ipairs(status().config.errors) do
    fields[#fields + 1] = e.field
end
table.sort(fields)
say(table.concat(fields, " "))
say(metrics()["sluice_config_errors"])
sleep(1.2)
local lines = 0
for line in io.lines("$TEST_NGINX_SERVROOT/logs/error.log") do
    if line:find("pool:b.limit", 1, true) then
        lines = lines + 1
    end
end
say(lines)
redis("DEL", "sluice:config")
say(within(3, function() return pool("b").limit == 7 end))
say(#status().config.errors, #status().pools)
--- timeout: 20
--- response_body
true
true
3 2
pool:"" pool:b.limit pool:bad.lmit pool:cluster.queue.weights pool:worse
5
1
true
0 1



=== what the shared memory has no room for is refused alone, and said once
--- backend
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
sync = "100ms"
[[pools]]
name = "a"
match = { path = "/a/*" }
limit = 7
[[pools]]
name = "b"
match = { path = "/b/*" }
limit = 7
--- driver
local function lines(...)
    local found = { n = 0 }
    for line in io.lines("$TEST_NGINX_SERVROOT/logs/error.log") do
        for i, text in ipairs { ... } do
            if line:find(text, 1, true) then
                found[i] = (found[i] or 0) + 1
            end
        end
    end
    return found
end
redis("HSET", "sluice:config", "pool:b", '{"match":{"path":"/b/*"},"limit":3}')
say(within(3, function() return pool("b").limit == 3 end))
-- Too large: the file's, and the last good one.
redis("HSET", "sluice:config",
      "pool:a", '{"match":{"path":"/a/*"},"limit":14000}',
      "pool:b", '{"match":{"path":"/b/*"},"limit":14000}')
say(within(3, function() return #status().config.errors == 2 end))
say(pool("a").limit, pool("b").limit)
-- Too many, and a page that is not there.
local fields = { "pool:c", '{"limit":5,"queue":{"capacity":5},'
                           .. '"degrade":{"file":"/nonexistent/busy.html"}}' }
for i = 1, 4 do
    fields[#fields + 1] = "pool:d" .. i
    fields[#fields + 1] = '{"limit":5,"queue":{"capacity":5}}'
end
redis("HSET", "sluice:config", unpack(fields))
say(within(3, function() return #status().config.errors > 4 end))
say(#status().config.errors, metrics()["sluice_config_errors"])
-- Some more rounds.
redis("HSET", "sluice:config", "rule:r", '{"rate":"5/m","capacity":5}')
sleep(1)
local found = lines("pool:a.queue.capacity: ", "pool:b.queue.capacity: ",
                    "pool:d4: is one pool too many",
                    "pool:c.degrade.file: /nonexistent")
say(found[1], found[2], found[3], found[4])
--- timeout: 20
--- response_body_like
^true
true
7 3
true
(\d) \1
1 1 1 1$



=== Redis goes while requests wait: the pool stays as it is
--- backend
--- hooks: user
--- redis
HSET sluice:config pool:b '{"match":{"path":"/b/*"},"limit":1,"queue":{"max_wait":"20s"}}'
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
sync = "100ms"
[[priority.rules]]
name = "p0"
match = { path = "/b/0/*" }
level = 0
--- driver
say(within(3, function() return pool("b").limit == 1 end))
local held = hold(1, "k", { path = "/b/0/x", user = "u" })
local waits = queue(2, "k", { path = "/b/0/x", user = "w#" })
redis("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
redis("CONFIG", "SET", "requirepass", "changed")
sleep(1)
say(pool("b").in_flight, pool("b").queued)
release("k", 3)
say(finish(held[1]).status, finish(waits[1]).status, finish(waits[2]).status)
local sock = ngx.socket.tcp()
sock:connect("127.0.0.1", conf.redis)
sock:send("AUTH changed\r\nCONFIG SET requirepass \"\"\r\n")
say(sock:receive(), sock:receive())
sock:close()
say(within(2, function() return pool("b").in_flight == 0 end))
--- timeout: 20
--- response_body
true
1 2
200 200 200
+OK +OK
true
