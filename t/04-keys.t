# What names a bucket.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== B87 each kind of key part
--- table
rules = {
    { name = "ip", rate = "1/d", capacity = 1, match = { path = "/ip" } },
    { name = "cookie", rate = "1/d", capacity = 1, match = { path = "/cookie" }, key = { "cookie:sid" } },
    { name = "header", rate = "1/d", capacity = 1, match = { path = "/header" }, key = { "header:X-Api-Key" } },
    { name = "arg", rate = "1/d", capacity = 1, match = { path = "/arg" }, key = { "arg:token" } },
    { name = "host", rate = "1/d", capacity = 1, match = { path = "/host" }, key = { "host" } },
    { name = "path", rate = "1/d", capacity = 1, match = { path = { "/path/*", "/path2" } }, key = { "path" } },
    { name = "method", rate = "1/d", capacity = 1, match = { path = "/method" }, key = { "method" } },
    { name = "ua", rate = "1/d", capacity = 1, match = { path = "/ua" }, key = { "ua" } },
},
--- driver
local A, B = "198.51.100.1", "198.51.100.2"
-- Twice the same, then the part changed, then only the address changed.
local function four(name, first, second)
    first.path = first.path or "/" .. name
    second.path = second.path or "/" .. name
    first.from = A
    local list = {}
    list[1] = send(first).status
    list[2] = send(first).status
    second.from = A
    list[3] = send(second).status
    first.from = B
    list[4] = send(first).status
    say(name, unpack(list))
end
four("ip", {}, {})
four("cookie", { lines = { "Cookie: sid=a" } }, { lines = { "Cookie: sid=b" } })
four("header", { lines = { "X-Api-Key: a" } }, { lines = { "x-api-key: b" } })
four("arg", { path = "/arg?token=a" }, { path = "/arg?x=1&token=b" })
four("host", { host = "a.test" }, { host = "b.test" })
-- The text of the pattern is the key, not what the client wrote.
four("path", { path = "/path/1" }, { path = "/path/2" })
four("path2", { path = "/path2" }, { path = "/path2" })
four("method", { method = "GET" }, { method = "PUT" })
four("ua", { lines = { "User-Agent: a" } }, { lines = { "User-Agent: b" } })
--- response_body
ip 200 429 429 200
cookie 200 429 200 429
header 200 429 200 429
arg 200 429 200 429
host 200 429 200 429
path 200 429 429 429
path2 200 429 429 429
method 200 429 200 429
ua 200 429 200 429
--- no_error_log
[error]



