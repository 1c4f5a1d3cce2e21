# Allowlist and blocklist.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== blocked: 403, no RateLimit fields, a problem document
--- toml
[lists]
blocklist = ["203.0.113.9", "10.0.0.0/8", "2001:db8:7::/48"]
[[rules]]
name = "r"
rate = "1/d"
capacity = 5
--- driver
show(GET("/", "203.0.113.9"), "ratelimit", "ratelimit-policy", "retry-after",
     "content-type", "cache-control")
show(GET("/", "10.255.1.2"))
show(GET("/", "::ffff:203.0.113.9"))
show(GET("/", "2001:db8:7:1::5"))
show(GET("/", "203.0.113.10"))
show(GET("/", "11.0.0.1"))
show(GET("/", "2001:db8:8::5"))
--- response_body
403 blocked none none none application/problem+json no-store
403 blocked
403 blocked
403 blocked
200 pass
200 pass
200 pass
--- no_error_log
[error]



=== B58 bad entries are counted and skipped, and block nobody else
--- user_files
>>> list.txt
203.0.113.9/32
10.0.0.0/33
0.0.0.0/-1
0.0.0.0/x
1.2.3
1.2.3.4/
2001:db8::/129
300.1.1.1
010.0.0.1
 203.0.113.10 

# a comment
203.0.113.11 # and one behind an entry
192.0.2.77/24
203.0.113.12
203.0.113.13
203.0.113.14
203.0.113.15
203.0.113.16
--- toml
[lists]
blocklist = ["$TEST_NGINX_SERVROOT/html/list.txt"]
--- driver
for _, address in ipairs { "8.8.8.8", "2001:4860::1", "1.2.3.4", "10.0.0.1",
                           "203.0.113.9", "203.0.113.10", "203.0.113.11",
                           "192.0.2.1", "192.0.2.255", "192.0.3.1", "0.0.0.0" } do
    say(address, GET("/", address).status)
end
say(status().blocklist.entries, status().blocklist.rejected)
say(metrics()["sluice_blocklist_entries"])
--- response_body
8.8.8.8 200
2001:4860::1 200
1.2.3.4 200
10.0.0.1 200
203.0.113.9 403
203.0.113.10 403
203.0.113.11 403
192.0.2.1 403
192.0.2.255 403
192.0.3.1 200
0.0.0.0 200
9 8
9
--- no_error_log
[error]



