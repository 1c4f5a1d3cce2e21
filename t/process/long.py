#!/usr/bin/env python3
"""What needs minutes: only with SLUICE_SOAK=1."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from gateway import (SOAK, Case, Load, main, redis_toml,  # noqa: E402
                     rss_kb, rule, soon)


class Long(Case):
    def setUp(self):
        super().setUp()
        if not SOAK:
            self.skipTest("takes minutes: make soak")

    def test_b23_at_the_edge_for_five_minutes(self):
        """1/s, each request 1.02 s after the last was answered, two gateways
        taking turns, and one with its own memory: none is refused."""
        redis = self.redis()
        toml = redis_toml(redis) + rule("r", "1/s", 1)
        pair = [self.gateway(toml, workers=2), self.gateway(toml, workers=2)]
        alone = self.gateway(rule("r", "1/s", 1), workers=2)
        refused = []
        for i in range(290):
            for gw in (pair[i % 2], alone):
                if gw.ask().status != 200:
                    refused.append(i)
            time.sleep(1.02)
        self.assertEqual(refused, [])

    def test_b14_polled_above_the_limit_for_a_minute(self):
        gw = self.gateway(rule("r", "2/4s", 2))
        passed = 0
        due = time.monotonic()
        for _ in range(60):
            passed += gw.ask().status == 200
            due += 1
            time.sleep(max(0, due - time.monotonic()))
        self.assertTrue(30 <= passed <= 33, passed)

    def test_b08_six_a_minute(self):
        redis = self.redis()
        gw = self.gateway(redis_toml(redis) + rule("r", "6/m", 1))
        passed = 0
        for _ in range(13):
            passed += gw.ask().status == 200
            time.sleep(2)
        self.assertEqual(passed, 3)

    def test_b63_a_churning_list(self):
        """300,000 entries replaced whole forty times under traffic: no gap,
        and memory comes to rest (malloc keeps some of what it once gave)."""
        redis = self.redis()
        gw = self.gateway('[store]\nurl = "%s"\n' % redis.url
                          + rule("r", "1000/s", 1000000), workers=2)

        def write(shift):
            redis("DEL", "new")
            redis.many(["SADD", "new", "203.0.113.9", *(
                "%d.%d.%d.%s" % (20 + (n + shift >> 16), n + shift >> 8 & 255,
                                 n + shift & 255, end)
                for n in range(i, i + 250)
                for end in ("0/25", "200"))] for i in range(0, 150000, 250))
            redis("RENAME", "new", "sluice:blocklist")

        write(0)
        self.assertTrue(soon(
            lambda: gw.metrics()["sluice_blocklist_entries"] == 300001, 10))
        # One worker has it; the others have so long for it.
        time.sleep(2)
        load = Load(gw, ips=["203.0.113.9"], per_second=300)
        load.start()
        memory = []
        for turn in range(1, 41):
            write(turn * 150000 % 4000000)
            first = 20 + (turn * 150000 % 4000000 >> 16)
            n = turn * 150000 % 4000000
            ip = "%d.%d.%d.200" % (first, n >> 8 & 255, n & 255)
            self.assertTrue(soon(lambda: gw.ask(ip=ip).status == 403, 15))
            memory.append(sum(rss_kb(pid) for pid in gw.workers()))
        self.assertEqual(set(load.stop()), {403})
        self.assertLess(max(memory[30:]), max(memory[:30]) * 1.1 + 8192)


if __name__ == "__main__":
    main()
