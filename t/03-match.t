# Which requests a rule is about.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== every form of path
--- table
rules = {
    { name = "exact", rate = "1/d", capacity = 100, match = { path = "/a" } },
    { name = "prefix", rate = "1/d", capacity = 100, match = { path = "/p/*" } },
    { name = "regex", rate = "1/d", capacity = 100, match = { path = "~^/r[0-9]+$" } },
    { name = "blind", rate = "1/d", capacity = 100, match = { path = "~*/wp-login" } },
    { name = "anyof", rate = "1/d", capacity = 100, match = { path = { "/l1", "/l2/*" } } },
    { name = "root", rate = "1/d", capacity = 100, match = { path = "/" } },
},
--- driver
local function told(path)
    local policy = GET(path).headers["ratelimit-policy"]
    say(path, policy and policy:match('^"(.-)"') or "-")
end
for _, path in ipairs {
    "/a", "/a?x=1", "/a/", "/ab", "/A",
    "/p", "/p/", "/p/x/y", "/px", "/P/x",
    "/r1", "/r12", "/r1a", "/x/r1",
    "/wp-login.php", "/x/WP-Login", "/wp_login",
    "/l1", "/l2", "/l2/z", "/l3",
    "/", "/?x", "/other",
} do
    told(path)
end
--- response_body
/a exact
/a?x=1 exact
/a/ -
/ab -
/A -
/p prefix
/p/ prefix
/p/x/y prefix
/px -
/P/x -
/r1 regex
/r12 regex
/r1a -
/x/r1 -
/wp-login.php blind
/x/WP-Login blind
/wp_login -
/l1 anyof
/l2 anyof
/l2/z anyof
/l3 -
/ root
/?x root
/other -
--- no_error_log
[error]



=== a path is matched as nginx reads it, however it is written
--- toml
[[rules]]
name = "login"
match = { path = "/api/login" }
rate = "1/d"
capacity = 100
--- driver
for _, path in ipairs {
    "/api/login", "/api//login", "/api/./login", "/api/x/../login",
    "/%61pi/login", "/api/logi%6E", "//api/login", "/api%2Flogin",
    "/api/login?a=/x", "/api/login%3Fx", "/api/login;x", "/api/login%00",
    "http://localhost/api/login",
} do
    local answer = GET(path)
    say(answer.status, path, answer.headers["ratelimit-policy"] ~= nil)
end
--- response_body
200 /api/login true
200 /api//login true
200 /api/./login true
200 /api/x/../login true
200 /%61pi/login true
200 /api/logi%6E true
200 //api/login true
200 /api%2Flogin true
200 /api/login?a=/x true
200 /api/login%3Fx false
200 /api/login;x false
400 /api/login%00 false
200 http://localhost/api/login true



=== a rewritten uri still matches by the path of the request line
--- toml
[[rules]]
name = "login"
match = { path = "/api/login" }
rate = "1/d"
capacity = 100
[[rules]]
name = "front"
match = { path = "/index.php" }
rate = "1/d"
capacity = 50
--- config
    rewrite ^/api/(.*)$ /index.php last;
    rewrite ^/(shop)/(.*)$ /index.php last;
    location = /index.php {
        content_by_lua_block { ngx.print("front\n") }
    }
