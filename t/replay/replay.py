#!/usr/bin/env python3
"""The acceptance replay: the requests of a real access log, in file order,
against the gateway with the real lists as blocklist. Verdict, rule and status
of every line equal what model.py, another program, makes of the same.

SLUICE_DATA: the folder of the lists and the log (default: ../shared/data
beside the repository).
"""
import ipaddress
import json
import os
import random
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "lib"))
from gateway import (ROOT, TMP, Case, Connection, main,  # noqa: E402
                     redis_toml, soon)

DATA = os.environ.get("SLUICE_DATA", os.path.join(ROOT, "..", "shared",
                                                  "data"))
SEED = 20150517
LISTS = ["addresses.txt", "networks-v4.txt", "networks-v6.txt"]
RULES = [
    {"name": "posts", "capacity": 5, "method": ["POST"]},
    {"name": "articles", "capacity": 5, "path": ["/blog/*", "/articles/*",
                                                 "/presentations/*"]},
    {"name": "assets", "capacity": 5, "method": ["GET", "HEAD"],
     "path": ["~[.](png|js|css|ico|gif|jpe?g)$", "/"]},
]


def requests():
    """(method, target, log address) of each line; every fourth is a POST."""
    found = []
    with open(DATA + "/access.log", encoding="latin-1") as f:
        for number, line in enumerate(f):
            part = re.match(r'(\S+) \S+ \S+ \[[^\]]*\] "([A-Z]+) (/\S*) HTTP/',
                            line)
            if not part:
                continue
            method = "POST" if number % 4 == 3 else part.group(2)
            found.append((method, part.group(3), part.group(1)))
    return found


def mapping(addresses):
    """Each log address onto one of addresses.txt (a fifth), one inside the
    networks (a fifth), or one that is in neither."""
    sys.path.insert(0, HERE)
    from model import Networks
    chance = random.Random(SEED)
    with open(DATA + "/addresses.txt") as f:
        listed = f.read().split()
    networks = []
    for name in LISTS[1:]:
        with open(DATA + "/" + name) as f:
            networks += f.read().split()
    everything = Networks([DATA + "/" + name for name in LISTS])
    mapped = {}
    for address in addresses:
        kind = chance.randrange(5)
        if kind == 0:
            mapped[address] = chance.choice(listed)
        elif kind == 1:
            net = ipaddress.ip_network(chance.choice(networks), strict=False)
            mapped[address] = str(net[chance.randrange(net.num_addresses)])
        else:
            while True:
                if chance.randrange(4):
                    ip = ipaddress.IPv4Address(chance.randrange(1 << 24,
                                                                223 << 24))
                else:
                    ip = ipaddress.IPv6Address(
                        0x2001 << 112 | chance.getrandbits(112))
                if not everything.holds(str(ip)):
                    mapped[address] = str(ip)
                    break
    return mapped


def toml_rules():
    lines = []
    for r in RULES:
        match = {k: r[k] for k in ("path", "method") if k in r}
        lines += ["[[rules]]", 'name = "%s"' % r["name"], 'rate = "1/d"',
                  "capacity = %d" % r["capacity"], "match = { %s }"
                  % ", ".join("%s = %s" % (k, json.dumps(v))
                              for k, v in match.items())]
    return "\n".join(lines) + "\n"


def same(said, expected):
    return said[0] == expected[0] and said[2] == expected[2] \
        and said[1] in expected[1].split(",")


class Replay(Case):
    def setUp(self):
        super().setUp()
        missing = [n for n in LISTS + ["access.log"]
                   if not os.path.exists(DATA + "/" + n)]
        if missing:
            self.skipTest("no %s in %s (SLUICE_DATA)" % (missing[0], DATA))

    def expected(self, lines):
        path = TMP + "/requests"
        with open(path, "w") as f:
            f.writelines("%s %s %s\n" % line for line in lines)
        with open(TMP + "/rules.json", "w") as f:
            json.dump(RULES, f)
        text = subprocess.run(
            [sys.executable, HERE + "/model.py", TMP + "/rules.json", path,
             *(DATA + "/" + name for name in LISTS)],
            capture_output=True, text=True, check=True).stdout
        return [tuple(line.split()) for line in text.splitlines()]

    def replayed(self, gw, lines):
        """One at a time, in order, over connections that take turns, so that
        every worker sees some."""
        connections = [Connection(gw.address) for _ in range(12)]
        said = []
        for i, (method, target, client) in enumerate(lines):
            connection = connections[i % len(connections)]
            answer = connection.ask(
                method, target, ip=client,
                body=b"a=1" if method == "POST" else None)
            said.append((answer.verdict, answer.rule, str(answer.status)))
            if answer.headers.get("connection") == "close":
                connection.close()
                connections[i % len(connections)] = Connection(gw.address)
        for connection in connections:
            connection.close()
        return said

    def compared(self, gw):
        log = requests()
        self.assertGreater(len(log), 9900)
        mapped = mapping(sorted({address for _, _, address in log}))
        lines = [(method, target, mapped[address])
                 for method, target, address in log]
        expected = self.expected(lines)
        self.assertEqual(len(expected), len(lines))
        said = self.replayed(gw, lines)
        wrong = [(n, lines[n], said[n], expected[n])
                 for n in range(len(lines)) if not same(said[n], expected[n])]
        self.assertEqual(wrong[:5], [], "%d of %d differ" % (len(wrong),
                                                             len(lines)))
        counts = {}
        for verdict, _, _ in expected:
            counts[verdict] = counts.get(verdict, 0) + 1
        self.assertGreaterEqual(counts["blocked"], 1000)
        self.assertGreaterEqual(counts["limited"], 1000)
        self.assertGreaterEqual(counts["pass"], 1000)
        self.assertEqual(gw.requests_total(), {**counts, "error": 0, "shed": 0}
                         if "error" in gw.requests_total() else counts)
        print("# %d lines: %s" % (len(lines), ", ".join(
            "%d %s" % (n, verdict) for verdict, n in sorted(counts.items()))))

    def lists(self):
        return "[lists]\nblocklist = %s\n" % json.dumps(
            [os.path.abspath(DATA + "/" + name) for name in LISTS])

    def test_with_lists_from_files_and_the_local_store(self):
        gw = self.gateway(toml_rules() + self.lists(), size="32MiB")
        status = gw.status()
        self.assertEqual(status["blocklist"]["rejected"], 0)
        self.assertGreater(status["blocklist"]["entries"], 150000)
        self.compared(gw)

    def test_with_everything_in_redis(self):
        """Lists from Redis's sets, rules from its hash, buckets there."""
        redis = self.redis()
        for name in LISTS:
            with open(DATA + "/" + name) as f:
                redis.many(["SADD", "sluice:blocklist", entry]
                           for entry in f.read().split())
        for r in RULES:
            match = {k: r[k] for k in ("path", "method") if k in r}
            redis("HSET", "sluice:config", "rule:" + r["name"], json.dumps(
                {"match": match, "rate": "1/d", "capacity": r["capacity"]}))
        gw = self.gateway(redis_toml(redis, timeout="1s"), size="32MiB")
        entries = redis("SCARD", "sluice:blocklist")
        self.assertTrue(soon(lambda: gw.metrics()["sluice_blocklist_entries"]
                             == entries, 15))
        self.assertTrue(soon(lambda: gw.status()["config"]["generation"] > 0
                             and len({w["config_generation"] for w in
                                      gw.status()["workers"]}) == 1, 5))
        self.compared(gw)


if __name__ == "__main__":
    main()
