#!/usr/bin/env python3
"""Metrics against what was answered and what reached the backend."""
import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from gateway import (Case, flood, main, request_bytes,  # noqa: E402
                     rule)

UPSTREAM = """
    lua_shared_dict reached 1m;
    server {
        listen 127.0.0.1:%d;
        location / {
            content_by_lua_block {
                ngx.shared.reached:incr("n", 1, 0)
                ngx.print("upstream\\n")
            }
        }
    }
"""


class Numbers(Case):
    def test_b109_ten_thousand_mixed_requests_add_up(self):
        from gateway import free_port
        port = free_port()
        gw = self.gateway(
            rule("a", "1/d", 150) + rule("b", "1/d", 40, match='{path="/b"}')
            + rule("s", "1/d", 10, mode="shadow")
            + '[lists]\nblocklist = ["203.0.113.0/24"]\n'
            'allowlist = ["10.0.0.0/8"]\n',
            http=UPSTREAM % port,
            server="location /up { proxy_pass http://127.0.0.1:%d; }\n"
                   "location /b { proxy_pass http://127.0.0.1:%d; }"
                   % (port, port))
        requests = []
        for i in range(1000):
            ip = "203.0.113.%d" % (i % 250) if i % 7 == 0 else \
                "10.0.0.1" if i % 11 == 0 else "198.51.100.%d" % (i % 23)
            requests.append(request_bytes("/b" if i % 3 == 0 else "/up", ip))
        counts, _ = flood(gw.port, requests, 10000, connections=20)
        self.assertEqual(sum(counts.values()), 10000)
        said = gw.requests_total()
        self.assertEqual(sum(said.values()), 10000)
        self.assertEqual(said["pass"], counts[200])
        self.assertEqual(said["limited"], counts[429])
        self.assertEqual(said["blocked"], counts[403])
        self.assertGreater(min(counts.values()), 500)
        reached = gw.call('return ngx.shared.reached:get("n")')
        self.assertEqual(int(reached), counts[200])

    def test_b107_many_clients_few_series(self):
        gw = self.gateway(rule("a", "1/d", 2)
                          + rule("p", "1/d", 2, match='{path="~."}',
                                 key=["ip", "path", "ua"]))
        flood(gw.port, [request_bytes()], 100)
        before = len(gw.metrics())
        flood(gw.port, [request_bytes("/p%d" % i, "10.%d.%d.%d" % (
            i >> 16, i >> 8 & 255, i & 255)) for i in range(20000)], 20000)
        began = time.monotonic()
        text = gw.admin_get("/metrics").body
        self.assertLess(time.monotonic() - began, 0.2 + 1)
        self.assertLess(len(text), 1 << 20)
        self.assertEqual(len(gw.metrics()), before)
        self.assertEqual(sum(gw.requests_total().values()), 20100)

    def test_refusals_are_said_once_a_second(self):
        gw = self.gateway(rule("a", "1/d", 1))
        start = len(gw.log())
        began = time.monotonic()
        flood(gw.port, [request_bytes()], 8000)
        took = time.monotonic() - began
        time.sleep(1.2)
        gw.ask()
        told = [int(n) for n in re.findall(
            r'rule "a" refused (\d+) request', gw.log()[start:])]
        self.assertGreaterEqual(len(told), 2)
        self.assertLessEqual(len(told), took + 3)
        self.assertEqual(sum(told), 8000)


if __name__ == "__main__":
    main()
