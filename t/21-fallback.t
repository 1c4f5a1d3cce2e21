# Where lua-resty-core's functions are not what the library was built for, the
# request is read through ngx.var and answered through ngx.header: slower, and
# the same. (t/run runs the suites of matching, keys, clients, answers and
# phases a second time in this way.)
use FindBin;
use lib "$FindBin::Bin/lib";
use SluiceTest;
use Test::Nginx::Socket 'no_plan';

run_tests();

__DATA__

=== a changed signature is noticed, and said at the start
--- before_setup
require("resty.sluice.nginx").expected.ngx_http_lua_ffi_var_get = "i4(p)"
--- toml
[client]
trusted_proxies = ["127.0.0.1", "10.0.0.0/8"]
[lists]
blocklist = ["203.0.113.9"]
[priority]
forward = true
[[rules]]
name = "r"
match = { path = "/r/*", header = { "X-A" = "*" } }
key = ["ip", "cookie:sid", "arg:a", "host", "ua"]
rate = "1/d"
capacity = 2
--- config
    location = /level {
        content_by_lua_block { ngx.print(ngx.var.http_x_sluice_level) }
    }
    location = /r/exec { content_by_lua_block { return ngx.exec("/r/target") } }
    location = /r/target { content_by_lua_block { ngx.print("target") } }
--- driver
local function ask(path, cookie, from)
    return send { path = path, from = from or "198.51.100.1",
                  lines = { "X-A: 1", "Cookie: sid=" .. cookie } }
end
show(ask("/r/x?a=1", "a"), "ratelimit-policy")
show(ask("/r//x?a=1", "a"))
local refused = ask("/r/./x?a=1", "a")
show(refused, "ratelimit-policy", "content-type")
say(decode(refused.body).status)
show(ask("/r/x?a=2", "a"))
show(ask("/r/x?a=1", "b"))
show(ask("/other", "b", "203.0.113.9"), "content-type")
say(send { path = "/", from = false, lines = {
    "X-Forwarded-For: 1.1.1.1", "X-Forwarded-For: 198.51.100.7",
    "X-Forwarded-For: 10.0.0.1" } }.client)
say(send { path = "/level", lines = { "X-Sluice-Level: 0" } }.body)
show(ask("/r/exec?a=9", "c"), "ratelimit")
--- response_body_like chomp
^200 pass "r";q=2;w=172800
200 pass
429 limited r "r";q=2;w=172800 application/problem\+json
429
200 pass
200 pass
403 blocked application/problem\+json
198\.51\.100\.7
3
200 pass "r";r=1;t=\d+
$
--- no_error_log
[error]



=== the log says which function differs
--- before_setup
require("resty.sluice.nginx").expected.ngx_http_lua_ffi_var_get = "i4(p)"
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
--- request
GET /
--- init
open my $log, '<', "$ENV{TEST_NGINX_SERVER_ROOT}/logs/error.log";
my $text = join '', <$log>;
Test::More::like($text, qr/\[warn\].*ngx_http_lua_ffi_var_get/,
    'said at the start');
--- response_headers
X-Verdict: pass
--- no_error_log
[error]



=== as it should be, nothing is said and the library reads the request itself
--- toml
[[rules]]
name = "r"
rate = "1/d"
capacity = 1
--- init
open my $log, '<', "$ENV{TEST_NGINX_SERVER_ROOT}/logs/error.log";
my $text = join '', <$log>;
Test::More::unlike($text, qr/through ngx\.var/, 'nothing of the kind');
--- request
GET /
--- response_headers
X-Verdict: pass
--- no_error_log
[error]
