# status(): JSON of what the gateway is and does.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== every field of the contract
--- toml
[lists]
blocklist = ["203.0.113.0/24", "203.0.113.9"]
allowlist = ["10.0.0.0/8"]
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- driver
GET("/")
sluice.ban("192.0.2.1", 60)
local answer = send { path = "/status", from = false }
say(answer.status, answer.headers["content-type"]:match("^[^;]+"),
    answer.headers["cache-control"])
local s = decode(answer.body)
say(type(s.version), type(s.config.generation), #s.config.errors)
say(#s.workers, s.workers[1].pid == ngx.worker.pid(),
    type(s.workers[1].config_generation), type(s.workers[1].setup_generation))
say(s.store.backend, type(s.store.healthy))
say(s.shm.size, s.shm.buckets.capacity > 100000, s.shm.buckets.used)
say(s.blocklist.entries, s.blocklist.rejected, s.allowlist.entries,
    s.bans.entries)
say(type(s.warnings))
--- response_body
200 application/json no-store
string number 0
1 true number number
local boolean
8388608 true 1
2 0 1 1
table
--- no_error_log
[error]



=== it is there without any rule, and without Redis
--- toml
[store]
backend = "redis"
url = "redis://127.0.0.1:1/0"
--- driver
sleep(0.3)
local s = status()
say(s.store.backend, s.store.healthy)
say(s.blocklist.entries, s.bans.entries, #s.workers)
--- response_body
redis false
0 0 1