=== B58 0.0.0.0/0 blocks IPv4 only, with a warning
--- toml
[lists]
blocklist = ["0.0.0.0/0"]
--- driver
say(GET("/", "8.8.8.8").status, GET("/", "2001:db8::1").status)
say(#status().warnings > 0)
--- response_body
403 200
true
--- no_error_log
[error]



=== B59 networks of equal length do not hide each other
--- toml
[lists]
blocklist = ["2001:db8:0:7::/64", "2001:db8:0:1::/64", "2409:8928:6a00::/39", "2409:8928:a000::/39", "fe80::/32"]
--- driver
for _, address in ipairs { "2001:db8:0:1:2::3", "2001:db8:0:7:2::3",
                           "2001:db8:0:2::3",
                           "2409:8928:a0f8:2a57:1:1:d823:4521",
                           "2409:8928:6a01::1", "::1", "fe80::1" } do
    say(address, GET("/", address).status)
end
--- response_body
2001:db8:0:1:2::3 403
2001:db8:0:7:2::3 403
2001:db8:0:2::3 200
2409:8928:a0f8:2a57:1:1:d823:4521 403
2409:8928:6a01::1 403
::1 200
fe80::1 403
--- no_error_log
[error]



=== B59 the same in the other order
--- toml
[lists]
blocklist = ["2001:db8:0:1::/64", "2001:db8:0:7::/64", "2409:8928:a000::/39", "2409:8928:6a00::/39", "fe80::/32"]
--- driver
for _, address in ipairs { "2001:db8:0:1:2::3", "2001:db8:0:7:2::3",
                           "2001:db8:0:2::3",
                           "2409:8928:a0f8:2a57:1:1:d823:4521", "::1" } do
    say(address, GET("/", address).status)
end
--- response_body
2001:db8:0:1:2::3 403
2001:db8:0:7:2::3 403
2001:db8:0:2::3 200
2409:8928:a0f8:2a57:1:1:d823:4521 403
::1 200
--- no_error_log
[error]



=== nested networks, overlapping and touching
--- toml
[lists]
blocklist = ["10.1.0.0/16", "10.1.1.0/24", "10.1.1.1", "192.0.2.0/25", "192.0.2.128/25", "255.255.255.255", "0.0.0.0"]
--- driver
for _, address in ipairs { "10.0.255.255", "10.1.0.0", "10.1.1.1",
                           "10.1.255.255", "10.2.0.0", "192.0.1.255",
                           "192.0.2.0", "192.0.2.127", "192.0.2.128",
                           "192.0.2.255", "192.0.3.0", "255.255.255.254",
                           "255.255.255.255", "0.0.0.0", "0.0.0.1" } do
    say(address, GET("/", address).status)
end
--- response_body
10.0.255.255 200
10.1.0.0 403
10.1.1.1 403
10.1.255.255 403
10.2.0.0 200
192.0.1.255 200
192.0.2.0 403
192.0.2.127 403
192.0.2.128 403
192.0.2.255 403
192.0.3.0 200
255.255.255.254 200
255.255.255.255 403
0.0.0.0 403
0.0.0.1 200
--- no_error_log
[error]



=== B62 allow beats block, and frees from rules
--- toml
[lists]
blocklist = ["10.0.0.0/8", "203.0.113.9"]
allowlist = ["10.1.1.1", "203.0.113.0/24", "198.51.100.77"]
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- driver
many(5, function() return GET("/", "10.1.1.1") end)
many(5, function() return GET("/", "203.0.113.9") end)
many(2, function() return GET("/", "10.1.1.2") end)
many(5, function() return GET("/", "198.51.100.77") end)
local answer = GET("/", "198.51.100.77")
say(answer.rule, answer.headers.ratelimit, answer.headers["ratelimit-policy"])
--- response_body
5 x 200 pass
5 x 200 pass
2 x 403 blocked
5 x 200 pass
- nil nil
--- no_error_log
[error]



=== globs, and more than one source
--- user_files
>>> lists/a.txt
203.0.113.1
>>> lists/b.txt
203.0.113.2
>>> lists/c.dat
203.0.113.3
--- toml
[lists]
blocklist = ["$TEST_NGINX_SERVROOT/html/lists/*.txt", "203.0.113.4"]
--- driver
for i = 1, 5 do
    say(GET("/", "203.0.113." .. i).status)
end
--- response_body
403
403
200
403
200
--- no_error_log
[error]



=== a glob finds what comes and goes later
--- user_files
>>> lists/a.txt
203.0.113.1
--- toml
[lists]
blocklist = ["$TEST_NGINX_SERVROOT/html/lists/*.txt"]
--- driver
local function blocked(i)
    return GET("/", "203.0.113." .. i).status == 403
end
say(blocked(1), blocked(2))
local path = "$TEST_NGINX_SERVROOT/html/lists/"
local f = assert(io.open(path .. "b.txt", "w"))
f:write("203.0.113.2\n")
f:close()
say(within(6, function() return blocked(2) end), blocked(1))
os.remove(path .. "a.txt")
say(within(6, function() return not blocked(1) end), blocked(2))
--- timeout: 20
--- response_body
true false
true true
true true
--- no_error_log
[error]



=== a list file is read again when it changes
--- user_files
>>> list.txt
203.0.113.1
--- toml
[lists]
blocklist = ["$TEST_NGINX_SERVROOT/html/list.txt"]
--- driver
local path = "$TEST_NGINX_SERVROOT/html/list.txt"
local function write(text)
    local f = assert(io.open(path .. ".new", "w"))
    f:write(text)
    f:close()
    os.rename(path .. ".new", path)
end
say(GET("/", "203.0.113.1").status, GET("/", "203.0.113.2").status)
write("203.0.113.2\n203.0.113.3\n")
say(within(6, function() return GET("/", "203.0.113.2").status == 403 end))
say(GET("/", "203.0.113.1").status)
-- More than half of the lines bad: the old content stays.
write("203.0.113.5\nrubbish\n<html>\nmore\n")
sleep(2.5)
say(GET("/", "203.0.113.5").status, GET("/", "203.0.113.2").status)
-- Gone: the old content stays.
os.remove(path)
sleep(2.5)
say(GET("/", "203.0.113.2").status)
write("203.0.113.6\n")
say(within(6, function() return GET("/", "203.0.113.6").status == 403 end))
say(GET("/", "203.0.113.2").status)
--- timeout: 30
--- response_body
403 200
true
200
200 403
403
true
200



=== entries of Redis: a set
--- redis
SADD sluice:blocklist 203.0.113.1 203.0.113.128/25 2001:db8::/32 user:mallory rubbish 10.0.0.0/33
SADD sluice:allowlist 203.0.113.200
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[[rules]]
name = "r"
rate = "1/d"
capacity = 100
--- driver
say(within(3, function() return GET("/", "203.0.113.1").status == 403 end))
for _, address in ipairs { "203.0.113.2", "203.0.113.129", "203.0.113.200",
                           "2001:db8:1::1", "8.8.8.8", "10.0.0.1" } do
    say(address, GET("/", address).status)
end
say(status().blocklist.entries, status().blocklist.rejected,
    status().allowlist.entries)
--- response_body
true
203.0.113.2 200
203.0.113.129 403
203.0.113.200 200
2001:db8:1::1 403
8.8.8.8 200
10.0.0.1 200
4 2 1



=== entries of Redis: a sorted set, each with its end
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
--- driver
ngx.update_time()
local now = ngx.time()
redis("ZADD", "sluice:blocklist", now + 3, "203.0.113.1",
      "+inf", "203.0.113.2", now - 5, "203.0.113.3",
      now + 86400, "203.0.113.0/24")
say(within(3, function() return GET("/", "203.0.113.2").status == 403 end))
say(GET("/", "203.0.113.1").status, GET("/", "203.0.113.3").status)
redis("ZREM", "sluice:blocklist", "203.0.113.0/24")
say(within(3, function() return GET("/", "203.0.113.3").status == 200 end))
say(within(4, function() return GET("/", "203.0.113.1").status == 200 end))
say(GET("/", "203.0.113.2").status)
--- timeout: 20
--- response_body
true
403 403
true
true
403
--- no_error_log
[error]



=== B66 a change is in force within the interval and a second
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
--- driver
for round = 1, 2 do
    redis("SADD", "sluice:blocklist", "203.0.113.1")
    sleep(3)
    many(100, function() return GET("/", "203.0.113.1") end)
    redis("SREM", "sluice:blocklist", "203.0.113.1")
    sleep(3)
    many(100, function() return GET("/", "203.0.113.1") end)
end
--- timeout: 30
--- response_body
100 x 403 blocked
100 x 200 pass
100 x 403 blocked
100 x 200 pass
--- no_error_log
[error]



=== a key of another type than a list should be: the last state stays
--- redis
SADD sluice:blocklist 203.0.113.1
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
--- driver
say(within(3, function() return GET("/", "203.0.113.1").status == 403 end))
for _, make in ipairs { { "SET", "sluice:blocklist", "x" },
                        { "HSET", "sluice:blocklist", "a", "b" },
                        { "RPUSH", "sluice:blocklist", "203.0.113.2" } } do
    redis("DEL", "sluice:blocklist")
    redis(unpack(make))
    sleep(2)
end
say(GET("/", "8.8.8.8").status)
redis("DEL", "sluice:blocklist")
redis("SADD", "sluice:blocklist", "203.0.113.2")
say(within(3.5, function() return GET("/", "203.0.113.2").status == 403 end))
say(GET("/", "203.0.113.1").status)
--- timeout: 30
--- response_body
true
200
true
200



=== a blocklist of another type keeps the list that was in force
--- redis
SADD sluice:blocklist 203.0.113.1
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
--- driver
say(within(3, function() return GET("/", "203.0.113.1").status == 403 end))
-- In one step, so that no moment without the key is seen.
redis("EVAL", "redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], 'a', 'b')",
      1, "sluice:blocklist")
sleep(2.5)
say(GET("/", "203.0.113.1").status, GET("/", "8.8.8.8").status)
say(#status().config.errors + #status().warnings > 0)
--- timeout: 20
--- response_body
true
403 200
true



=== the key is gone: the list is empty
--- redis
SADD sluice:blocklist 203.0.113.1
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
[lists]
blocklist = ["203.0.113.99"]
--- driver
say(within(3, function() return GET("/", "203.0.113.1").status == 403 end))
say(GET("/", "203.0.113.99").status)
redis("DEL", "sluice:blocklist")
say(within(3, function() return GET("/", "203.0.113.1").status == 200 end))
say(GET("/", "203.0.113.99").status)
--- timeout: 20
--- response_body
true
403
true
403
--- no_error_log
[error]



=== odd members of every kind are counted, the others hold
--- redis
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
--- driver
local args = { "SADD", "sluice:blocklist", "203.0.113.1" }
for _, member in ipairs { "", " ", "\0", "\255\254", ("9"):rep(8000), "1e999",
                          "nan", "null", "{}", "*", "user:", "user:\1",
                          "0.0.0.0/-1", "::/129", "1.2.3.4/8/8",
                          "203.0.113.1/032" } do
    args[#args + 1] = member
end
redis(unpack(args))
say(within(3, function() return GET("/", "203.0.113.1").status == 403 end))
say(GET("/", "8.8.8.8").status, GET("/", "2001:db8::1").status)
say(status().blocklist.entries, status().blocklist.rejected)
--- response_body
true
200 200
1 16



=== a ZSET with odd scores
--- redis
ZADD sluice:blocklist -inf 203.0.113.1
ZADD sluice:blocklist 1e18 203.0.113.2
ZADD sluice:blocklist -5 203.0.113.3
ZADD sluice:blocklist 0 203.0.113.4
ZADD sluice:blocklist 9007199254740993 203.0.113.5
ZADD sluice:blocklist 1e300 203.0.113.6
--- toml
[store]
url = "redis://127.0.0.1:$REDIS_PORT/0"
--- driver
say(within(3, function() return GET("/", "203.0.113.2").status == 403 end))
for i = 1, 6 do
    say(GET("/", "203.0.113." .. i).status)
end
--- response_body
true
200
403
200
200
403
403
--- no_error_log
[error]
