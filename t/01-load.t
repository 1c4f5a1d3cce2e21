# Loading: where the configuration comes from, and what is refused at start.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== a TOML file
--- toml
[[rules]]
name = "all"
rate = "1/d"
capacity = 2
--- driver
for i = 1, 3 do
    show(GET("/"))
end
--- response_body
200 pass
200 pass
429 limited all
--- no_error_log
[error]



=== a JSON file
--- json
{"shm": {"path": "$SHM", "size": "8MiB"},
 "client": {"trusted_proxies": ["127.0.0.1"]},
 "rules": [{"name": "all", "rate": "1/d", "capacity": 2}]}
--- driver
for i = 1, 3 do
    show(GET("/"))
end
--- response_body
200 pass
200 pass
429 limited all
--- no_error_log
[error]



=== a Lua table
--- table
rules = {
    { name = "all", rate = "1/d", capacity = 2 },
    { name = "few", rate = "1/d", capacity = 1, match = { path = "/few", method = { "GET" } } },
},
--- driver
show(GET("/few"))
show(GET("/few"))
show(GET("/"))
show(GET("/"))
--- response_body
200 pass
429 limited few
200 pass
429 limited all
--- no_error_log
[error]



=== an empty configuration decides nothing and lets everything pass
--- toml
--- driver
for i = 1, 3 do
    show(GET("/"), "ratelimit", "ratelimit-policy")
end
--- response_body
200 pass none none
200 pass none none
200 pass none none
--- no_error_log
[error]



=== without sluice.conf requests are decided all the same, and status says so
--- no_include
--- toml
[[rules]]
name = "all"
rate = "1/d"
capacity = 1
--- driver
say(GET("/").status)
say(GET("/").status)
local said = false
for _, warning in ipairs(status().warnings) do
    local text = type(warning) == "table"
        and (warning.error or warning.field) or warning
    said = said or tostring(text):find("sluice.conf", 1, true) ~= nil
end
say("said ", said)
--- response_body
200
429
said  true
--- no_error_log
[error]



=== a file that is not there
--- bare
--- config
--- http_config eval
qq{
    lua_package_path "$SluiceTest::Lua/?.lua;;";
    lua_package_cpath "$SluiceTest::Lib/?.so;;";
    init_by_lua_block { require("resty.sluice").setup("/nowhere/sluice.toml") }
}
--- must_die
--- error_log
/nowhere/sluice.toml



=== a field that does not exist stops a start, named
--- toml
[[rules]]
name = "all"
rate = "1/d"
capacity = 1
capcity = 2
--- must_die
--- error_log eval
[qr/sluice\.toml.*rules\[0\]\.capcity/s]



=== broken TOML names the file and the line
--- toml
[[rules]]
name = "all
--- must_die
--- error_log eval
[qr/sluice\.toml.*line 2|sluice\.toml:2/s]



=== every bad field is named with the reason
--- before_setup
local sluice = require("resty.sluice")

local function rule(fields)
    local r = { name = "a", rate = "5/m", capacity = 5 }
    for key, value in pairs(fields) do
        r[key] = value
        if value == "NONE" then
            r[key] = nil
        end
    end
    return { rules = { r } }
end

