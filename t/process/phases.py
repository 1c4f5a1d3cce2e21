#!/usr/bin/env python3
"""B97: every public function in every phase gives a value or an error, never
an exit; B98: with the collector running at every turn, the same answers."""
import os
import shutil
import socket
import ssl
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from gateway import TMP, Case, free_port, main, rule, soon  # noqa: E402

# Calls everything; what came is counted in a shared dictionary.
CALLS = """
    local sluice = require("resty.sluice")
    for _, name in ipairs { %s } do
        for _, args in ipairs { {}, { "r", "k" }, { "r", "k", 2 }, { 1, 2 },
                                { { user = "u", raise = 1 } }, { "\\0", "" },
                                { "203.0.113.250", 60 } } do
            local ok, err = pcall(sluice[name], unpack(args))
            ngx.shared.calls:incr("%s", 1, 0)
            if not ok then
                ngx.shared.calls:incr("raised", 1, 0)
            end
        end
    end
"""


def calls(where, *names):
    names = names or ("check", "ban", "unban", "header", "log")
    return CALLS % (", ".join('"%s"' % name for name in names), where)


class Phases(Case):
    expected_in_log = r"API disabled"

    def test_b97_everywhere(self):
        key, cert = TMP + "/key.pem", TMP + "/cert.pem"
        tls = shutil.which("openssl") and subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes",
             "-subj", "/CN=localhost", "-days", "2", "-keyout", key,
             "-out", cert], capture_output=True).returncode == 0
        tls_port = free_port()
        server = ""
        if tls:
            server = """
                server {
                    listen 127.0.0.1:%d ssl;
                    ssl_certificate %s;
                    ssl_certificate_key %s;
                    ssl_certificate_by_lua_block { %s }
                    location / { content_by_lua_block { ngx.print("tls") } }
                }""" % (tls_port, cert, key, calls("ssl_certificate"))
        quiet = ("check", "ban", "unban", "header", "log", "access",
                 "metrics", "status")
        gw = self.gateway(
            rule("r", "1000/s", 100000), workers=1,
            http="lua_shared_dict calls 1m;" + server,
            after_setup=calls("init", "access", "check", "ban", "unban",
                              "header", "log", "metrics", "status"),
            after_start=calls("init_worker", "access", "check", "ban",
                              "unban", "header", "log", "metrics", "status"),
            server="""
                location = /phases {
                    set_by_lua_block $x { %s return "x" }
                    rewrite_by_lua_block { %s }
                    access_by_lua_block { %s }
                    content_by_lua_block {
                        %s
                        ngx.timer.at(0, function() %s end)
                        ngx.print("done")
                    }
                    header_filter_by_lua_block { %s }
                    body_filter_by_lua_block { %s }
                    log_by_lua_block { %s }
                }""" % (calls("set", *quiet), calls("rewrite"),
                        calls("access"), calls("content"),
                        calls("timer", *quiet), calls("header_filter", *quiet),
                        calls("body_filter", *quiet),
                        calls("log", *quiet)))
        pid = gw.workers()
        for _ in range(50):
            answer = gw.ask(path="/phases")
            self.assertEqual((answer.status, answer.body), (200, b"done"))
        for where in ("set", "rewrite", "access", "content", "timer",
                      "header_filter", "body_filter", "log"):
            self.assertTrue(soon(lambda: int(gw.call(
                'return ngx.shared.calls:get("%s") or 0' % where)) >= 50,
                2), where)
        if tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            for _ in range(10):
                with socket.create_connection(("127.0.0.1", tls_port), 5) as s:
                    with context.wrap_socket(s, server_hostname="localhost") \
                            as wrapped:
                        wrapped.sendall(b"GET / HTTP/1.0\r\n\r\n")
                        self.assertIn(b"tls", wrapped.recv(4096)
                                      + wrapped.recv(4096))
            self.assertGreaterEqual(int(gw.call(
                'return ngx.shared.calls:get("ssl_certificate") or 0')), 10)
        self.assertEqual(gw.workers(), pid)
        # The plain calls of the right kind raised nothing.
        self.assertEqual(gw.call('return sluice.check("r", "z")'), "true")

    def test_log_does_not_yield(self):
        self.expected_in_log = None
        gw = self.gateway(rule("r", "1/d", 5), workers=1)
        for i in range(200):
            gw.ask(ip="10.0.%d.1" % i)
        self.assertNotIn("API disabled", gw.log())


class Collector(Case):
    def test_b98_a_collection_around_every_call(self):
        redis = self.redis()
        full = "collectgarbage() "
        gw = self.gateway(
            '[store]\nbackend = "redis"\nurl = "%s"\ntimeout = "1s"\n'
            % redis.url
            + rule("r", "1/d", 5) + rule("n", "1/d", 50, scope="node")
            + rule("k", "1/d", 3, match='{path="/k"}',
                   key=["header:X-Id", "cookie:sid", "user"]),
            workers=1,
            before_start='collectgarbage("setpause", 1) '
                         'collectgarbage("setstepmul", 10000)',
            access=full + 'require("resty.sluice").access { user = "u" .. '
                   '(ngx.var.http_x_id or ""), cost = 1, raise = 1 } ' + full,
            log=full + 'require("resty.sluice").log() ' + full)
        for round in range(10):
            ip = "10.0.0.%d" % round
            statuses = [gw.ask(ip=ip).status for _ in range(7)]
            self.assertEqual(statuses, [200] * 5 + [429] * 2)
        for i in range(30):
            statuses = [gw.ask(path="/k", ip="10.1.0.%d" % i, headers=[
                ("X-Id", "%d" % i * 500), ("Cookie", "sid=%d" % i)]).status
                for _ in range(4)]
            self.assertEqual(statuses, [200] * 3 + [429])
        said = gw.call("""
            local n = 0
            for i = 1, 300 do
                collectgarbage()
                local ok = sluice.check("k", ("key"):rep(i))
                collectgarbage()
                if ok then n = n + 1 end
            end
            return n""")
        self.assertEqual(said, "300")
        self.assertEqual(gw.call(
            'collectgarbage() local ok = sluice.ban("203.0.113.9", 60) '
            'collectgarbage() return ok'), "true")

    def test_the_module_table_cleared_and_loaded_again(self):
        gw = self.gateway(rule("r", "1/d", 5), workers=1)
        gw.ask()
        gw.call("""
            for name in pairs(package.loaded) do
                if name:find("resty.sluice", 1, true) then
                    package.loaded[name] = nil
                end
            end
            collectgarbage() collectgarbage()
            return "gone" """)
        # Whatever it is, no crash, and never an open door without a word.
        statuses = {gw.ask().status for _ in range(8)}
        self.assertLessEqual(statuses, {200, 429, 500})
        self.assertEqual(len(gw.workers()), 1)
        self.expected_in_log = "stack traceback|attempt to redefine"


if __name__ == "__main__":
    main()