=== several parts together, and no way to move a boundary between them
--- toml
[[rules]]
name = "two"
key = ["header:X-A", "header:X-B"]
missing_key = "skip"
rate = "1/d"
capacity = 1
--- driver
local function ask(a, b)
    local lines = {}
    if a then lines[1] = "X-A: " .. a end
    if b then lines[#lines + 1] = "X-B: " .. b end
    say(tostring(a), tostring(b), send { path = "/", lines = lines }.status)
end
ask("a", "b")
ask("a", "b")
ask("ab", "c")
ask("a", "bc")
ask("a:b", "c")
ask("a", "b:c")
ask("b", "a")
ask("a", nil)
ask(nil, "b")
ask("a", nil)
--- response_body
a b 200
a b 429
ab c 200
a bc 200
a:b c 200
a b:c 200
b a 200
a nil 200
nil b 200
a nil 200
--- no_error_log
[error]



=== B39 kinds never mix: a name that looks like an address is not one
--- toml
[[rules]]
name = "id"
key = ["cookie:sid"]
rate = "1/d"
capacity = 2
--- driver
many(3, function()
    return GET("/", "198.51.100.9", { Cookie = "sid=203.0.113.9" })
end)
-- No cookie: the address in its place, with a bucket of its own.
many(3, function() return GET("/", "203.0.113.9") end)
--- response_body
2 x 200 pass, 1 x 429 limited
2 x 200 pass, 1 x 429 limited
--- no_error_log
[error]



=== B41 an absent or blank part is not everybody's bucket
--- table
rules = {
    { name = "cookie", rate = "1/d", capacity = 2, match = { path = "/c" }, key = { "cookie:sid" } },
    { name = "header", rate = "1/d", capacity = 2, match = { path = "/h" }, key = { "header:X-Id" } },
    { name = "arg", rate = "1/d", capacity = 2, match = { path = "/a" }, key = { "arg:id" } },
},
--- driver
-- The same client in every blank form shares its address's bucket.
local function blank(path, forms)
    local X, Y = "198.51.100.1", "198.51.100.2"
    local list = {}
    for _, form in ipairs(forms) do
        list[#list + 1] = send { path = path .. (form.query or ""), from = X,
                                 lines = form }.status
    end
    list[#list + 1] = "and"
    list[#list + 1] = send { path = path, from = Y }.status
    say(path, unpack(list))
end
blank("/c", { {}, { "Cookie: sid=" }, { "Cookie: sid=   " },
              { 'Cookie: sid=""' }, { "Cookie:" } })
blank("/h", { {}, { "X-Id:" }, { "X-Id:    " } })
blank("/a", { {}, { query = "?id=" }, { query = "?id" }, { query = "?x=1" } })
--- response_body
/c 200 200 429 429 429 and 200
/h 200 200 429 and 200
/a 200 200 429 429 and 200
--- no_error_log
[error]



=== B42 a rule may be left out where its key is absent
--- toml
[[rules]]
name = "r"
key = ["header:X-Id"]
missing_key = "skip"
rate = "1/d"
capacity = 1
--- driver
many(200, function() return GET("/") end)
say(status().shm.buckets.used)
--- response_body
200 x 200 pass
0
--- no_error_log
[error]



=== B45 the grammar of cookies
--- toml
[[rules]]
name = "r"
key = ["cookie:sid"]
missing_key = "deny"
status = 400
rate = "1/d"
capacity = 100
--- driver
local all = 0
local function left(...)
    local answer = send { path = "/", lines = { ... } }
    all = all + 1
    if answer.status == 400 then
        return "absent"
    end
    return answer.headers.ratelimit:match(";r=(%d+);")
end
-- One bucket: the tokens left count down.
say(left("Cookie: sid=abc"))
say(left("Cookie: x=1 ; sid=abc"))
say(left("Cookie: bad; sid=abc"))
say(left("Cookie: a=b=c; sid=abc"))
say(left('Cookie: sid="abc"'))
say(left("Cookie: x=1", "Cookie: sid=abc"))
say(left("Cookie: sid=abc;"))
say(left("Cookie: a=1;sid=abc;b=2"))
say(left("Cookie: sid=abc; sid=zzz"))
say(left("Cookie:  sid = abc "))
-- Not that cookie.
say(left("Cookie: SID=abc"))
say(left("Cookie: xsid=abc"))
say(left("Cookie: sid"))
say(left("Cookie: x=sid=abc"))
-- Others.
say(left("Cookie: sid=zzz"))
say(left("Cookie: sid=a b"))
say(left("Cookie: sid=abc="))
--- response_body
99
98
97
96
95
94
93
92
91
90
absent
absent
absent
absent
99
99
99
--- no_error_log
[error]



=== B47 keys of any size and any bytes
--- toml
[[rules]]
name = "r"
key = ["header:X-Id"]
rate = "1/d"
capacity = 1
--- http_config
    large_client_header_buffers 4 32k;
--- driver
local long = ("k"):rep(8000)
say(send { path = "/", lines = { "X-Id: " .. long .. "a" } }.status)
say(send { path = "/", lines = { "X-Id: " .. long .. "a" } }.status)
say(send { path = "/", lines = { "X-Id: " .. long .. "b" } }.status)
for _, id in ipairs { "*", "?", "a b", "{x}", "\226\130\172", "\255", "%00",
                      "a%0d%0ab", "'", '"', "\\", "\1\2" } do
    local first = send { path = "/", lines = { "X-Id: " .. id } }.status
    local second = send { path = "/", lines = { "X-Id: " .. id } }.status
    if first ~= 200 or second ~= 429 then
        say("differs", id, first, second)
    end
end
--- response_body
200
429
200
--- no_error_log
[error]



=== B51 a repeated field is one value, whole
--- toml
[[rules]]
name = "r"
key = ["header:X-Id"]
rate = "1/d"
capacity = 1
--- driver
local function ask(...)
    say(send { path = "/", lines = { ... } }.status)
end
ask("X-Id: a", "X-Id: b")
ask("X-Id: a, b")
ask("X-Id: a", "X-Id: c")
ask("X-Id: a")
--- response_body
200
429
200
200
--- no_error_log
[error]



=== B54 addresses are grouped by prefix, 64 bits of IPv6
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 3
--- driver
many(6, function(i)
    return GET("/", ("2001:db8:1:1::%x"):format(i * 4369))
end)
many(1, function() return GET("/", "2001:db8:1:2::1") end)
many(4, function(i) return GET("/", "203.0.113." .. i) end)
--- response_body
3 x 200 pass, 3 x 429 limited
1 x 200 pass
4 x 200 pass
--- no_error_log
[error]



=== other prefixes
--- toml
[client]
trusted_proxies = ["127.0.0.1"]
ipv4_prefix = 24
ipv6_prefix = 128
[[rules]]
name = "r"
rate = "1/d"
capacity = 3
--- driver
many(4, function(i) return GET("/", "203.0.113." .. i) end)
many(4, function(i) return GET("/", "203.0.114." .. i) end)
many(4, function(i) return GET("/", "2001:db8::" .. i) end)
--- response_body
3 x 200 pass, 1 x 429 limited
3 x 200 pass, 1 x 429 limited
4 x 200 pass
--- no_error_log
[error]