-- A configuration, and what its error must contain (plain text).
local cases = {
    { rule { rate = "NONE" }, "rules[0].rate" },
    { rule { capacity = "NONE" }, "rules[0].capacity" },
    { rule { name = "NONE" }, "rules[0].name" },
    { rule { name = "" }, "rules[0].name" },
    { rule { name = "a b" }, "rules[0].name" },
    { rule { name = ("x"):rep(65) }, "rules[0].name", "64" },
    { rule { rate = "0/s" }, "rules[0].rate" },
    { rule { rate = "-1/s" }, "rules[0].rate" },
    { rule { rate = "5" }, "rules[0].rate" },
    { rule { rate = 5 }, "rules[0].rate" },
    { rule { rate = "nan/s" }, "rules[0].rate" },
    { rule { rate = "inf/s" }, "rules[0].rate" },
    { rule { rate = "1e3/s" }, "rules[0].rate" },
    { rule { rate = "5/fortnight" }, "rules[0].rate" },
    { rule { rate = "5/0s" }, "rules[0].rate" },
    { rule { rate = "0.0000001/s" }, "rules[0].rate" },
    { rule { rate = "1000001/s" }, "rules[0].rate" },
    { rule { rate = "1/367d" }, "rules[0].rate" },
    { rule { rate = "" }, "rules[0].rate" },
    { rule { capacity = 0 }, "rules[0].capacity" },
    { rule { capacity = -1 }, "rules[0].capacity" },
    { rule { capacity = 1.5 }, "rules[0].capacity" },
    { rule { capacity = 1000000001 }, "rules[0].capacity" },
    { rule { capacity = 1/0 }, "rules[0].capacity" },
    { rule { capacity = 0/0 }, "rules[0].capacity" },
    { rule { capacity = "5" }, "rules[0].capacity" },
    { rule { rate = "1/d", capacity = 400 }, "rules[0]", "366" },
    { rule { cost = 0 }, "rules[0].cost" },
    { rule { cost = 6 }, "rules[0].cost", "5" },
    { rule { cost = 1.5 }, "rules[0].cost" },
    { rule { mode = "shadows" }, "rules[0].mode", "shadow" },
    { rule { scope = "world" }, "rules[0].scope" },
    { rule { status = 200 }, "rules[0].status" },
    { rule { status = 600 }, "rules[0].status" },
    { rule { status = "429" }, "rules[0].status" },
    { rule { missing_key = "drop" }, "rules[0].missing_key" },
    { rule { key = { "ipp" } }, "rules[0].key" },
    { rule { key = { "cookie:" } }, "rules[0].key" },
    { rule { key = { 7 } }, "rules[0].key" },
    { rule { enabled = "yes" }, "rules[0].enabled" },
    { rule { match = { paths = "/a" } }, "rules[0].match.paths" },
    { rule { match = { path = "a" } }, "rules[0].match.path" },
    { rule { match = { path = "~(" } }, "rules[0].match.path" },
    { rule { match = { method = "get" } }, "rules[0].match.method" },
    { rule { unless = { hots = "x" } }, "rules[0].unless.hots" },
    { { rules = { { name = "a", rate = "5/m", capacity = 5 },
                  { name = "a", rate = "6/m", capacity = 5 } } },
      "rules[1].name" },
    { { rulez = {} }, "rulez" },
    { { rules = "x" }, "rules" },
    { { store = { backend = "memory" } }, "store.backend" },
    { { store = { backend = "redis", url = "http://x/" } }, "store.url" },
    { { store = { on_error = "maybe" } }, "store.on_error" },
    { { store = { timeout = "20" } }, "store.timeout" },
    { { store = { timeout = 20 } }, "store.timeout" },
    { { store = { timeout = "0ms" } }, "store.timeout" },
    { { store = { sync = "soon" } }, "store.sync" },
    { { store = { password = "secret" } }, "store.password" },
    { { shm = { path = "relative" } }, "shm.path" },
    { { shm = { size = "8 elephants" } }, "shm.size" },
    { { shm = { size = "1KiB" } }, "shm.size" },
    { { client = { trusted_proxies = { "10.0.0.0/33" } } },
      "client.trusted_proxies" },
    { { client = { trusted_proxies = { "everybody" } } },
      "client.trusted_proxies" },
    { { client = { trusted_proxy = { "10.0.0.0/8" } } },
      "client.trusted_proxy" },
    { { client = { ipv4_prefix = 33 } }, "client.ipv4_prefix", "32" },
    { { client = { ipv6_prefix = 129 } }, "client.ipv6_prefix", "128" },
    { { client = { header = "X Y" } }, "client.header" },
    { { lists = { blocklist = { "10.0.0.0/33" } } }, "lists.blocklist" },
    { { lists = { blocklist = { "relative.txt" } } }, "lists.blocklist" },
    { { lists = { blocklist = { "/nowhere/list.txt" } } },
      "/nowhere/list.txt" },
    { { lists = { allowlist = { 7 } } }, "lists.allowlist" },
    { { response = { headers = "none" } }, "response.headers", "legacy" },
    { { response = { body = "html" } }, "response.body", "problem" },
    { { priority = { levels = 0 } }, "priority.levels" },
    { { priority = { default = 9 } }, "priority.default" },
    { { priority = { rules = { { name = "p", level = 4 } } } },
      "priority.rules[0].level" },
    { { priority = { rules = { { level = 1 } } } }, "priority.rules[0].name" },
    { { priority = { events = { { name = "e", ["for"] = "2d" } } } },
      "priority.events[0].for", "24h" },
    { { priority = { suspicion = { rate = 5 } } }, "priority.suspicion.rate",
      "20/s" },
    { { priority = { suspicion = {} } }, "priority.suspicion", "rate" },
    { { pools = { { name = "p" } } }, "pools[0].limit", "is missing" },
    { { pools = { { name = "p", limit = 0 } } }, "pools[0].limit", "adaptive" },
    { { pools = { { name = "p", limit = 5, scope = "cluster" } } },
      "pools[0].scope", "store.url" },
    { { pools = { { name = "p", limit = 5,
                    degrade = { file = "/nowhere/busy.html" } } } },
      "pools[0].degrade.file", "/nowhere/busy.html" },
    -- What other versions will know.
    { { identity = { { type = "jwt" } } }, "identity", "not in this version" },
    { { nodes = { id = "header:X" } }, "nodes", "not in this version" },
    { { store = { url = { "redis://a", "redis://b" } } }, "store.url",
      "not in this version" },
    { { store = { url = "sentinel://h:1/s/0" } }, "store.url",
      "not in this version" },
}