--- driver
local function decided(path)
    local before = metrics()
    local answer = GET(path)
    local after = metrics()
    local rules = {}
    for _, name in ipairs { "login", "front" } do
        local series = 'sluice_rule_decisions_total{rule="' .. name
            .. '",verdict="pass"}'
        if (after[series] or 0) > (before[series] or 0) then
            rules[#rules + 1] = name
        end
    end
    say(answer.status, path, table.concat(rules, "+"))
end
decided("/api/login")
decided("/api//x/../login?q")
decided("/api/other")
decided("/shop/1")
decided("/index.php")
decided("/plain")
--- response_body
200 /api/login login+front
200 /api//x/../login?q login+front
200 /api/other front
200 /shop/1 front
200 /index.php front
200 /plain 
--- no_error_log
[error]



=== hosts
--- table
rules = {
    { name = "exact", rate = "1/d", capacity = 100, match = { host = "a.example.com" } },
    { name = "below", rate = "1/d", capacity = 100, match = { host = "*.example.org" } },
    { name = "both", rate = "1/d", capacity = 100, match = { host = { ".example.net", "x.test" } } },
},
--- driver
for _, host in ipairs {
    "a.example.com", "A.Example.COM", "a.example.com:8080", "b.example.com",
    "example.org", "a.example.org", "a.b.example.org", "notexample.org",
    "example.net", "a.example.net", "anexample.net", "x.test", "y.x.test",
} do
    local policy = send { path = "/", host = host }.headers["ratelimit-policy"]
    say(host, policy and policy:match('^"(.-)"') or "-")
end
--- response_body
a.example.com exact
A.Example.COM exact
a.example.com:8080 exact
b.example.com -
example.org -
a.example.org below
a.b.example.org below
notexample.org -
example.net both
a.example.net both
anexample.net -
x.test both
y.x.test -
--- no_error_log
[error]



=== methods: HEAD is not GET
--- table
rules = {
    { name = "get", rate = "1/d", capacity = 100, match = { method = "GET" } },
    { name = "write", rate = "1/d", capacity = 100, match = { method = { "POST", "PUT", "PROPFIND" } } },
},
--- driver
for _, method in ipairs { "GET", "HEAD", "POST", "PUT", "DELETE", "PROPFIND",
                          "OPTIONS", "BREW" } do
    local policy = send { method = method, path = "/" }
        .headers["ratelimit-policy"]
    say(method, policy and policy:match('^"(.-)"') or "-")
end
--- response_body
GET get
HEAD -
POST write
PUT write
DELETE -
PROPFIND write
OPTIONS -
BREW -
--- no_error_log
[error]



=== header fields: a value, or presence
--- table
rules = {
    { name = "value", rate = "1/d", capacity = 100, match = { header = { ["X-Kind"] = "bot" } } },
    { name = "there", rate = "1/d", capacity = 90, match = { header = { ["x-token"] = "*" } } },
    { name = "two", rate = "1/d", capacity = 80,
      match = { header = { ["X-A"] = { "1", "2" }, ["X-B"] = "*" } } },
},
--- driver
local function told(...)
    local policy = send { path = "/", lines = { ... } }
        .headers["ratelimit-policy"]
    say(table.concat({ ... }, ", "), "=>",
        policy and policy:match('^"(.-)"') or "-")
end
told()
told("X-Kind: bot")
told("x-KIND: bot")
told("X-Kind: Bot")
told("X-Kind: bots")
told("X-Kind:  bot  ")
told("X-Token: anything")
told("X-A: 1")
told("X-A: 1", "X-B: z")
told("X-A: 2", "X-B: z")
told("X-A: 3", "X-B: z")
--- response_body
 => -
X-Kind: bot => value
x-KIND: bot => value
X-Kind: Bot => -
X-Kind: bots => -
X-Kind:  bot   => value
X-Token: anything => there
X-A: 1 => -
X-A: 1, X-B: z => two
X-A: 2, X-B: z => two
X-A: 3, X-B: z => -
--- no_error_log
[error]



=== all conditions must hold
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 100
match = { host = "a.test", path = "/x/*", method = ["POST"], header = { "X-A" = "*" } }
--- driver
local function told(req)
    say(send(req).headers["ratelimit-policy"] ~= nil)
end
told { host = "a.test", path = "/x/1", method = "POST", lines = { "X-A: 1" } }
told { host = "b.test", path = "/x/1", method = "POST", lines = { "X-A: 1" } }
told { host = "a.test", path = "/y/1", method = "POST", lines = { "X-A: 1" } }
told { host = "a.test", path = "/x/1", method = "PUT", lines = { "X-A: 1" } }
told { host = "a.test", path = "/x/1", method = "POST" }
--- response_body
true
false
false
false
false
--- no_error_log
[error]



=== unless
--- toml
[[rules]]
name = "api"
rate = "1/d"
capacity = 100
match = { path = "/api/*" }
unless = { path = ["/api/health", "/api/static/*"], method = ["GET", "HEAD"] }
--- driver
for _, req in ipairs {
    { path = "/api/x" }, { path = "/api/health" },
    { path = "/api/static/a.css" }, { path = "/api/health", method = "POST" },
    { path = "/other" },
} do
    say(req.method or "GET", req.path,
        send(req).headers["ratelimit-policy"] ~= nil)
end
--- response_body
GET /api/x true
GET /api/health false
GET /api/static/a.css false
POST /api/health true
GET /other false
--- no_error_log
[error]



=== an empty list matches nothing, no match everything
--- json
{"shm": {"path": "$SHM", "size": "8MiB"},
 "client": {"trusted_proxies": ["127.0.0.1"]},
 "rules": [{"name": "none", "rate": "1/d", "capacity": 1, "match": {"path": []}},
           {"name": "all", "rate": "1/d", "capacity": 2, "match": {}}]}
--- driver
many(3, function() return GET("/") end)
--- response_body
2 x 200 pass, 1 x 429 limited
--- no_error_log
[error]



=== odd bytes in path, host and fields decide, and never fail
--- toml
[[rules]]
name = "r"
match = { path = "~.", host = "*.test", header = { "X-A" = "*" } }
key = ["ip", "path", "host", "header:X-A", "ua", "method"]
rate = "1/d"
capacity = 100
--- driver
local odd = { "%ff%fe", "%0a%0d", "%22%27", ("a"):rep(3000), "%7b%7d%2a",
              "%e2%82%ac", "%01", "a%20b" }
local counts = {}
for _, path in ipairs(odd) do
    for _, header in ipairs { "\255\254", '"quoted"', ("h"):rep(3000),
                              "{}*?", "\226\130\172" } do
        local answer = send { path = "/" .. path, host = "a.test",
                              lines = { "X-A: " .. header,
                                        "User-Agent: " .. header } }
        counts[answer.status] = (counts[answer.status] or 0) + 1
    end
end
for status, n in pairs(counts) do
    say(status, n)
end
--- response_body
200 40
--- no_error_log
[error]
