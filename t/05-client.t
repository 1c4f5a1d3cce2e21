# Who is asking: the forwarding header, and whom to believe.
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== B48 addresses with ports, brackets and blanks
--- toml
--- driver
for _, text in ipairs {
    "203.0.113.7", "203.0.113.7:51234", " 203.0.113.7:1 ",
    "2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:443",
    "2001:0DB8:0:0::1", "::ffff:203.0.113.7", "[::ffff:203.0.113.7]:9",
    "2607:fea8:bba0:7c00:cd88:f5a6:5fb0:2a56:51108",
} do
    local answer = GET("/", text)
    say(answer.status, answer.client)
end
--- response_body
200 203.0.113.7
200 203.0.113.7
200 203.0.113.7
200 2001:db8::1
200 2001:db8::1
200 2001:db8::1
200 2001:db8::1
200 203.0.113.7
200 203.0.113.7
200 127.0.0.1
--- no_error_log
[error]



=== B49 the walk goes from the right, and stops at the first stranger
--- toml
[client]
trusted_proxies = ["127.0.0.1/32", "10.0.0.0/8"]
[[rules]]
name = "r"
rate = "1/d"
capacity = 5
--- driver
many(20, function(i) return GET("/", i .. ".2.3.4, 198.51.100.7") end)
say(GET("/", "198.51.100.8, 10.1.1.1, 10.2.2.2").client)
say(GET("/", "198.51.100.9, 198.51.100.10, 10.2.2.2").client)
-- All trusted: the leftmost.
say(GET("/", "10.9.9.9, 10.1.1.1").client)
say(GET("/", false).client)
say(GET("/", "").client)
--- response_body
5 x 200 pass, 15 x 429 limited
198.51.100.8
198.51.100.10
10.9.9.9
127.0.0.1
127.0.0.1
--- no_error_log
[error]



=== B57 without trusted proxies the header is ignored
--- toml
[client]
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
--- driver
say(GET("/", "198.51.100.7").client)
many(3, function(i) return GET("/", "198.51.100." .. i) end)
--- response_body
127.0.0.1
1 x 200 pass, 2 x 429 limited
--- no_error_log
[error]



=== a peer that is not trusted
--- toml
[client]
trusted_proxies = ["10.0.0.0/8", "127.0.0.2"]
--- driver
say(GET("/", "198.51.100.7").client)
--- response_body
127.0.0.1
--- no_error_log
[error]



=== B51 several header lines are one
--- toml
[client]
trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
--- driver
local function ask(...)
    local lines = {}
    for i, text in ipairs { ... } do
        lines[i] = "X-Forwarded-For: " .. text
    end
    say(send { path = "/", from = false, lines = lines }.client)
end
ask("1.1.1.1", "198.51.100.7")
ask("1.1.1.1, 198.51.100.7")
ask("198.51.100.7", "10.1.1.1")
ask("198.51.100.7", "10.1.1.1", "10.1.1.2, 10.1.1.3")
--- response_body
198.51.100.7
198.51.100.7
198.51.100.7
198.51.100.7
--- no_error_log
[error]



=== B52 a malformed hop ends the walk and is not stepped over
--- toml
[client]
trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
--- driver
for _, tail in ipairs { "garbage", "unknown", ",", "300.1.1.1", "_hidden",
                        "010.0.0.1", "1.2.3", "fe80::1%eth0 x", "10.0.0.1/8",
                        "0x7f.1", "\255\254" } do
    for _, front in ipairs { "198.51.100.7", "198.51.100.8" } do
        local answer = GET("/", front .. ", " .. tail)
        if answer.status ~= 200 or answer.client ~= "127.0.0.1" then
            say(tail, answer.status, answer.client)
        end
    end
end
say(GET("/", "198.51.100.7, garbage, 10.1.1.1").client)
say(GET("/", "198.51.100.7, unknown, 10.1.1.1, 10.1.1.2").client)
--- response_body
10.1.1.1
10.1.1.1
--- no_error_log
[error]



=== B53 very long chains
--- toml
[client]
trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
--- http_config
    large_client_header_buffers 8 32k;
--- driver
local long = {}
for i = 1, 500 do
    long[i] = "10.0." .. i % 256 .. "." .. i % 200
end
local answer = GET("/", "198.51.100.7, " .. table.concat(long, ", "))
say(answer.status, answer.client)
answer = GET("/", "198.51.100.7, 1.1.1.1, " .. table.concat(long, ", "))
say(answer.status, answer.client)
answer = GET("/", (","):rep(500))
say(answer.status, answer.client)
answer = GET("/", ("x"):rep(7000))
say(answer.status, answer.client)
local lines = {}
for i = 1, 150 do
    lines[i] = "X-Forwarded-For: 10.0.0." .. i
end
lines[1] = "X-Forwarded-For: 198.51.100.9"
answer = send { path = "/", from = false, lines = lines }
say(answer.status, answer.client)
--- response_body
200 198.51.100.7
200 1.1.1.1
200 127.0.0.1
200 127.0.0.1
200 198.51.100.9
--- no_error_log
[error]



=== another header, and RFC 7239
--- toml
[client]
trusted_proxies = ["127.0.0.1"]
header = "CF-Connecting-IP"
--- driver
say(send { path = "/", from = "198.51.100.1",
           lines = { "CF-Connecting-IP: 198.51.100.7" } }.client)
-- The last of two lines is the proxy's own.
say(send { path = "/", from = false,
           lines = { "CF-Connecting-IP: 1.1.1.1",
                     "CF-Connecting-IP: 198.51.100.7" } }.client)