local wrong = {}
for i, case in ipairs(cases) do
    local ok, err = pcall(sluice.setup, case[1])
    err = tostring(err)
    for n = 2, #case do
        if ok or not err:find(case[n], 1, true) then
            wrong[#wrong + 1] = i .. " wants " .. case[n] .. ": "
                .. (ok and "accepted" or err)
            break
        end
    end
end
package.loaded.wrong = { n = #cases, list = wrong }
--- config
    location = /wrong {
        content_by_lua_block {
            local wrong = package.loaded.wrong
            ngx.say(#wrong.list, " of ", wrong.n > 60)
            ngx.print(table.concat(wrong.list, "\n"))
        }
    }
--- request
GET /wrong
--- response_body
0 of true
--- no_error_log
[error]



=== what is odd but right is accepted
--- before_setup
local sluice = require("resty.sluice")
local wrong = {}
for _, rule in ipairs {
    { rate = "1/366d", capacity = 1 },
    { rate = "1000000/s", capacity = 1000000000 },
    { rate = "0.000001/s", capacity = 1 },
    { rate = "0.2/s", capacity = 1 },
    { rate = "100/10s", capacity = 7, cost = 7 },
    { rate = "5/90m", capacity = 1 },
    { rate = "5/m", capacity = 5, status = 444 },
    { rate = "5/m", capacity = 5, status = 599, mode = "shadow" },
    { rate = "5/m", capacity = 5, key = {} },
    { rate = "5/m", capacity = 5, enabled = false },
    { rate = "5/m", capacity = 5, match = { path = "~*^/a(b|c)$" } },
    { rate = "5/m", capacity = 5, match = { host = ".example.com" },
      unless = { path = { "/x", "/y/*" }, header = { ["X-A"] = "*" } } },
} do
    rule.name = "A.b-c_1"
    local ok, err = pcall(sluice.setup, {
        rules = { rule },
        shm = { path = "$TMP/shm-odd", size = "8MiB" },
    })
    if not ok then
        wrong[#wrong + 1] = tostring(err)
    end
end
package.loaded.wrong = wrong
--- config
    location = /wrong {
        content_by_lua_block {
            ngx.say(#package.loaded.wrong)
            ngx.print(table.concat(package.loaded.wrong, "\n"))
        }
    }
--- request
GET /wrong
--- response_body
0
--- no_error_log
[error]



=== every function called in the master before setup: an answer or an error
--- before_setup
local sluice = require("resty.sluice")
local names = { "start", "access", "header", "log", "check", "ban", "unban",
                "metrics", "status" }
for _, name in ipairs(names) do
    local ok, err = pcall(sluice[name], "x", "y", 1)
    if ok == nil then
        error(name)
    end
end
--- after_setup
local sluice = require("resty.sluice")
for _, name in ipairs { "access", "header", "log", "check", "ban", "unban",
                        "metrics", "status" } do
    pcall(sluice[name], "x", "y", 1)
end
--- toml
[[rules]]
name = "all"
rate = "1/d"
capacity = 1
--- driver
show(GET("/"))
show(GET("/"))
--- response_body
200 pass
429 limited all



=== the library is not there: every place looked at is named
--- bare
--- http_config eval
qq{
    lua_package_path "$SluiceTest::Lua/?.lua;;";
    lua_package_cpath "/nowhere/a/?.so;/nowhere/b/?.so";
    init_by_lua_block {
        local searchpath = package.searchpath
        local open = io.open
        io.open = function(path, ...)
            if path:find("libsluice", 1, true) then
                return nil, path .. ": hidden"
            end
            return open(path, ...)
        end
        package.loaded["ffi"].load = function(path)
            error(path .. ": hidden")
        end
        require("resty.sluice").setup({ shm = { path = "/dev/shm/x" } })
    }
}
--- config
--- must_die
--- error_log
/nowhere/a/libsluice.so
/nowhere/b/libsluice.so



=== 0.0.0.0/0 as a proxy or in a list is worth a warning
--- toml
[client]
trusted_proxies = ["0.0.0.0/0", "::/0"]
[lists]
allowlist = ["0.0.0.0/0"]
--- driver
local text = ""
for _, warning in ipairs(status().warnings) do
    text = text .. (type(warning) == "table"
        and warning.field .. ": " .. (warning.error or warning.problem)
        or warning) .. "\n"
end
say(text:find("client.trusted_proxies", 1, true) ~= nil)
say(text:find("lists.allowlist", 1, true) ~= nil)
--- response_body
true
true
--- no_error_log
[error]



=== a rule that the client can walk around is worth a warning
--- toml
[[rules]]
name = "loose"
key = ["header:X-Api-Key"]
rate = "5/m"
capacity = 5
match = { path = "/api/*" }
[[rules]]
name = "covered"
key = ["ua"]
rate = "5/m"
capacity = 5
match = { path = "/b" }
[[rules]]
name = "cover"
rate = "5/m"
capacity = 5
match = { path = "/b" }
--- driver
local text = ""
for _, warning in ipairs(status().warnings) do
    text = text .. (type(warning) == "table"
        and warning.field .. ": " .. (warning.error or warning.problem)
        or warning) .. "\n"
end
say(text:find("loose", 1, true) ~= nil or text:find("rules[0]", 1, true) ~= nil)
say(text:find("covered", 1, true) ~= nil or text:find("rules[1]", 1, true) ~= nil)
--- response_body
true
false
--- no_error_log
[error]