say(send { path = "/", from = "198.51.100.1" }.client)
--- response_body
198.51.100.7
198.51.100.7
127.0.0.1
--- no_error_log
[error]



=== Forwarded
--- toml
[client]
trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
header = "Forwarded"
--- driver
local function ask(...)
    local lines = {}
    for i, text in ipairs { ... } do
        lines[i] = "Forwarded: " .. text
    end
    say(send { path = "/", from = false, lines = lines }.client)
end
ask("for=198.51.100.7")
ask("For=198.51.100.7;proto=https;by=10.0.0.1")
ask('for="[2001:db8::1]:4711"')
ask('for=198.51.100.9, for=198.51.100.7;proto=http, for=10.1.1.1')
ask("for=198.51.100.9", "for=198.51.100.7")
ask("for=198.51.100.9, for=unknown")
ask("for=198.51.100.9, for=_hidden, for=10.1.1.1")
ask("proto=https")
--- response_body
198.51.100.7
198.51.100.7
2001:db8::1
198.51.100.7
198.51.100.7
127.0.0.1
10.1.1.1
127.0.0.1
--- no_error_log
[error]



=== B55 IPv6 peers, and peers without an address
--- skip_eval: 3: !SluiceTest::ipv6()
--- toml
[client]
trusted_proxies = ["unix:"]
[[rules]]
name = "r"
rate = "1/d"
capacity = 3
--- http_config
    server {
        listen [::1]:$TEST_NGINX_RAND_PORT_1;
        listen unix:$TEST_NGINX_SERVER_ROOT/logs/s.sock;
        add_header X-Client $sluice_client always;
        add_header X-Verdict $sluice_verdict always;
        access_by_lua_block { require("resty.sluice").access() }
        log_by_lua_block { require("resty.sluice").log() }
        location / { content_by_lua_block { ngx.print("ok\n") } }
    }
--- config
    location = /port {
        access_by_lua_block { }
        content_by_lua_block { ngx.print("$TEST_NGINX_RAND_PORT_1") }
    }
--- driver
local function over(address, port, lines)
    local sock = ngx.socket.tcp()
    assert(sock:connect(address, port))
    sock:send("GET / HTTP/1.0\r\n" .. (lines or "") .. "\r\n")
    local text = sock:receive("*a")
    sock:close()
    say(text:match("HTTP/%S+ (%d+)"), text:match("X%-Client: (%S+)"))
end
local port = tonumber(GET("/port").body)
for i = 1, 4 do
    over("[::1]", port)
end
over("[::1]", port, "X-Forwarded-For: 198.51.100.7\r\n")
local path = "unix:$TEST_NGINX_SERVER_ROOT/logs/s.sock"
over(path, nil, "X-Forwarded-For: 198.51.100.7\r\n")
over(path, nil, "X-Forwarded-For: fe80::1%eth0\r\n")
over(path, nil, "X-Forwarded-For: 2001:db8::\r\n")
over(path)
--- response_body_like chomp
^200 ::1
200 ::1
200 ::1
429 ::1
429 ::1
200 198.51.100.7
200 \S+
200 \S+
200 \S+
$
--- no_error_log
[error]



=== B56 realip has resolved the client: the header is not read again
--- toml
[client]
trusted_proxies = ["127.0.0.1", "198.51.100.7"]
[[rules]]
name = "r"
rate = "1/d"
capacity = 2
[lists]
blocklist = ["198.51.100.66"]
--- config
    set_real_ip_from 127.0.0.1;
    real_ip_header X-Real-IP;
--- driver
local function ask(real, forwarded)
    local answer = send { path = "/", from = forwarded,
                          lines = { "X-Real-IP: " .. real } }
    say(answer.status, answer.client)
end
ask("198.51.100.7", "1.1.1.1")
ask("198.51.100.7", "2.2.2.2")
ask("198.51.100.7", "3.3.3.3")
ask("198.51.100.8", "3.3.3.3")
ask("198.51.100.66", "3.3.3.3")
--- response_body
200 198.51.100.7
200 198.51.100.7
429 198.51.100.7
200 198.51.100.8
403 198.51.100.66
--- no_error_log
[error]



=== B56 the PROXY protocol
--- toml
[client]
trusted_proxies = ["127.0.0.1"]
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
[lists]
blocklist = ["198.51.100.66"]
--- http_config
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1 proxy_protocol;
        set_real_ip_from 127.0.0.1;
        real_ip_header proxy_protocol;
        add_header X-Client $sluice_client always;
        access_by_lua_block { require("resty.sluice").access() }
        log_by_lua_block { require("resty.sluice").log() }
        location / { content_by_lua_block { ngx.print("ok\n") } }
    }
--- config
    location = /port {
        access_by_lua_block { }
        content_by_lua_block { ngx.print("$TEST_NGINX_RAND_PORT_1") }
    }
--- driver
local port = tonumber(GET("/port").body)
local function ask(from)
    local sock = ngx.socket.tcp()
    assert(sock:connect("127.0.0.1", port))
    sock:send("PROXY TCP4 " .. from .. " 127.0.0.1 4711 80\r\n"
        .. "GET / HTTP/1.0\r\nX-Forwarded-For: 9.9.9.9\r\n\r\n")
    local text = sock:receive("*a")
    sock:close()
    say(text:match("HTTP/%S+ (%d+)"), text:match("X%-Client: (%S+)"))
end
ask("198.51.100.1")
ask("198.51.100.1")
ask("198.51.100.2")
ask("198.51.100.66")
--- response_body
200 198.51.100.1
429 198.51.100.1
200 198.51.100.2
403 198.51.100.66
--- no_error_log
[error]
